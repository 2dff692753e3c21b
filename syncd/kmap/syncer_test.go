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

	"mapsync/syncd/table"
)

const (
	testKey   = 16
	testValue = 32
)

// bound is a table and a kernel map kept together by a running Syncer.
type bound struct {
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

func bind(t *testing.T, tab *table.Table, m *Map) *bound {
	t.Helper()
	s, err := NewSyncer(tab, m, SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bound{t: t, tab: tab, m: m, sync: s}
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

// remote has the peer send entries [from, to) of generation g, deletes for g < 0.
func (b *bound) remote(from, to, g int) { b.remoteOf(testValue, from, to, g) }

func (b *bound) remoteOf(valueSize, from, to, g int) {
	for at := from; at < to; at += 100 {
		b.tab.Update(func(tx *table.Tx) {
			for n := at; n < min(at+100, to); n++ {
				now := time.Now().UnixNano()
				key, value := entry(n, g, testKey, valueSize)
				d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: b.peer, Delete: g < 0}
				if got := tx.Remote(&d, now, table.RemoteOptions{}); got != table.Accepted {
					b.t.Errorf("delta %d: %s", n, got)
				}
			}
		})
	}
}

func (b *bound) local(n, g int, c table.Context) (got table.Outcome) {
	key, value := entry(n, g, testKey, testValue)
	change := table.Change{Key: key, Value: value, Time: time.Now().UnixNano(), Context: c}
	if g < 0 {
		change.Op, change.Value = table.OpDelete, nil
	}
	b.tab.Update(func(tx *table.Tx) { got = tx.Local(&change) })
	return got
}

// record returns what the table holds of a key.
func (b *bound) record(n int) (rec table.Record, found bool) {
	key, _ := entry(n, 0, testKey, testValue)
	b.tab.View(func(tx *table.Tx) {
		found = tx.Get(key, &rec)
		rec.Value = bytes.Clone(rec.Value)
	})
	return rec, found
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// settled waits until all is written and read again.
func (b *bound) settled() {
	b.t.Helper()
	eventually(b.t, "settle", func() bool {
		s := b.tab.Stats()
		return s.Dirty == 0 && s.Rechecks == 0 && s.Applied == s.Head
	})
}

// settledBut waits until all is tried, and some failed.
func (b *bound) settledBut(failed int) {
	b.t.Helper()
	eventually(b.t, "settle with failures", func() bool {
		s := b.tab.Stats()
		return s.Dirty == failed && s.Failed == failed
	})
}

func TestSyncerWrites(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, o := range []Options{{}, {Burst: 100}, {NoProgram: true}} {
		b := bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10000)), o))
		b.remote(0, 10000, 1)
		b.settled()
		checkContent(t, b.m, 0, 10000, 1)
		b.remote(5000, 10000, -1)
		b.remote(0, 5000, 2)
		b.settled()
		checkContent(t, b.m, 0, 5000, 2)
		s := b.sync.Stats()
		if s.Written < 15000 || s.Deleted != 5000 || s.Bursts == 0 || s.LastBurst <= 0 || s.MaxBurst < s.LastBurst {
			t.Errorf("%+v", s)
		}
		b.stop()
	}
}

// Changes that come while the writer works, again and again to the same keys.
func TestSyncerUnderChange(t *testing.T) {
	b := bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 1000)), Options{}))
	for g := range 50 {
		b.remote(0, 1000, g)
		b.remote(g*10, g*10+10, -1)
		b.remote(g*10, g*10+10, g)
	}
	b.settled()
	checkContent(t, b.m, 0, 1000, 49)
}

func TestSyncerFullMap(t *testing.T) {
	b := bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 100)), Options{}))
	b.remote(0, 120, 1)
	b.settledBut(20)
	if s := b.sync.Stats(); s.FailedFull < 20 || s.FailedOther+s.FailedBusy+s.FailedMemory != 0 {
		t.Errorf("%+v", s)
	}
	b.remote(0, 20, -1) // there is room again: the next try succeeds
	b.settled()
	checkContent(t, b.m, 20, 120, 1)
}

// A map that is too small holds the newest, and this node's own.
func TestSyncerFullMapHoldsTheNewest(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{
		hashSpec(testKey, testValue, 100),
		withFlags(hashSpec(testKey, testValue, 100), unix.BPF_F_NO_PREALLOC),
		withType(hashSpec(testKey, testValue, 100), ebpf.PerCPUHash),
	} {
		t.Run(spec.Type.String(), func(t *testing.T) {
			m := openMap(t, newKernelMap(t, spec), Options{})
			o := table.Options{}
			b := bind(t, newSizedTable(t, o, m.Info().ValueSize), m)
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
				eventually(t, "the newest are said to be in the map", func() bool { return holds(max(0, from+50-100), from+50) })
				b.settledBut(max(0, from+50-100))
			}
			// The last hundred, and nothing else: in the kernel, by its own word.
			for i := range 300 {
				key, _ := entry(i, 1, testKey, size)
				_, err := m.fromKernel(key)
				if found := err == nil; found != (i >= 200) {
					t.Fatalf("entry %d is in the map: %v", i, found)
				}
			}
			if s := b.sync.Stats(); s.Displaced != 200 {
				t.Errorf("%+v", s)
			}
			// An old one that is used again comes back, and the then oldest goes.
			b.remoteOf(size, 7, 8, 2)
			eventually(t, "used again", func() bool { rec, _ := b.record(7); return !rec.Dirty })
			if rec, _ := b.record(200); !rec.Dirty {
				t.Error("the oldest is still there")
			}
			// With room again all come back, oldest failure first.
			b.remoteOf(size, 201, 300, -1)
			b.remoteOf(size, 0, 7, -1)
			b.remoteOf(size, 8, 102, -1)
			b.settled()
		})
	}
}

