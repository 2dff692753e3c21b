package capture_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// Each row of TestFacts does something ten times.
const ten = 10

// scene is what a row works on: a watched map of 8 + 16 bytes with hooks, and
// what it expects of them.
type scene struct {
	testing.TB
	h  *hooked
	m  *ebpf.Map
	id uint32

	want              []change
	seen, failed, own int
}

// expect says that the writes to entries 0 to 9 are seen, and reported unless
// they fail. A kprobe does not see bpf(2).
func (s *scene) expect(op table.Op, context table.Context, version int) {
	if s.h.attach == capture.AttachKprobe && context == table.ContextSyscall {
		return
	}
	s.seen += ten
	for i := range ten {
		key, value := entry(8, 16, i, version+i)
		if op != table.OpUpdate || isPerCPU(s.m) {
			value = nil
		}
		s.want = append(s.want, change{op, context, string(key), string(value)})
	}
}

// fill puts entries 0 to 9 into the map, past the test's account.
func (s *scene) fill() {
	s.Helper()
	for i := range ten {
		key, value := entry(8, 16, i, i)
		if err := putEntry(s.m, key, value); err != nil {
			s.Fatal(err)
		}
	}
	if n := len(keysOf(s, s.m)); n != ten {
		s.Fatalf("%d entries in the map", n)
	}
}

// run has a program make one write to each entry, in process context, and
// returns how many failed.
func (s *scene) run(op dataplane.Op, flags ebpf.MapUpdateFlags, version int) int {
	s.Helper()
	failed, err := s.program(op, flags, version).Run()
	if err != nil {
		s.Fatal(err)
	}
	return failed
}

// receive has packets make one write each.
func (s *scene) receive(op dataplane.Op, version int) {
	s.Helper()
	p := s.program(op, ebpf.UpdateAny, version)
	if err := openReceiver(s, p).Send(p, 0, ten); err != nil {
		s.Fatal(err)
	}
	if p.Done() != ten || p.Failed() != 0 {
		s.Fatalf("packets made %d writes, %d failed", p.Done(), p.Failed())
	}
}

func (s *scene) program(op dataplane.Op, flags ebpf.MapUpdateFlags, version int) *dataplane.Program {
	s.Helper()
	p := openDataPlane(s, s.m, dataplane.Options{Capacity: ten})
	for i := range ten {
		key, value := entry(8, 16, i, version+i)
		p.Add(op, flags, key, value)
	}
	return p
}

// bySyscall has another process do it by bpf(2).
func (s *scene) bySyscall(operation string, version int) {
	s.Helper()
	c := startControl(s, s.m)
	c.do(s, "pin", 0, 0, 0)
	c.do(s, operation, 0, ten, version)
}

// byDaemon applies entries as the daemon does: by its program, where there is one.
func (s *scene) byDaemon(remove bool, version int) {
	s.Helper()
	k, err := kmap.Open(s.m, kmap.Options{OwnWriter: s.h.ownWriter})
	if err != nil {
		s.Fatal(err)
	}
	defer k.Close()
	if (k.Method().Write == kmap.ByProgram) == isPerCPU(s.m) {
		s.Fatalf("writes by %s: %v", k.Method().Write, k.Method().Reason)
	}
	b := k.Batch()
	for i := range ten {
		key, value := entry(8, k.Info().ValueSize, i, version+i)
		if remove {
			value = nil
		}
		if err := b.Add(key, value); err != nil {
			s.Fatal(err)
		}
	}
	if failed, err := k.Apply(b); err != nil || failed != 0 {
		s.Fatal(failed, err)
	}
}

// fact is one row of the table of what hooks see.
type fact struct {
	name    string
	mapType ebpf.MapType // Hash unless given
	entries int          // 64 unless given
	full    bool         // entries 0 to 9 are there at the start
	needs   string       // kernel function without which the row must fail to happen
	act     func(s *scene)
}

// facts are the rows of TestFacts on maps with one value an entry; perCPUFacts are the others.
var facts = slices.Concat(rows("", ebpf.Hash), hashFacts, rows("LRU", ebpf.LRUHash), ownRows("", ebpf.Hash), ownRows("LRU", ebpf.LRUHash))

