package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/feed"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"github.com/zeebo/xxh3"
)

// Sizes of the connection-tracking map, in bytes and entries: those of LoxiLB's.
const (
	keySize    = 48
	valueSize  = 176
	maxEntries = 1 << 18
)

// batchChanges is how many changes one run of the data plane makes.
const batchChanges = 256

// mapSettings says what a load balancer's map is like.
type mapSettings struct {
	LRU       bool
	Entries   uint32 // that fit; 0: maxEntries
	ValueSize uint32 // in bytes; 0: valueSize. A node with another one is given no load.
	Name      string // under which nodes know it; empty: ct
}

// flowState is what a flow's entry should look like: a change in place gives it
// another head.
type flowState struct{ head, body uint64 }

// balancer is a load balancer's data plane: it writes flows of its own into its
// map and remembers what it wrote, so that a test knows what is right. It goes on
// while its syncd is dead.
type balancer struct {
	node uint32
	m    *ebpf.Map
	read *kmap.Map

	mu     sync.Mutex // guards what follows; held while the data plane runs
	feed   *feed.Feed
	unseen *dataplane.Program   // writes that are not reported where there are no hooks
	model  map[uint32]flowState // by flow; none: deleted
	next   uint64               // last version given out
	rand   *rand.Rand

	stop context.CancelFunc
	done chan struct{}
	err  error
}

// newBalancer makes the map. Its changes are left to hooks, until report is called.
func newBalancer(node uint32, name string, o mapSettings) (*balancer, error) {
	kind := ebpf.Hash
	if o.LRU {
		kind = ebpf.LRUHash
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: kind, KeySize: keySize, ValueSize: cmp.Or(o.ValueSize, valueSize),
		MaxEntries: cmp.Or(o.Entries, maxEntries),
	})
	if err != nil {
		return nil, fmt.Errorf("create the load balancer's map: %w", err)
	}
	read, err := kmap.Open(m, kmap.Options{})
	if err != nil {
		return nil, fmt.Errorf("open the load balancer's map: %w", err)
	}
	b := &balancer{
		node: node, m: m, read: read,
		model: make(map[uint32]flowState), rand: rand.New(rand.NewPCG(uint64(node), 1)),
	}
	b.feed, err = feed.Open(m, nil, feed.Options{Capacity: batchChanges, SkipEvent: true})
	if err == nil {
		b.unseen, err = dataplane.Open(m, dataplane.Options{Capacity: batchChanges, RunWrites: 16})
	}
	return b, err
}

// report has every change from now on reported to the capture that has these maps.
func (b *balancer) report(shared map[string]*ebpf.Map) error {
	next, err := feed.Open(b.m, shared, feed.Options{Capacity: batchChanges})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.feed
	b.feed = next
	return old.Close()
}

// load is what the data plane does until told to stop.
type load struct {
	Flows    int           // distinct keys
	Batches  int           // of changes; 0: until stopped
	Interval time.Duration // from one batch to the next
	Mixed    *mix          // instead of batches: everything that can happen to a map
}

func (b *balancer) start(l load) {
	ctx, cancel := context.WithCancel(context.Background())
	b.stop, b.done = cancel, make(chan struct{})
	step := func() error { return b.batch(l.Flows) }
	if l.Mixed != nil {
		r := rand.New(rand.NewPCG(l.Mixed.Seed, uint64(b.node)))
		step = func() error { return b.mixed(l, r) }
	}
	go func() {
		defer close(b.done)
		tick := time.NewTicker(l.Interval)
		defer tick.Stop()
		for n := 0; l.Batches == 0 || n < l.Batches; n++ {
			if err := step(); err != nil {
				b.err = err
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// wait ends the load and returns what went wrong with it. With drain it lets a
// bounded load come to its own end.
func (b *balancer) wait(drain bool) error {
	if b.stop == nil {
		return nil
	}
	if !drain {
		b.stop()
	}
	<-b.done
	b.stop()
	b.stop = nil
	return b.err
}

// batch makes one run of random changes: new flows, changed ones, ended ones.
func (b *balancer) batch(flows int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.feed.Reset()
	for range batchChanges {
		flow := uint32(b.rand.IntN(flows))
		key, value := make([]byte, keySize), make([]byte, valueSize)
		fillKey(key, b.node, flow)
		if _, ok := b.model[flow]; ok && b.rand.IntN(4) == 0 {
			b.feed.Add(table.OpDelete, table.ContextPacket, key, nil)
			delete(b.model, flow)
			continue
		}
		b.next++
		fillValue(value, flow, b.next)
		b.feed.Add(table.OpUpdate, table.ContextPacket, key, value)
		b.model[flow] = flowState{b.next, b.next}
	}
	failed, err := b.feed.Run()
	if err == nil && failed > 0 {
		err = fmt.Errorf("the map refused %d changes", failed)
	}
	return err
}

func fillKey(key []byte, node, flow uint32) {
	binary.LittleEndian.PutUint32(key, node)
	binary.LittleEndian.PutUint32(key[4:], flow)
	for i := 8; i < keySize; i++ {
		key[i] = byte(flow) + byte(i)
	}
}

func fillValue(value []byte, flow uint32, version uint64) {
	binary.LittleEndian.PutUint64(value, version)
	for i := 8; i < valueSize; i++ {
		value[i] = byte(version) ^ byte(flow) ^ byte(i)
	}
}

// content is what a map holds, or should hold.
type content map[string]string

// digest tells contents apart without carrying them about: it does not depend on
// order, and that of two contents without a common key is the sum of theirs.
type digest struct {
	Entries int
	Sum     uint64
}

func (d *digest) add(o digest) {
	d.Entries += o.Entries
	d.Sum += o.Sum
}

func (c content) digest() digest {
	d := digest{Entries: len(c)}
	for key, value := range c {
		d.Sum += xxh3.HashStringSeed(value, xxh3.HashString(key))
	}
	return d
}

// digests are those of one node: of its own flows as they should be, and of what its map
// or its table holds.
type digests struct {
	Expected, Held digest
}

// expected is what this node's flows should look like everywhere.
func (b *balancer) expected() content {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(content, len(b.model))
	for flow, state := range b.model {
		key, value := make([]byte, keySize), make([]byte, valueSize)
		fillKey(key, b.node, flow)
		fillValue(value, flow, state.body)
		binary.LittleEndian.PutUint64(value, state.head)
		c[string(key)] = string(value)
	}
	return c
}

// kernel is what the map really holds.
func (b *balancer) kernel(ctx context.Context) (content, error) {
	c := make(content)
	err := b.read.ForEach(ctx, func(key, value []byte) error {
		c[string(key)] = string(value)
		return nil
	})
	return c, err
}

// dump is the same by bpf(2), read by nothing of the product's.
func (b *balancer) dump() (content, error) {
	c := make(content)
	var key, value []byte
	all := b.m.Iterate()
	for all.Next(&key, &value) {
		c[string(key)] = string(value)
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("dump the map: %w", err)
	}
	return c, nil
}
