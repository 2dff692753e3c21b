package kmap

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

const (
	testKey   = 16
	testValue = 32
)

// syncFixture is a table and a kernel map that a running Syncer keeps in sync.
type syncFixture struct {
	t    *testing.T
	tab  *table.Table
	m    *Map
	sync *Syncer
	stop func()
	peer table.OwnerID
}

func newTable(t *testing.T, o table.Options) *table.Table {
	t.Helper()
	return newSizedTable(t, o, testValue)
}

func newSizedTable(t *testing.T, o table.Options, valueSize int) *table.Table {
	t.Helper()
	o.Self = table.Owner{Node: "here", Incarnation: 2}
	o.KeySize, o.ValueSize = testKey, valueSize
	tab, err := table.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func newSyncFixture(t *testing.T, tab *table.Table, m *Map) *syncFixture {
	t.Helper()
	s, err := NewSyncer(tab, m, SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := &syncFixture{t: t, tab: tab, m: m, sync: s}
	tab.Update(func(tx *table.Tx) { b.peer = tx.Intern(table.Owner{Node: "there", Incarnation: 1}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(b.stop)
	return b
}

// remote applies entries [from, to) of generation g from the peer, or deletes if g < 0.
func (b *syncFixture) remote(from, to, g int) { b.remoteOf(testValue, from, to, g) }

func (b *syncFixture) remoteOf(valueSize, from, to, g int) {
	for at := from; at < to; at += 100 {
		b.tab.Update(func(tx *table.Tx) {
			for n := at; n < min(at+100, to); n++ {
				now := time.Now().UnixNano()
				key, value := entry(n, g, testKey, valueSize)
				d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: b.peer, Delete: g < 0}
				if got := tx.Remote(&d, now, table.RemoteOptions{}); got != table.Accepted {
					b.t.Errorf("apply delta %d: got %s, want accepted", n, got)
				}
			}
		})
	}
}

func (b *syncFixture) local(n, g int, c table.Context) (got table.Outcome) {
	key, value := entry(n, g, testKey, testValue)
	change := table.Change{Key: key, Value: value, Time: time.Now().UnixNano(), Context: c}
	if g < 0 {
		change.Op, change.Value = table.OpDelete, nil
	}
	b.tab.Update(func(tx *table.Tx) { got = tx.Local(&change) })
	return got
}

// record returns the table's record of a key.
func (b *syncFixture) record(n int) (rec table.Record, found bool) {
	key, _ := entry(n, 0, testKey, testValue)
	b.tab.View(func(tx *table.Tx) {
		found = tx.Get(key, &rec)
		rec.Value = bytes.Clone(rec.Value)
	})
	return rec, found
}

// awaitSynced waits until all writes and rereads are done.
func (b *syncFixture) awaitSynced() {
	b.t.Helper()
	poll.Eventually(b.t, "all writes and rereads", func() bool {
		s := b.tab.Stats()
		return s.Dirty == 0 && s.PendingRereads == 0 && s.Applied == s.Head
	})
}

// awaitFailed waits until all writes were attempted, and the given number failed.
func (b *syncFixture) awaitFailed(failed int) {
	b.t.Helper()
	poll.Eventually(b.t, "all writes and the expected failures", func() bool {
		s := b.tab.Stats()
		return s.Dirty == failed && s.Failed == failed
	})
}

func TestSyncerWrites(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, o := range []Options{{}, {Burst: 100}, {NoProgram: true}} {
		b := newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10000)), o))
		b.remote(0, 10000, 1)
		b.awaitSynced()
		checkContent(t, b.m, 0, 10000, 1)
		b.remote(5000, 10000, -1)
		b.remote(0, 5000, 2)
		b.awaitSynced()
		checkContent(t, b.m, 0, 5000, 2)
		s := b.sync.Stats()
		if s.Written < 15000 || s.Deleted != 5000 || s.Bursts == 0 || s.LastBurst <= 0 || s.MaxBurst < s.LastBurst {
			t.Errorf("stats: got %+v, want at least 15000 writes, 5000 deletes, bursts, and 0 < LastBurst <= MaxBurst", s)
		}
		b.stop()
	}
}

// TestSyncerConcurrentChanges changes the same keys repeatedly while the syncer works.
func TestSyncerConcurrentChanges(t *testing.T) {
	b := newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 1000)), Options{}))
	for g := range 50 {
		b.remote(0, 1000, g)
		b.remote(g*10, g*10+10, -1)
		b.remote(g*10, g*10+10, g)
	}
	b.awaitSynced()
	checkContent(t, b.m, 0, 1000, 49)
}