// hashFacts are rows about the limits of a map.
var hashFacts = []fact{
	{name: "BPF_EXIST on absent keys", act: func(s *scene) {
		s.refused(s.run(dataplane.Update, ebpf.UpdateExist, 500))
	}},
	{name: "update of a full map", entries: 4, act: func(s *scene) {
		p := openDataPlane(s, s.m, dataplane.Options{Capacity: 4})
		for i := range 4 {
			key, value := entry(8, 16, 1000+i, i)
			p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
			s.want = append(s.want, change{table.OpUpdate, table.ContextProcess, string(key), string(value)})
		}
		if failed, err := p.Run(); err != nil || failed != 0 {
			s.Fatal(failed, err)
		}
		s.seen += 4
		s.refused(s.run(dataplane.Update, ebpf.UpdateAny, 500))
	}},
	{name: "delete of absent keys", act: func(s *scene) {
		s.refused(s.run(dataplane.Delete, 0, 0))
	}},
	{name: "bpf(2) deletes a batch", full: true, act: func(s *scene) {
		s.bySyscall("batch-delete", 0)
		s.expect(table.OpDelete, table.ContextSyscall, 0)
	}},
	{name: "own bpf(2) updates", act: func(s *scene) {
		s.fill()
		s.ownBySyscall()
	}},
}

// lookupAndDeletes are the kernel's functions for that, by the type of the map.
var lookupAndDeletes = map[ebpf.MapType]string{
	ebpf.Hash:       "htab_map_lookup_and_delete_elem",
	ebpf.LRUHash:    "htab_lru_map_lookup_and_delete_elem",
	ebpf.PerCPUHash: "htab_percpu_map_lookup_and_delete_elem",
	ebpf.LRUCPUHash: "htab_lru_percpu_map_lookup_and_delete_elem",
}

// rows are what hooks see of the data plane and of bpf(2), the same for all types of maps.
func rows(title string, typ ebpf.MapType) []fact {
	return named(title, typ, []fact{
		{name: "program updates", act: func(s *scene) {
			s.run(dataplane.Update, ebpf.UpdateAny, 100)
			s.expect(table.OpUpdate, table.ContextProcess, 100)
		}},
		{name: "program updates present keys", full: true, act: func(s *scene) {
			s.run(dataplane.Update, ebpf.UpdateExist, 100)
			s.expect(table.OpUpdate, table.ContextProcess, 100)
		}},
		{name: "program deletes", full: true, act: func(s *scene) {
			s.run(dataplane.Delete, 0, 0)
			s.expect(table.OpDelete, table.ContextProcess, 0)
		}},
		{name: "packets update", act: func(s *scene) {
			s.receive(dataplane.Update, 200)
			s.expect(table.OpUpdate, table.ContextPacket, 200)
		}},
		{name: "packets delete", full: true, act: func(s *scene) {
			s.receive(dataplane.Delete, 0)
			s.expect(table.OpDelete, table.ContextPacket, 0)
		}},
		{name: "bpf(2) updates", act: func(s *scene) {
			s.bySyscall("update", 300)
			s.expect(table.OpUpdate, table.ContextSyscall, 300)
		}},
		{name: "bpf(2) deletes", full: true, act: func(s *scene) {
			s.bySyscall("delete", 0)
			s.expect(table.OpDelete, table.ContextSyscall, 0)
		}},
		{name: "bpf(2) updates a batch", act: func(s *scene) {
			s.bySyscall("batch-update", 400)
			s.expect(table.OpUpdate, table.ContextSyscall, 400)
		}},
		{name: "BPF_NOEXIST on present keys", full: true, act: func(s *scene) {
			s.refused(s.run(dataplane.Update, ebpf.UpdateNoExist, 500))
		}},
		{name: "program writes in place", full: true, act: (*scene).inPlace},
		{name: "batch lookup-and-delete", full: true, act: func(s *scene) {
			s.bySyscall("batch-lookup-and-delete", 0)
			if left := keysOf(s, s.m); len(left) != 0 {
				s.Errorf("%d entries left", len(left))
			}
		}},
		{name: "lookup-and-delete", full: true, needs: lookupAndDeletes[typ], act: func(s *scene) {
			s.bySyscall("lookup-and-delete", 0)
			s.expect(table.OpDelete, table.ContextSyscall, 0)
		}},
	})
}

// ownRows are the daemon's own writes, by its program.
func ownRows(title string, typ ebpf.MapType) []fact {
	return named(title, typ, []fact{
		{name: "own program updates", act: func(s *scene) {
			s.byDaemon(false, 700)
			s.seen, s.own = ten, ten
		}},
		{name: "own program deletes", full: true, act: func(s *scene) {
			s.byDaemon(true, 0)
			s.seen, s.own = ten, ten
		}},
	})
}

// named puts rows under a title.
func named(title string, typ ebpf.MapType, rows []fact) []fact {
	for i := range rows {
		rows[i].mapType = typ
		if title != "" {
			rows[i].name = title + ": " + rows[i].name
		}
	}
	return rows
}