// What the table is unsure of is read again: the kernel has the last word.
func TestSyncerRechecks(t *testing.T) {
	b := bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 100)), Options{}))
	b.remote(0, 10, 1)
	b.settled()

	// The data plane takes a peer's key over, but the map holds a later content.
	key, value := entry(3, 8, testKey, testValue)
	if err := b.m.m.Put(key, value); err != nil {
		t.Fatal(err)
	}
	if got := b.local(3, 7, table.ContextPacket); got != table.Accepted {
		t.Fatal(got)
	}
	eventually(t, "recheck", func() bool {
		rec, _ := b.record(3)
		return bytes.Equal(rec.Value, value)
	})
	// Two CPUs write a key at once, and its deletion in between is seen by nobody:
	// whose write came last only the map tells.
	key, value = entry(50, 1, testKey, testValue)
	c := table.Change{Key: key, Value: value, Time: time.Now().UnixNano(), CPU: 0}
	later := c
	_, later.Value = entry(50, 2, testKey, testValue)
	later.Time, later.CPU = c.Time+1000, 1
	b.tab.Update(func(tx *table.Tx) {
		if got := [2]table.Outcome{tx.Local(&c), tx.Local(&later)}; got != [2]table.Outcome{} {
			t.Error(got)
		}
	})
	eventually(t, "recheck of an absent key", func() bool {
		rec, _ := b.record(50)
		return rec.Delete
	})
	// The collector deletes what the peer owns: that is a local expiry.
	gone, _ := entry(5, 0, testKey, testValue)
	if err := b.m.m.Delete(gone); err != nil {
		t.Fatal(err)
	}
	if got := b.local(5, -1, table.ContextSyscall); got != table.Restored {
		t.Fatal(got)
	}
	b.settled()
	if all := content(t, b.m); len(all) != 10 {
		t.Errorf("%d entries, want the restored one too", len(all))
	}
	if s := b.sync.Stats(); s.Rechecks == 0 {
		t.Errorf("%+v", s)
	}
}

// A new kernel map is filled from the table.
func TestSyncerRefill(t *testing.T) {
	tab := newTable(t, table.Options{})
	b := bind(t, tab, openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 1000)), Options{}))
	b.remote(0, 1000, 1)
	b.remote(900, 1000, -1)
	b.settled()
	b.stop()
	tab.Update((*table.Tx).Refill)
	b = bind(t, tab, openMap(t, newKernelMap(t, withType(hashSpec(testKey, testValue, 20000), ebpf.LRUHash)), Options{}))
	b.settled()
	checkContent(t, b.m, 0, 900, 1)
}

func TestSyncerExpires(t *testing.T) {
	b := bind(t, newTable(t, table.Options{TombstoneTTL: time.Millisecond}),
		openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 2000)), Options{}))
	b.remote(0, 2000, 1)
	b.remote(0, 1000, -1)
	b.settled()
	eventually(t, "expiry", func() bool { return b.tab.Stats().Tombstones == 0 })
	checkContent(t, b.m, 1000, 2000, 1)
}

func TestSyncerRefuses(t *testing.T) {
	tab := newTable(t, table.Options{})
	_, err := NewSyncer(tab, openMap(t, newKernelMap(t, hashSpec(testKey, 8, 10)), Options{}), SyncerOptions{})
	if err == nil || !strings.Contains(err.Error(), "sizes differ") {
		t.Error(err)
	}
	// A map that fails as a whole ends Run with its error.
	m := openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10)), Options{NoProgram: true})
	if err := m.m.Freeze(); err != nil {
		t.Fatal(err)
	}
	s, err := NewSyncer(tab, m, SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bound{t: t, tab: tab}
	tab.Update(func(tx *table.Tx) { b.peer = tx.Intern(table.Owner{Node: "there", Incarnation: 1}) })
	b.remote(0, 1, 1)
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run ended without an error")
	}
	if st := tab.Stats(); st.Dirty != 1 || st.Applied != 0 {
		t.Errorf("%+v", st)
	}
}

func TestLoadAll(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{
		hashSpec(testKey, testValue, 5000), lockSpec(testValue, 8, 5000),
	} {
		m := openMap(t, newKernelMap(t, spec), Options{})
		put(t, m, 0, 5000, 1)
		tab := newTable(t, table.Options{})
		n, err := LoadAll(t.Context(), m, tab)
		if err != nil || n != 5000 || tab.Stats().Unversioned != 5000 {
			t.Fatalf("%d loaded, %v, %+v", n, err, tab.Stats())
		}
		tab.View(func(tx *table.Tx) {
			for n := range 5000 {
				key, value := entry(n, 1, testKey, testValue)
				var rec table.Record
				if !tx.Get(key, &rec) || !bytes.Equal(rec.Value, m.seen(value)) {
					t.Fatalf("entry %d: %x", n, rec.Value)
				}
			}
		})
	}
}