func TestSyncerFullMap(t *testing.T) {
	b := newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 100)), Options{}))
	b.remote(0, 120, 1)
	b.awaitFailed(20)
	if s := b.sync.Stats(); s.FailedFull < 20 || s.FailedOther+s.FailedBusy+s.FailedMemory != 0 {
		t.Errorf("stats: got %+v, want only failures of a full map", s)
	}
	b.remote(0, 20, -1) // with free space, the next retry succeeds
	b.awaitSynced()
	checkContent(t, b.m, 20, 120, 1)
}

// TestSyncerFullMapDisplacesOldest checks that a map that is too small contains the newest entries
// and this node's own entries.
func TestSyncerFullMapDisplacesOldest(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{
		hashSpec(testKey, testValue, 100),
		withFlags(hashSpec(testKey, testValue, 100), unix.BPF_F_NO_PREALLOC),
		withType(hashSpec(testKey, testValue, 100), ebpf.PerCPUHash),
	} {
		t.Run(spec.Type.String(), func(t *testing.T) {
			m := openMap(t, newKernelMap(t, spec), Options{})
			o := table.Options{}
			b := newSyncFixture(t, newSizedTable(t, o, m.Info().ValueSize), m)
			holds := func(from, to int) bool {
				for i := range 300 {
					if rec, ok := b.record(i); (ok && !rec.Dirty) != (i >= from && i < to) {
						return false
					}
				}
				return true
			}
			size := m.Info().ValueSize
			for from := 0; from < 300; from += 50 {
				b.remoteOf(size, from, from+50, 1)
				poll.Eventually(t, "newest records", func() bool { return holds(max(0, from+50-100), from+50) })
				b.awaitFailed(max(0, from+50-100))
			}
			// The kernel map contains the last hundred entries, and no other entries.
			for i := range 300 {
				key, _ := entry(i, 1, testKey, size)
				_, err := m.fromKernel(key)
				if found := err == nil; found != (i >= 200) {
					t.Fatalf("entry %d in the map: got %v, want the opposite", i, found)
				}
			}
			if s := b.sync.Stats(); s.Displaced != 200 {
				t.Errorf("stats: got %+v, want 200 displaced", s)
			}
			// An old record that is updated returns to the map, and the oldest entry is displaced.
			b.remoteOf(size, 7, 8, 2)
			poll.Eventually(t, "the updated record", func() bool { rec, _ := b.record(7); return !rec.Dirty })
			if rec, _ := b.record(200); !rec.Dirty {
				t.Error("the oldest entry: got in the map, want displaced")
			}
			// With free space all records return to the map, oldest failure first.
			b.remoteOf(size, 201, 300, -1)
			b.remoteOf(size, 0, 7, -1)
			b.remoteOf(size, 8, 102, -1)
			b.awaitSynced()
		})
	}
}

// TestSyncerRereads checks that keys requested by the table are reread, and that the kernel map's
// content takes precedence.
func TestSyncerRereads(t *testing.T) {
	b := newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 100)), Options{}))
	b.remote(0, 10, 1)
	b.awaitSynced()

	// The data plane takes over a key of a peer, but the map contains a later value.
	key, value := entry(3, 8, testKey, testValue)
	if err := b.m.m.Put(key, value); err != nil {
		t.Fatal(err)
	}
	if got := b.local(3, 7, table.ContextPacket); got != table.Accepted {
		t.Fatalf("change of a peer's key: got outcome %v, want %v", got, table.Accepted)
	}
	poll.Eventually(t, "the reread value", func() bool {
		rec, _ := b.record(3)
		return bytes.Equal(rec.Value, value)
	})
	// Two CPUs write a key at the same time, and the delete that follows is not reported. Only the
	// map shows the last write.
	key, value = entry(50, 1, testKey, testValue)
	c := table.Change{Key: key, Value: value, Time: time.Now().UnixNano(), CPU: 0}
	later := c
	_, later.Value = entry(50, 2, testKey, testValue)
	later.Time, later.CPU = c.Time+1000, 1
	b.tab.Update(func(tx *table.Tx) {
		if got := [2]table.Outcome{tx.Local(&c), tx.Local(&later)}; got != [2]table.Outcome{} {
			t.Errorf("changes of two CPUs: got outcomes %v, want both %v", got, table.Accepted)
		}
	})
	poll.Eventually(t, "the delete of a reread absent key", func() bool {
		rec, _ := b.record(50)
		return rec.Delete
	})
	// The collector deletes an entry of the peer, which is a local expiry.
	gone, _ := entry(5, 0, testKey, testValue)
	if err := b.m.m.Delete(gone); err != nil {
		t.Fatal(err)
	}
	if got := b.local(5, -1, table.ContextSyscall); got != table.Restored {
		t.Fatalf("local expiry: got outcome %v, want %v", got, table.Restored)
	}
	b.awaitSynced()
	if all := content(t, b.m); len(all) != 10 {
		t.Errorf("entries: got %d, want 10 with the restored one", len(all))
	}
	if s := b.sync.Stats(); s.Rereads == 0 {
		t.Errorf("stats: got %+v, want rereads", s)
	}
}

