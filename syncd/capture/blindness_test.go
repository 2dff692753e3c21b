package capture_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// blinder is something that a thread of the daemon does at full speed on the CPU
// where packets write the same map.
type blinder struct {
	name string
	// start begins the work and returns what ends it.
	start func(t *testing.T, b *blindScene) (stop func())
}

var blinders = []blinder{
	{"nothing", func(*testing.T, *blindScene) func() { return func() {} }},
	{batchUpdate, func(t *testing.T, b *blindScene) func() {
		return b.repeat(t, func() error { return b.applyAll(b.bySyscall) })
	}},
	{batchLookup, func(t *testing.T, b *blindScene) func() {
		return b.repeat(t, func() error { return readAll(b.bySyscall) })
	}},
	{programUpdates, func(t *testing.T, b *blindScene) func() {
		return b.repeat(t, func() error { return b.applyAll(b.byProgram) })
	}},
	{programApplies, func(t *testing.T, b *blindScene) func() { return b.sync(t) }},
	{"program looks up", func(t *testing.T, b *blindScene) func() {
		return b.repeat(t, func() error { return b.byProgram.Lookup(b.keys, func(int, []byte, []byte, bool) {}) })
	}},
	{"iterator", func(t *testing.T, b *blindScene) func() {
		return b.repeat(t, func() error { return readAll(b.byProgram) })
	}},
}

const (
	batchUpdate    = "bpf(2) batch update"
	batchLookup    = "bpf(2) batch lookup"
	programUpdates = "program updates"
	programApplies = "program applies a peer's deltas"
)

// blindEntries are in the map that packets and the daemon write.
const blindEntries = 2048

type blindScene struct {
	h         *hooked
	m         *ebpf.Map
	table     *table.Table
	byProgram *kmap.Map
	bySyscall *kmap.Map
	packets   *dataplane.Program
	receiver  *dataplane.Receiver
	keys      []byte
	entries   [][2][]byte
	peer      table.OwnerID
	version   table.Version
	calls     atomic.Uint64
	batches   map[*kmap.Map]*kmap.Batch
}

// TestBlindness measures how many of the packets' writes the hooks miss while the
// daemon works on the same map and CPU.
func TestBlindness(t *testing.T) {
	for _, attach := range attaches {
		t.Run(string(attach), func(t *testing.T) {
			steer(t, busyCPU)
			h := openHooks(t, capture.Options{Attach: attach})
			b := newBlindScene(t, h)
			runCapture(t, h.Capture)
			shares := make(map[string]share)
			for _, blinder := range blinders {
				b.measure(t, &blinder, shares)
			}
			checkBlindness(t, h, shares)
			ran(t, "blindness", h)
		})
	}
}

// share is how many of the packets' writes were missed, and how often meanwhile
// the kernel says that it skipped a hook, and the daemon's work was done.
type share struct{ written, missed, skipped, work uint64 }

func (s share) ratio() float64 { return float64(s.missed) / float64(max(s.written, 1)) }

func checkBlindness(t *testing.T, h *hooked, shares map[string]share) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, meanwhile\tpackets' writes\tmissed\tshare\tskipped, by the kernel\tcalls\n", h.attach)
	for _, b := range blinders {
		s := shares[b.name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%.2f %%\t%d\t%d\n", b.name, s.written, s.missed, 100*s.ratio(), s.skipped, s.work)
	}
	w.Flush()
	printKernel(text.String())
	checkSkipped(t, h, shares)
	// The test must be able to see what it says is not there.
	if batch := shares[batchUpdate]; h.attach == capture.AttachKprobe && batch.ratio() < 0.05 {
		t.Errorf("%s hides %d of %d writes only: packets do not interrupt it", batchUpdate, batch.missed, batch.written)
	}
	for _, b := range blinders {
		s := shares[b.name]
		if b.name == batchUpdate || b.name == batchLookup {
			continue
		}
		if s.missed != 0 {
			t.Errorf("%s: %d of %d writes were missed, want none", b.name, s.missed, s.written)
		}
	}
}

// checkSkipped asserts that the kernel's count of skipped runs, where there is one,
// is exactly the writes that were missed. A kprobe is skipped for each bpf(2) write too.
func checkSkipped(t *testing.T, h *hooked, shares map[string]share) {
	counted := h.attach == capture.AttachFexit || kernelAtLeast(6, 7)
	if h.Stats().SkippedCounted != counted {
		t.Errorf("skipped runs are counted: %v, want %v", !counted, counted)
	}
	for name, s := range shares {
		want := s.missed
		if name == batchUpdate && h.attach == capture.AttachKprobe {
			want += s.work * blindEntries
		}
		if !counted {
			want = 0
		}
		if s.skipped != want {
			t.Errorf("%s: the kernel counts %d skipped runs, want %d", name, s.skipped, want)
		}
		if h.attach == capture.AttachFexit && !kernelAtLeast(5, 12) && s.missed != 0 {
			t.Errorf("%s: %d writes missed by a hook that is never skipped", name, s.missed)
		}
	}
}

