package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/injector"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// Sizes of the connection-tracking map, in bytes and entries, as in LoxiLB.
const (
	keySize    = 48
	valueSize  = 176
	maxEntries = 1 << 18
)

// batchChanges is the number of changes in one run of the data plane.
const batchChanges = 256

// mapSettings are the properties of a load balancer's map.
type mapSettings struct {
	LRU       bool
	Entries   uint32 // capacity; 0: maxEntries
	ValueSize uint32 // in bytes; 0: valueSize. A node with another value size gets no load.
	Name      string // name in the nodes' configuration; empty: ct
	Links     bool   // the last bytes of a value are the index of an interface, by the map's BTF
}

// flowState is the expected state of a flow's entry. A change in place writes a new head.
type flowState struct{ head, body uint64 }

// balancer is a load balancer's data plane. It writes its own flows into its map and stores the
// state that it wrote, which is the expected state of the test. It continues while its syncd is
// dead.
type balancer struct {
	node uint32
	m    *ebpf.Map
	read *kmap.Map

	mu            sync.Mutex // protects the fields below; held while the data plane runs
	injector      *injector.Injector
	unreported    *dataplane.Program   // makes writes that are not reported without hooks
	expectedFlows map[uint32]flowState // by flow; a missing flow is deleted
	next          uint64               // last version that was used
	rand          *rand.Rand
	stable        *stableReader // nil without stable flows

	stop context.CancelFunc
	done chan struct{}
	err  error
}

// newBalancer creates the map. Hooks report its changes until report is called.
func newBalancer(node uint32, name string, o mapSettings) (*balancer, error) {
	kind := ebpf.Hash
	if o.LRU {
		kind = ebpf.LRUHash
	}
	spec := &ebpf.MapSpec{
		Name: name, Type: kind, KeySize: keySize, ValueSize: cmp.Or(o.ValueSize, valueSize),
		MaxEntries: cmp.Or(o.Entries, maxEntries),
	}
	if o.Links {
		spec.Key, spec.Value = linkTypes()
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create the load balancer's map: %w", err)
	}
	read, err := kmap.Open(m, kmap.Options{})
	if err != nil {
		return nil, fmt.Errorf("open the load balancer's map: %w", err)
	}
	b := &balancer{
		node: node, m: m, read: read,
		expectedFlows: make(map[uint32]flowState), rand: rand.New(rand.NewPCG(uint64(node), 1)),
	}
	b.injector, err = injector.Open(m, nil, injector.Options{Capacity: batchChanges, SkipEvent: true})
	if err == nil {
		b.unreported, err = dataplane.Open(m, dataplane.Options{Capacity: batchChanges, RunWrites: 16})
	}
	return b, err
}

// report makes the data plane report every later change to the capture that owns the shared maps.
func (b *balancer) report(shared map[string]*ebpf.Map) error {
	next, err := injector.Open(b.m, shared, injector.Options{Capacity: batchChanges})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.injector
	b.injector = next
	return old.Close()
}

// load is the work of the data plane until it is stopped.
type load struct {
	Flows     int           // distinct keys
	Batches   int           // of changes; 0: unlimited, until stopped
	Interval  time.Duration // from one batch to the next
	MixedLoad *mixedLoad    // replaces the batches: every kind of change to a map
	Stable    stableLoad    // in addition
}