// TestRereadIsAsOldAsItsBegin: the data plane changes a key while syncd takes the time of a reread. The event of the change has
// an earlier time. Whether the event arrives after the reread or gets lost, the record has the value that the map has.
func TestRereadIsAsOldAsItsBegin(t *testing.T) {
	tab, m := newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10)), Options{})
	var written int64 // time of the change
	key, old := entry(1, 1, testKey, testValue)
	_, value := entry(1, 2, testKey, testValue)
	s, err := NewSyncer(tab, m, SyncerOptions{Now: func() int64 {
		if written == 0 {
			written = time.Now().UnixNano()
			if err := m.m.Put(key, value); err != nil {
				t.Error(err)
			}
		}
		return time.Now().UnixNano()
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.m.Put(key, old); err != nil {
		t.Fatal(err)
	}
	written = -1
	tab.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: key, Value: old, Time: time.Now().UnixNano(), Context: table.ContextPacket})
		tx.RequestReread(key)
	})
	written = 0
	if n, err := s.reread(); n != 1 || err != nil {
		t.Fatalf("reread: got %d keys, error %v, want 1", n, err)
	}
	b := &syncFixture{t: t, tab: tab}
	for _, when := range []string{"after the reread", "after the event of the change"} {
		if rec, _ := b.record(1); !bytes.Equal(rec.Value, value) {
			t.Errorf("value %s: got %x, want %x as in the map", when, rec.Value, value)
		}
		tab.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: key, Value: value, Time: written, Context: table.ContextPacket})
		})
	}
}

// TestSyncerRefill checks that a new kernel map is filled from the table.
func TestSyncerRefill(t *testing.T) {
	tab := newTable(t, table.Options{})
	b := newSyncFixture(t, tab, openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 1000)), Options{}))
	b.remote(0, 1000, 1)
	b.remote(900, 1000, -1)
	b.awaitSynced()
	b.stop()
	tab.Update((*table.Tx).Refill)
	b = newSyncFixture(t, tab, openMap(t, newKernelMap(t, withType(hashSpec(testKey, testValue, 20000), ebpf.LRUHash)), Options{}))
	b.awaitSynced()
	checkContent(t, b.m, 0, 900, 1)
}

func TestSyncerExpiresTombstones(t *testing.T) {
	b := newSyncFixture(t, newTable(t, table.Options{TombstoneTTL: time.Millisecond}),
		openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 2000)), Options{}))
	b.remote(0, 2000, 1)
	b.remote(0, 1000, -1)
	b.awaitSynced()
	poll.Eventually(t, "the expiry of all tombstones", func() bool { return b.tab.Stats().Tombstones == 0 })
	checkContent(t, b.m, 1000, 2000, 1)
}

func TestSyncerRejectsUnusableMaps(t *testing.T) {
	tab := newTable(t, table.Options{})
	_, err := NewSyncer(tab, openMap(t, newKernelMap(t, hashSpec(testKey, 8, 10)), Options{}), SyncerOptions{})
	if err == nil || !strings.Contains(err.Error(), "sizes differ") {
		t.Errorf("NewSyncer: got error %v, want an error with \"sizes differ\"", err)
	}
	// Run returns the error of a map that fails as a whole.
	m := openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10)), Options{NoProgram: true})
	if err := m.m.Freeze(); err != nil {
		t.Fatal(err)
	}
	s, err := NewSyncer(tab, m, SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := &syncFixture{t: t, tab: tab}
	tab.Update(func(tx *table.Tx) { b.peer = tx.Intern(table.Owner{Node: "there", Incarnation: 1}) })
	b.remote(0, 1, 1)
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run on a frozen map: got no error, want an error")
	}
	if st := tab.Stats(); st.Dirty != 1 || st.Applied != 0 {
		t.Errorf("table stats: got %+v, want 1 dirty, applied position 0", st)
	}
}

func TestLoadAll(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{
		hashSpec(testKey, testValue, 5000), lockSpec(testValue, 8, 5000),
	} {
		m := openMap(t, newKernelMap(t, spec), Options{})
		put(t, m, 0, 5000, 1)
		tab := newTable(t, table.Options{})
		n, err := LoadAll(t.Context(), m, tab, now)
		if err != nil || n != 5000 || tab.Stats().Unversioned != 5000 {
			t.Fatalf("load: got %d entries, error %v, stats %+v, want 5000, nil and 5000 unversioned records", n, err, tab.Stats())
		}
		tab.View(func(tx *table.Tx) {
			for n := range 5000 {
				key, value := entry(n, 1, testKey, testValue)
				var rec table.Record
				if !tx.Get(key, &rec) || !bytes.Equal(rec.Value, m.expectedLookup(value)) {
					t.Fatalf("record %d: got value %x, want %x", n, rec.Value, m.expectedLookup(value))
				}
			}
		})
	}
}