func newBlindScene(t *testing.T, h *hooked) *blindScene {
	m, id := newHash(t, ebpf.Hash, 48, 176, 4*blindEntries)
	b := &blindScene{h: h, m: m, table: newTable(t, 48, 176), batches: make(map[*kmap.Map]*kmap.Batch)}
	if err := h.Watch(id, b.table); err != nil {
		t.Fatal(err)
	}
	open := func(noProgram bool) *kmap.Map {
		k, err := kmap.Open(m, kmap.Options{OwnWriter: h.ownWriter, NoProgram: noProgram})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		return k
	}
	b.byProgram, b.bySyscall = open(false), open(true)
	if method := b.byProgram.Method(); method.Reason != nil {
		t.Fatal(method.Reason)
	}
	if method := b.bySyscall.Method(); method.Write != kmap.ByBatch || method.Read != kmap.ByBatch {
		t.Fatalf("without programs: %+v", method)
	}
	b.packets = openDataPlane(t, m, dataplane.Options{Capacity: 256, RunWrites: 1, Endless: true, NumberValues: true})
	for i := range 256 {
		key, value := entry(48, 176, i, 0)
		b.packets.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	}
	b.receiver = openReceiver(t, b.packets)
	for i := range blindEntries {
		key, value := entry(48, 176, i+128, 1) // some are the packets' too
		b.keys = append(b.keys, key...)
		b.entries = append(b.entries, [2][]byte{key, value})
	}
	b.table.Update(func(tx *table.Tx) { b.peer = tx.Intern(table.Owner{Node: "peer", Incarnation: 1}) })
	return b
}

// measure floods the map with packets while the daemon does its work, until there
// were enough of both or it takes too long, and adds the outcome to shares.
func (b *blindScene) measure(t *testing.T, work *blinder, shares map[string]share) {
	t.Helper()
	const enough, least = 4000, 200
	before, written, calls := b.h.Stats(), b.packets.Done(), b.calls.Load()
	stop := work.start(t, b)
	stopFlood := b.receiver.Flood(otherCPU, pace)
	for until := time.Now().Add(3 * time.Second); b.packets.Done() < written+enough && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := stopFlood(); err != nil {
		t.Fatal(err)
	}
	b.awaitQuiet(t)
	stop()
	after := b.h.Stats()
	s := share{written: b.packets.Done() - written, skipped: after.Skipped - before.Skipped, work: b.calls.Load() - calls}
	seen := (after.Seen - after.Own) - (before.Seen - before.Own)
	if s.written < least || seen > s.written || b.packets.LastCPU() != busyCPU {
		t.Errorf("%s: packets made %d writes on CPU %d, of which hooks saw %d", work.name, s.written, b.packets.LastCPU(), seen)
	}
	s.missed = s.written - seen
	sum := shares[work.name]
	shares[work.name] = share{
		sum.written + s.written, sum.missed + s.missed, sum.skipped + s.skipped, sum.work + s.work,
	}
}

// awaitQuiet waits until the last packet has been received.
func (b *blindScene) awaitQuiet(t *testing.T) {
	t.Helper()
	last := b.packets.Runs()
	for quiet := 0; quiet < 5; quiet++ {
		time.Sleep(20 * time.Millisecond)
		if now := b.packets.Runs(); now != last {
			last, quiet = now, 0
		}
	}
}

func (b *blindScene) repeat(t *testing.T, work func() error) (stop func()) {
	var w workers
	w.start(t, func() error {
		b.calls.Add(1)
		return work()
	})
	return func() { w.stop(t) }
}

// sync runs the daemon's own loop between a table and the map, on the busy CPU,
// with a peer whose deltas come as fast as the loop can write them.
func (b *blindScene) sync(t *testing.T) (stop func()) {
	syncer, err := kmap.NewSyncer(b.table, b.byProgram, kmap.SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(b.batches, b.byProgram) // the loop uses it
	ctx, cancel := context.WithCancel(t.Context())
	var w workers
	w.start(t, func() error { return syncer.Run(ctx) })
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for ctx.Err() == nil {
			// Entering deltas takes the table's lock, which the loop wants too.
			if b.table.Stats().Dirty < blindEntries/2 {
				b.deltas()
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	return func() {
		w.stopped.Store(true)
		cancel()
		<-fed
		w.stop(t)
		written := syncer.Stats().Written
		b.calls.Add(written / blindEntries)
		if written < 2*blindEntries {
			t.Errorf("the daemon applied %d deltas only", written)
		}
	}
}

// deltas enters one newer version of every entry from the peer.
func (b *blindScene) deltas() {
	now := time.Now().UnixNano()
	b.version = max(b.version, table.Version(now))
	for at := 0; at < len(b.entries); at += 256 {
		b.table.Update(func(tx *table.Tx) {
			for _, e := range b.entries[at : at+256] {
				b.version++
				binary.NativeEndian.PutUint64(e[1][16:], uint64(b.version)) // or there is nothing to write
				tx.Remote(&table.Delta{Key: e[0], Value: e[1], Version: b.version, Owner: b.peer}, now, table.RemoteOptions{})
			}
		})
	}
}

// applyAll writes all entries, which are put together only once.
func (b *blindScene) applyAll(k *kmap.Map) error {
	batch := b.batches[k]
	if batch == nil {
		batch = k.Batch()
		b.batches[k] = batch
		for _, e := range b.entries {
			if err := batch.Add(e[0], e[1]); err != nil {
				return err
			}
		}
	}
	_, err := k.Apply(batch)
	return err
}

func readAll(k *kmap.Map) error {
	return k.ForEach(context.Background(), func(_, _ []byte) error { return nil })
}