func (b *balancer) start(l load) error {
	step := func() error { return b.batch(l.Flows) }
	if l.MixedLoad != nil {
		r := rand.New(rand.NewPCG(l.MixedLoad.Seed, uint64(b.node)))
		step = func() error { return b.mixedStep(l, r) }
	}
	if l.Stable.Flows > 0 {
		if err := b.startStable(l.Stable); err != nil {
			return err
		}
		other, stable := step, newStableChanges(l.Stable, b.node)
		step = func() error { return errors.Join(other(), stable.step(b)) }
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop, b.done = cancel, make(chan struct{})
	go func() {
		defer close(b.done)
		b.err = l.run(ctx, step)
	}()
	return nil
}

// run makes the steps of the load until ctx ends.
func (l *load) run(ctx context.Context, step func() error) error {
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	for n := 0; l.Batches == 0 || n < l.Batches; n++ {
		if err := step(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// wait stops the load and returns its error. With drain it waits until a bounded load completes.
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

// batch makes one run of random changes: it adds, updates and deletes flows.
func (b *balancer) batch(flows int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.injector.Reset()
	for range batchChanges {
		flow := uint32(b.rand.IntN(flows))
		key, value := make([]byte, keySize), make([]byte, valueSize)
		fillKey(key, b.node, flow)
		if _, ok := b.expectedFlows[flow]; ok && b.rand.IntN(4) == 0 {
			b.injector.Add(table.OpDelete, table.ContextPacket, key, nil)
			delete(b.expectedFlows, flow)
			continue
		}
		b.next++
		fillValue(value, flow, b.next)
		b.injector.Add(table.OpUpdate, table.ContextPacket, key, value)
		b.expectedFlows[flow] = flowState{b.next, b.next}
	}
	return b.run(false)
}

// run makes the injector's changes. The map may refuse changes if refusals is set:
// deletes of missing keys, and updates of a full LRU map. A locked bucket repeats all changes: their
// result does not depend on the number of runs.
func (b *balancer) run(refusals bool) error {
	return untilUnlocked(func() (refused error) {
		if _, err := b.injector.Run(); err != nil {
			return err
		}
		for i := range b.injector.Len() {
			err := b.injector.Result(i)
			if lockedBucket(err) {
				refusals = true // the next run deletes keys that this one has deleted
				return err
			}
			if err != nil && !refusals && refused == nil {
				refused = fmt.Errorf("change %d of %d at %v: %w", i, b.injector.Len(), time.Now().UTC(), err)
			}
		}
		return refused
	})
}

// maxLockedTries is the number of times that a change finds its bucket locked before the load gives up.
const maxLockedTries = 10

// untilUnlocked repeats a change of the map while its bucket is locked. On kernels since 6.15 the map
// refuses a change after waiting for 250 ms, which happens if the host stops a virtual CPU that holds
// the lock.
func untilUnlocked(change func() error) (err error) {
	for range maxLockedTries {
		if err = change(); !lockedBucket(err) {
			break
		}
	}
	return err
}

func lockedBucket(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && kmap.LockedBucket(errno)
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
	binary.NativeEndian.PutUint32(value[valueSize-linkSize:], flow%2*linkIndex)
}

// content is the entries of a map, actual or expected.
type content map[string]string

// digest identifies contents without storing them. It does not depend on the order of entries. The
// digest of two contents without a common key is the sum of their digests.
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

// digests are those of one node. Expected covers its own flows. Held covers its kernel map or its
// table.
type digests struct {
	Expected, Held digest
}

// expected returns the entries that this node's flows should have on all nodes.
func (b *balancer) expected() content {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(content, len(b.expectedFlows))
	for flow, state := range b.expectedFlows {
		key, value := make([]byte, keySize), make([]byte, valueSize)
		fillKey(key, b.node, flow)
		fillValue(value, flow, state.body)
		binary.LittleEndian.PutUint64(value, state.head)
		c[string(key)] = string(value)
	}
	return c
}

// missing returns the number of own flows whose entry in the kernel map is missing or differs.
func (b *balancer) missing() (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := make([]byte, keySize)
	for flow, state := range b.expectedFlows {
		fillKey(key, b.node, flow)
		value, err := b.m.LookupBytes(key)
		if err != nil {
			return 0, fmt.Errorf("look up flow %d: %w", flow, err)
		}
		if value == nil || binary.LittleEndian.Uint64(value) != state.head {
			n++
		}
	}
	return n, nil
}

// kernel returns the entries of the kernel map, read with the product's code.
func (b *balancer) kernel(ctx context.Context) (content, error) {
	c := make(content)
	err := b.read.ForEach(ctx, func(key, value []byte) error {
		c[string(key)] = string(value)
		return nil
	})
	return c, err
}

// dump returns the entries of the kernel map, read by bpf(2) without the product's code.
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
