package capture_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// perCPUCases are the rows of TestHookEvents on per-CPU maps. Events carry only the key, and syncd
// writes by bpf(2).
var perCPUCases = slices.Concat(perCPUCasesOf("per-CPU", ebpf.PerCPUHash), perCPUCasesOf("LRU per-CPU", ebpf.LRUCPUHash), []hookCase{
	{name: "per-CPU: update of a full map", mapType: ebpf.PerCPUHash, entries: 10, full: true, act: func(s *hookFixture) {
		p := openDataPlane(s, s.m, dataplane.Options{Capacity: caseWrites})
		for i := range caseWrites {
			key, value := entry(8, 16, 1000+i, i)
			p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		}
		failed, err := p.Run()
		if err != nil {
			s.Fatal(err)
		}
		s.expectFailed(failed)
	}},
})

func perCPUCasesOf(title string, typ ebpf.MapType) []hookCase {
	return append(commonCases(title, typ), withTitle(title, typ, []hookCase{
		{name: "own updates", act: func(s *hookFixture) { s.byDaemon(false, 700); s.ownBySyscall() }},
		{name: "own deletes", full: true, act: func(s *hookFixture) { s.byDaemon(true, 0); s.ownBySyscall() }},
	})...)
}

// perCPUFixture is a per-CPU map with the table, the kmap.Map and the syncer of syncd.
type perCPUFixture struct {
	testing.TB
	m      *ebpf.Map
	kernel *kmap.Map
	tab    *table.Table
	peer   table.OwnerID
	// write makes a program update a key on a CPU, or delete it if value is nil.
	write func(cpu int, key, value []byte)
}

const perCPUElem = 12

func newPerCPUFixture(t *testing.T, c *capture.Capture, own *ebpf.Map, typ ebpf.MapType) *perCPUFixture {
	t.Helper()
	m, id := newHash(t, typ, 8, perCPUElem, 1000)
	h := &hookedCapture{Capture: c}
	s := &perCPUFixture{TB: t, m: m, tab: h.watchKeys(t, m, id)}
	k, err := kmap.Open(m, kmap.Options{OwnWriteMarks: own})
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

// awaitRecord waits until the table has the values of all CPUs of a key. values is nil for a
// deleted key.
func (s *perCPUFixture) awaitRecord(what string, key []byte, values [][]byte) {
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
	poll.Eventually(s, "record of "+what, matches, func() any {
		return fmt.Sprintf("got found %v, value %x, want value %x", found, rec.Value, want)
	})
}

// checkAllCPUs makes every CPU write its own value of some keys, and then deletes one key.
func (s *perCPUFixture) checkAllCPUs() {
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
		// One CPU writes again: the values of the other CPUs remain.
		_, values[0] = entry(8, perCPUElem, i, 7777+i)
		s.write(0, key, values[0])
		s.awaitRecord(fmt.Sprintf("key %d, second write", i), key, values)
	}
	key, _ := entry(8, perCPUElem, 3, 0)
	s.write(0, key, nil)
	s.awaitRecord("deleted key", key, nil)
}

// receive adds entries from a peer to the table, waits until the map contains them, and checks
// their values.
func (s *perCPUFixture) receive(n int) {
	now := time.Now().UnixNano()
	whole := s.kernel.Info().ValueSize
	s.tab.Update(func(tx *table.Tx) {
		for i := range n {
			key, value := entry(8, whole, 100+i, i)
			d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: s.peer}
			if got := tx.Remote(&d, now, table.RemoteOptions{}); got != table.Accepted {
				s.Errorf("delta of the peer: got outcome %v, want %v", got, table.Accepted)
			}
		}
	})
	poll.Eventually(s, "the peer's entries in the map", func() bool { return s.tab.Stats().Dirty == 0 })
	for i := range n {
		key, value := entry(8, whole, 100+i, i)
		var got [][]byte
		if err := s.m.Lookup(key, &got); err != nil {
			s.Fatal(err)
		}
		for cpu, v := range got {
			if string(v) != string(value[16*cpu:][:perCPUElem]) {
				s.Errorf("value of entry %d on CPU %d: got %x, want %x",
					i, cpu, v, value[16*cpu:][:perCPUElem])
			}
		}
	}
}

// TestPerCPUUpdateRereadsAllCPUs makes programs on all CPUs write a per-CPU map. Hooks see the
// value of one CPU at a time, and the table must have the values of all CPUs.
func TestPerCPUUpdateRereadsAllCPUs(t *testing.T) {
	for _, attach := range attaches {
		for _, typ := range []ebpf.MapType{ebpf.PerCPUHash, ebpf.LRUCPUHash} {
			t.Run(fmt.Sprintf("%s/%s", attach, typ), func(t *testing.T) {
				h := openHooks(t, capture.Options{Attach: attach})
				s := newPerCPUFixture(t, h.Capture, h.ownWriteMarks, typ)
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
				s.checkAllCPUs()
				events := h.Stats().Events
				s.receive(50)
				want := uint64(0)
				if attach == capture.AttachFexit {
					want = 50
				}
				if st := h.Stats(); st.Own != want || st.Events != events || st.Malformed != 0 || st.LostReservations != 0 {
					t.Errorf("stats after own writes: got %+v, want no further events and no losses", st)
				}
				markRan(t, "per-CPU entries", h)
			})
		}
	}
}

// TestPerCPUUpdateRereadsAllCPUsWithoutHooks is the same test for kernels that allow no hooks.
func TestPerCPUUpdateRereadsAllCPUsWithoutHooks(t *testing.T) {
	c := openNone(t, 1<<20)
	s := newPerCPUFixture(t, c, nil, ebpf.PerCPUHash)
	runCapture(t, c)
	f := openInjector(t, s.m, c, 1)
	s.write = func(cpu int, key, value []byte) {
		f.Reset()
		op := table.OpUpdate
		if value == nil {
			op = table.OpDelete
		}
		f.Add(op, table.ContextPacket, key, value)
		onCPU(s, cpu, func() error { _, err := f.Run(); return err })
	}
	s.checkAllCPUs()
	s.receive(50)
	if st := c.Stats(); st.Malformed != 0 || st.Lost() != 0 {
		t.Errorf("stats: got %+v, want no losses and no malformed events", st)
	}
}
