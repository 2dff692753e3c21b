package capture_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// perCPUFacts are rows of TestFacts on maps with a value for each CPU. Events carry
// the key alone, and the daemon writes by bpf(2).
var perCPUFacts = slices.Concat(perCPURows("per-CPU", ebpf.PerCPUHash), perCPURows("LRU per-CPU", ebpf.LRUCPUHash), []fact{
	{name: "per-CPU: update of a full map", mapType: ebpf.PerCPUHash, entries: 10, full: true, act: func(s *scene) {
		p := openDataPlane(s, s.m, dataplane.Options{Capacity: ten})
		for i := range ten {
			key, value := entry(8, 16, 1000+i, i)
			p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		}
		failed, err := p.Run()
		if err != nil {
			s.Fatal(err)
		}
		s.refused(failed)
	}},
})

func perCPURows(title string, typ ebpf.MapType) []fact {
	return append(rows(title, typ), named(title, typ, []fact{
		{name: "own updates", act: func(s *scene) { s.byDaemon(false, 700); s.ownBySyscall() }},
		{name: "own deletes", full: true, act: func(s *scene) { s.byDaemon(true, 0); s.ownBySyscall() }},
	})...)
}

// perCPUScene is a per-CPU map with all that the daemon has around it.
type perCPUScene struct {
	testing.TB
	m      *ebpf.Map
	kernel *kmap.Map
	tab    *table.Table
	peer   table.OwnerID
	// write has a program update or, without a value, delete a key on a CPU.
	write func(cpu int, key, value []byte)
}

const perCPUElem = 12

func newPerCPUScene(t *testing.T, c *capture.Capture, own *ebpf.Map, typ ebpf.MapType) *perCPUScene {
	t.Helper()
	m, id := newHash(t, typ, 8, perCPUElem, 1000)
	h := &hooked{Capture: c}
	s := &perCPUScene{TB: t, m: m, tab: h.watchKeys(t, m, id)}
	k, err := kmap.Open(m, kmap.Options{OwnWriter: own})
	if err != nil {
		t.Fatal(err)
	}
	s.kernel = k
	syncer, err := kmap.NewSyncer(s.tab, k, kmap.SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.tab.Update(func(tx *table.Tx) { s.peer = tx.Intern(table.Owner{Node: "peer", Incarnation: 1}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- syncer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		k.Close()
	})
	return s
}

// awaitRecord waits until the table has the values of all CPUs of a key, nil for a
// key that is gone.
func (s *perCPUScene) awaitRecord(what string, key []byte, values [][]byte) {
	s.Helper()
	var want []byte
	for _, v := range values {
		want = append(want, append(slices.Clone(v), make([]byte, 16-perCPUElem)...)...)
	}
	var rec table.Record
	found := false
	matches := func() (ok bool) {
		s.tab.View(func(tx *table.Tx) {
			found = tx.Get(key, &rec)
			ok = found && rec.Delete == (values == nil) && string(rec.Value) == string(want)
			rec.Value = slices.Clone(rec.Value)
		})
		return ok
	}
	for until := time.Now().Add(20 * time.Second); !matches(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			s.Fatalf("%s: found %v, %x, want %x", what, found, rec.Value, want)
		}
	}
}

// act has every CPU write its own value of some keys, and deletes one.
func (s *perCPUScene) act() {
	cpus := ebpf.MustPossibleCPU()
	for i := range 10 {
		values := make([][]byte, cpus)
		var key []byte
		for cpu := range values {
			values[cpu] = make([]byte, perCPUElem)
			if cpu < runtime.NumCPU() {
				key, values[cpu] = entry(8, perCPUElem, i, 100*i+cpu+1)
				s.write(cpu, key, values[cpu])
			}
		}
		s.awaitRecord(fmt.Sprintf("key %d", i), key, values)
		// One CPU again: the values of the others remain.
		_, values[0] = entry(8, perCPUElem, i, 7777+i)
		s.write(0, key, values[0])
		s.awaitRecord(fmt.Sprintf("key %d, again", i), key, values)
	}
	key, _ := entry(8, perCPUElem, 3, 0)
	s.write(0, key, nil)
	s.awaitRecord("deleted key", key, nil)
}

// receive has a peer send entries, waits until the map has them, and returns them.
func (s *perCPUScene) receive(n int) {
	now := time.Now().UnixNano()
	whole := s.kernel.Info().ValueSize
	s.tab.Update(func(tx *table.Tx) {
		for i := range n {
			key, value := entry(8, whole, 100+i, i)
			d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: s.peer}
			if got := tx.Remote(&d, now, table.RemoteOptions{}); got != table.Accepted {
				s.Error(got)
			}
		}
	})
	eventually(s, "the peer's entries in the map", func() bool { return s.tab.Stats().Dirty == 0 })
	for i := range n {
		key, value := entry(8, whole, 100+i, i)
		var got [][]byte
		if err := s.m.Lookup(key, &got); err != nil {
			s.Fatal(err)
		}
		for cpu, v := range got {
			if string(v) != string(value[16*cpu:][:perCPUElem]) {
				s.Errorf("entry %d, CPU %d: %x, want %x", i, cpu, v, value[16*cpu:][:perCPUElem])
			}
		}
	}
}

// TestPerCPUEntriesAreReadWhole has programs on all CPUs write a per-CPU map, of
// which hooks see one value at a time: the table has them all.
func TestPerCPUEntriesAreReadWhole(t *testing.T) {
	for _, attach := range attaches {
		for _, typ := range []ebpf.MapType{ebpf.PerCPUHash, ebpf.LRUCPUHash} {
			t.Run(fmt.Sprintf("%s/%s", attach, typ), func(t *testing.T) {
				h := openHooks(t, capture.Options{Attach: attach})
				s := newPerCPUScene(t, h.Capture, h.ownWriter, typ)
				runCapture(t, h.Capture)
				s.write = func(cpu int, key, value []byte) {
					p := openDataPlane(s, s.m, dataplane.Options{Capacity: 1})
					if value == nil {
						p.Add(dataplane.Delete, 0, key, nil)
					} else {
						p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
					}
					onCPU(s, cpu, func() error { _, err := p.Run(); return err })
				}
				s.act()
				events := h.Stats().Events
				s.receive(50)
				want := uint64(0)
				if attach == capture.AttachFexit {
					want = 50
				}
				if st := h.Stats(); st.Own != want || st.Events != events || st.Malformed != 0 || st.LostReservations != 0 {
					t.Errorf("own writes: %+v", st)
				}
				ran(t, "per-CPU entries", h)
			})
		}
	}
}

// The same where the kernel allows no hooks.
func TestPerCPUEntriesAreReadWholeByFeed(t *testing.T) {
	c := openNone(t, 1<<20)
	s := newPerCPUScene(t, c, nil, ebpf.PerCPUHash)
	runCapture(t, c)
	f := openFeed(t, s.m, c, 1)
	s.write = func(cpu int, key, value []byte) {
		f.Reset()
		op := table.OpUpdate
		if value == nil {
			op = table.OpDelete
		}
		f.Add(op, table.ContextPacket, key, value)
		onCPU(s, cpu, func() error { _, err := f.Run(); return err })
	}
	s.act()
	s.receive(50)
	if st := c.Stats(); st.Malformed != 0 || st.Lost() != 0 {
		t.Errorf("%+v", st)
	}
}