// inPlace changes entries through pointers into the map, which no hook sees.
func (s *scene) inPlace() {
	if failed := s.run(dataplane.InPlace, 0, 600); failed != 0 {
		s.Fatalf("%d of ten writes failed", failed)
	}
	if isPerCPU(s.m) {
		return // it is one CPU's value that has changed
	}
	var value [16]byte
	key, want := entry(8, 16, 0, 600)
	if err := s.m.Lookup(key, &value); err != nil || string(value[:8]) != string(want[:8]) {
		s.Fatalf("in place: %x %v", value, err)
	}
}

// ownBySyscall expects ten own writes by bpf(2), which a kprobe does not see.
func (s *scene) ownBySyscall() {
	if s.h.attach == capture.AttachFexit {
		s.seen, s.own = ten, ten
	}
}

func (s *scene) refused(failed int) {
	s.Helper()
	if failed != ten {
		s.Fatalf("the kernel refused %d writes of ten", failed)
	}
	s.seen += ten
	s.failed += ten
}

// TestFacts asserts, row by row, what hooks see of the writes to a map.
func TestFacts(t *testing.T) {
	steer(t, 0)
	for _, attach := range attaches {
		for _, buffer := range []capture.Buffer{capture.BufferRing, capture.BufferPerf} {
			t.Run(string(attach)+"/"+string(buffer), func(t *testing.T) {
				h := openHooks(t, capture.Options{Attach: attach, Buffer: buffer, BufferSize: buffers[buffer]})
				h.tap(t)
				for _, f := range append(facts, perCPUFacts...) {
					t.Run(f.name, func(t *testing.T) { f.test(t, h) })
				}
				t.Run("LRU evicts", func(t *testing.T) { testEviction(t, h, "LRU evicts", ebpf.LRUHash) })
				t.Run("LRU per-CPU evicts", func(t *testing.T) { testEviction(t, h, "LRU per-CPU evicts", ebpf.LRUCPUHash) })
				t.Run("sizes", func(t *testing.T) { testSizes(t, h) })
				if buffer == capture.BufferRing {
					t.Run("filter", func(t *testing.T) { testFilter(t, h) })
					t.Run("filter collision", func(t *testing.T) { testFilterCollision(t, h) })
				}
				ran(t, "facts "+string(buffer), h)
			})
		}
	}
	if !t.Skipped() && len(report.rows) > 0 {
		report.print()
	}
}

func (f *fact) test(t *testing.T, h *hooked) {
	mapType, entries := f.mapType, f.entries
	if mapType == ebpf.UnspecifiedMap {
		mapType = ebpf.Hash
	}
	if entries == 0 {
		entries = 64
	}
	s := &scene{TB: t, h: h}
	s.m, s.id = newHash(t, mapType, 8, 16, entries)
	unpin, err := dataplane.Pin(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unpin()
	if f.full {
		s.fill()
	}
	if f.needs != "" && !has(h, f.needs) {
		checkAbsent(t, s, f)
		return
	}
	h.settle(t)
	if isPerCPU(s.m) {
		h.watchKeys(t, s.m, s.id)
	} else {
		h.watch(t, s.id, 8, 16)
	}
	before := h.Stats()
	f.act(s)
	after := h.Stats()
	h.settle(t)
	got := h.take(s.id)
	compareChanges(t, got, s.want)
	seen, failed, own := after.Seen-before.Seen, after.Failed-before.Failed, after.Own-before.Own
	if seen != uint64(s.seen) || failed != uint64(s.failed) || own != uint64(s.own) {
		t.Errorf("seen %d, failed %d, own %d, want %d, %d, %d", seen, failed, own, s.seen, s.failed, s.own)
	}
	if after.LostReservations != before.LostReservations || after.Malformed != 0 {
		t.Errorf("lost or malformed: %+v", after)
	}
	h.Unwatch(s.id)
	report.add(f.name, h, fmt.Sprintf("%d/%d", len(got), seen))
}

func has(h *hooked, symbol string) bool {
	for _, missing := range h.Missing() {
		if missing == symbol {
			return false
		}
	}
	return true
}

// checkAbsent asserts that what cannot be hooked cannot be done either.
func checkAbsent(t *testing.T, s *scene, f *fact) {
	key, value := entry(8, 16, 0, 0)
	if err := lookupAndDelete(s.m, key, &value); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("%s is not hooked, and the operation says: %v", f.needs, err)
	}
	report.add(f.name, s.h, "not here")
}
