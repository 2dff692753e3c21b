package capture_test

import (
	"slices"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// caseWrites is the number of writes in each row of TestHookEvents.
const caseWrites = 10

// hookFixture is the environment of a row: a watched map of 8 + 16 bytes, or an array, with hooks, and the
// expected events and counters.
type hookFixture struct {
	testing.TB
	h  *hookedCapture
	m  *ebpf.Map
	id uint32

	want              []change
	seen, failed, own int
	calls             int // of bpf(2)
}

// expect adds the writes to entries 0 to 9 to the expected events. With kprobe, only the keys of bpf(2)
// calls are reported.
func (s *hookFixture) expect(op table.Op, context table.Context, version int) {
	if s.h.attach == capture.AttachKprobe && context == table.ContextSyscall && op < capture.OpKeys {
		op = capture.OpKeys + op - table.OpUpdate
	}
	if op == capture.OpKeys || op == capture.OpDeletedKeys {
		s.seen += s.calls
	} else {
		s.seen += caseWrites
	}
	for i := range caseWrites {
		key, value := s.entry(i, version+i)
		if op != table.OpUpdate || keysOnly(s.m) {
			value = nil
		}
		s.want = append(s.want, change{op, context, string(key), string(value)})
	}
}

// entry returns an entry of 16 bytes. In an array, n is its index.
func (s *hookFixture) entry(n, version int) (key, value []byte) {
	return entry(int(s.m.KeySize()), 16, n, version)
}

// fill puts entries 0 to 9 into the map, before the test watches it or counts.
func (s *hookFixture) fill() {
	s.Helper()
	for i := range caseWrites {
		key, value := s.entry(i, i)
		if err := putEntry(s.m, key, value); err != nil {
			s.Fatal(err)
		}
	}
	if n := len(keysOf(s, s.m)); n != caseWrites && !kmap.IsArray(s.m.Type()) {
		s.Fatalf("entries in the map: got %d, want 10", n)
	}
}

// run makes a program write to each entry once, in process context, and returns the number of
// failed writes.
func (s *hookFixture) run(op dataplane.Op, flags ebpf.MapUpdateFlags, version int) int {
	s.Helper()
	failed, err := s.program(op, flags, version).Run()
	if err != nil {
		s.Fatal(err)
	}
	return failed
}

// receive makes packets write to each entry once.
func (s *hookFixture) receive(op dataplane.Op, version int) {
	s.Helper()
	p := s.program(op, ebpf.UpdateAny, version)
	if err := openReceiver(s, p).Send(p, 0, caseWrites); err != nil {
		s.Fatal(err)
	}
	if p.Done() != caseWrites || p.Failed() != 0 {
		s.Fatalf("writes by packets: got %d writes, %d failures, want 10 writes, 0 failures",
			p.Done(), p.Failed())
	}
}

// scheduled makes a program that the kernel calls write to each entry once.
func (s *hookFixture) scheduled(run func(*dataplane.Program) error, op dataplane.Op, version int) {
	s.Helper()
	p := s.programOf(op, ebpf.UpdateAny, version, caseWrites)
	if err := run(p); err != nil || p.Done() != caseWrites || p.Failed() != 0 {
		s.Fatalf("scheduled writes: got %d writes, %d failures, error %v, want 10 writes", p.Done(), p.Failed(), err)
	}
}

func (s *hookFixture) program(op dataplane.Op, flags ebpf.MapUpdateFlags, version int) *dataplane.Program {
	s.Helper()
	return s.programOf(op, flags, version, 1)
}

func (s *hookFixture) programOf(op dataplane.Op, flags ebpf.MapUpdateFlags, version, runWrites int) *dataplane.Program {
	s.Helper()
	p := openDataPlane(s, s.m, dataplane.Options{Capacity: caseWrites, RunWrites: runWrites})
	for i := range caseWrites {
		key, value := s.entry(i, version+i)
		p.Add(op, flags, key, value)
	}
	return p
}

// bySyscall makes another process run the operation by bpf(2).
func (s *hookFixture) bySyscall(operation string, version int) {
	s.Helper()
	c := startControl(s, s.m)
	c.do(s, "pin", 0, 0, 0)
	c.do(s, operation, 0, caseWrites, version)
	s.calls = caseWrites
	if strings.HasPrefix(operation, "batch") {
		s.calls = 1
	}
}

// byDaemon writes or removes entries like syncd: by its program, or by bpf(2) for a per-CPU map.
func (s *hookFixture) byDaemon(remove bool, version int) {
	s.Helper()
	k, err := kmap.Open(s.m, kmap.Options{OwnWriteMarks: s.h.ownWriteMarks})
	if err != nil {
		s.Fatal(err)
	}
	defer k.Close()
	if (k.AccessMethods().Write == kmap.ByProgram) == isPerCPU(s.m) {
		s.Fatalf("access method: got writes by %s (%v), want programs except for per-CPU maps",
			k.AccessMethods().Write, k.AccessMethods().Reason)
	}
	b := k.Batch()
	for i := range caseWrites {
		key, value := entry(k.Info().KeySize, k.Info().ValueSize, i, version+i)
		if remove {
			value = nil
		}
		if err := b.Add(key, value); err != nil {
			s.Fatal(err)
		}
	}
	if failed, err := k.Apply(b); err != nil || failed != 0 {
		s.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
	}
}

// hookCase is one row of the table of hook events.
type hookCase struct {
	name    string
	mapType ebpf.MapType // default: Hash
	entries int          // default: 64
	full    bool         // entries 0 to 9 are present at the start
	// interrupts is true if the writes interrupt a CPU anywhere. A kprobe misses them inside another one.
	interrupts bool
	needs      string // kernel function; without it the operation must be unsupported
	writer     string // of testdata/detected_writes.txt; rows of HASH maps only
	// supported returns ebpf.ErrNotSupported, wrapped, if the kernel has no such writer. nil: it has.
	supported func() error
	act       func(s *hookFixture)
}

// hookCases are the rows of TestHookEvents on maps with one value per entry. perCPUCases are the
// rows on per-CPU maps.
var hookCases = slices.Concat(withWriters(commonCases("", ebpf.Hash)), withWriters(hashCases), commonCases("LRU", ebpf.LRUHash),
	ownWriteCases("", ebpf.Hash), ownWriteCases("LRU", ebpf.LRUHash))

// writers are the names of rows of HASH maps in testdata/detected_writes.txt.
var writers = map[string]string{
	"program updates":         "update by a program, in a process",
	"program deletes":         "delete by a program, in a process",
	"packets update":          "update by a program, in a packet",
	"packets delete":          "delete by a program, in a packet",
	"timer updates":           "update by a timer's callback",
	"timer deletes":           "delete by a timer's callback",
	"iterator updates":        "update by an iterator",
	"iterator deletes":        "delete by an iterator",
	"bpf(2) updates":          "update by bpf(2), single",
	"bpf(2) deletes":          "delete by bpf(2), single",
	"bpf(2) updates a batch":  "update by bpf(2), batch",
	"bpf(2) deletes a batch":  "delete by bpf(2), batch",
	"lookup-and-delete":       "lookup-and-delete by bpf(2), single",
	"batch lookup-and-delete": "lookup-and-delete by bpf(2), batch",
	"program writes in place": "change in place",
}

func withWriters(rows []hookCase) []hookCase {
	for i := range rows {
		rows[i].writer = writers[rows[i].name]
	}
	return rows
}

// hashCases are rows about the limits of a map.
var hashCases = []hookCase{
	{name: "BPF_EXIST on absent keys", act: func(s *hookFixture) {
		s.expectFailed(s.run(dataplane.Update, ebpf.UpdateExist, 500))
	}},
	{name: "update of a full map", entries: 4, act: func(s *hookFixture) {
		p := openDataPlane(s, s.m, dataplane.Options{Capacity: 4})
		for i := range 4 {
			key, value := entry(8, 16, 1000+i, i)
			p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
			s.want = append(s.want, change{table.OpUpdate, table.ContextProcess, string(key), string(value)})
		}
		if failed, err := p.Run(); err != nil || failed != 0 {
			s.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
		}
		s.seen += 4
		s.expectFailed(s.run(dataplane.Update, ebpf.UpdateAny, 500))
	}},
	{name: "delete of absent keys", act: func(s *hookFixture) {
		s.expectFailed(s.run(dataplane.Delete, 0, 0))
	}},
	{name: "bpf(2) deletes a batch", full: true, act: func(s *hookFixture) {
		s.bySyscall("batch-delete", 0)
		s.expect(table.OpDelete, table.ContextSyscall, 0)
	}},
	{name: "own bpf(2) updates", act: func(s *hookFixture) {
		s.fill()
		s.ownBySyscall()
	}},
}

// lookupAndDeletes are the kernel's lookup-and-delete functions, by map type.
var lookupAndDeletes = map[ebpf.MapType]string{
	ebpf.Hash:       "htab_map_lookup_and_delete_elem",
	ebpf.LRUHash:    "htab_lru_map_lookup_and_delete_elem",
	ebpf.PerCPUHash: "htab_percpu_map_lookup_and_delete_elem",
	ebpf.LRUCPUHash: "htab_lru_percpu_map_lookup_and_delete_elem",
}

// commonCases are the rows for the data plane and for bpf(2), which are equal for all map types.
func commonCases(title string, typ ebpf.MapType) []hookCase {
	return append(updateCases(title, typ), withTitle(title, typ, []hookCase{
		{name: "program updates present keys", full: true, act: func(s *hookFixture) {
			s.run(dataplane.Update, ebpf.UpdateExist, 100)
			s.expect(table.OpUpdate, table.ContextProcess, 100)
		}},
		{name: "program deletes", full: true, act: func(s *hookFixture) {
			s.run(dataplane.Delete, 0, 0)
			s.expect(table.OpDelete, table.ContextProcess, 0)
		}},
		{name: "packets delete", full: true, act: func(s *hookFixture) {
			s.receive(dataplane.Delete, 0)
			s.expect(table.OpDelete, table.ContextPacket, 0)
		}},
		{name: "timer deletes", full: true, interrupts: true, supported: dataplane.HasTimers, act: func(s *hookFixture) {
			s.scheduled((*dataplane.Program).RunByTimer, dataplane.Delete, 0)
			s.expect(table.OpDelete, table.ContextPacket, 0)
		}},
		{name: "iterator deletes", full: true, act: func(s *hookFixture) {
			s.scheduled((*dataplane.Program).RunByIterator, dataplane.Delete, 0)
			s.expect(table.OpDelete, table.ContextProcess, 0)
		}},
		{name: "bpf(2) deletes", full: true, act: func(s *hookFixture) {
			s.bySyscall("delete", 0)
			s.expect(table.OpDelete, table.ContextSyscall, 0)
		}},
		{name: "BPF_NOEXIST on present keys", full: true, act: func(s *hookFixture) {
			s.expectFailed(s.run(dataplane.Update, ebpf.UpdateNoExist, 500))
		}},
		{name: "program writes in place", full: true, act: (*hookFixture).inPlace},
		{name: "batch lookup-and-delete", full: true, act: func(s *hookFixture) {
			s.bySyscall("batch-lookup-and-delete", 0)
			if left := keysOf(s, s.m); len(left) != 0 {
				s.Errorf("entries after batch lookup-and-delete: got %d, want 0", len(left))
			}
			s.expect(capture.OpDeletedKeys, table.ContextSyscall, 0)
		}},
		{name: "lookup-and-delete", full: true, needs: lookupAndDeletes[typ], act: func(s *hookFixture) {
			s.bySyscall("lookup-and-delete", 0)
			s.expect(table.OpDelete, table.ContextSyscall, 0)
		}},
	})...)
}

// updateCases are the rows for updates, which arrays have, too.
func updateCases(title string, typ ebpf.MapType) []hookCase {
	return withTitle(title, typ, []hookCase{
		{name: "program updates", act: func(s *hookFixture) {
			s.run(dataplane.Update, ebpf.UpdateAny, 100)
			s.expect(table.OpUpdate, table.ContextProcess, 100)
		}},
		{name: "packets update", act: func(s *hookFixture) {
			s.receive(dataplane.Update, 200)
			s.expect(table.OpUpdate, table.ContextPacket, 200)
		}},
		{name: "timer updates", interrupts: true, supported: dataplane.HasTimers, act: func(s *hookFixture) {
			s.scheduled((*dataplane.Program).RunByTimer, dataplane.Update, 230)
			s.expect(table.OpUpdate, table.ContextPacket, 230)
		}},
		{name: "iterator updates", act: func(s *hookFixture) {
			s.scheduled((*dataplane.Program).RunByIterator, dataplane.Update, 260)
			s.expect(table.OpUpdate, table.ContextProcess, 260)
		}},
		{name: "bpf(2) updates", act: func(s *hookFixture) {
			s.bySyscall("update", 300)
			s.expect(table.OpUpdate, table.ContextSyscall, 300)
		}},
		{name: "bpf(2) updates a batch", act: func(s *hookFixture) {
			s.bySyscall("batch-update", 400)
			s.expect(table.OpUpdate, table.ContextSyscall, 400)
		}},
	})
}

// ownWriteCases are the rows for syncd's own writes by its program.
func ownWriteCases(title string, typ ebpf.MapType) []hookCase {
	return withTitle(title, typ, []hookCase{
		{name: "own program updates", act: func(s *hookFixture) {
			s.byDaemon(false, 700)
			s.seen, s.own = caseWrites, caseWrites
		}},
		{name: "own program deletes", full: true, act: func(s *hookFixture) {
			s.byDaemon(true, 0)
			s.seen, s.own = caseWrites, caseWrites
		}},
	})
}

// withTitle sets the map type of rows and prefixes their names with title.
func withTitle(title string, typ ebpf.MapType, rows []hookCase) []hookCase {
	for i := range rows {
		rows[i].mapType = typ
		if title != "" {
			rows[i].name = title + ": " + rows[i].name
		}
	}
	return rows
}
