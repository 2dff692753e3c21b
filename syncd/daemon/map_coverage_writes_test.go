package daemon_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

const (
	// firstEntries is the number of entries that the maps of these tests have when the node starts. It does not reread
	// them, as it does with new keys.
	firstEntries = 64
	tracedEntry  = 99 // of the kprobe program
)

// statedWrite is a kind of write for which `syncd check` makes a statement, to the first entries of a map.
type statedWrite struct {
	operation string // of operate, or "program-update" or "program-delete"
	first, n  uint64
	version   uint64 // of the entries afterwards; 0: there are none
}

func (w *statedWrite) byProgram() bool { return strings.HasPrefix(w.operation, "program-") }

var statedWrites = []statedWrite{
	{"program-update", 3, 1, 5},
	{"program-delete", 4, 1, 0},
	{"update", 7, 2, 6},
	{"delete", 9, 2, 0},
	{"batch-update", 11, 10, 7},
	{"batch-delete", 21, 10, 0},
	{"batch-drain", 0, firstEntries, 0},
}

// possible reports whether a map has a kind of write: an array has no deletes, and a per-CPU array batches from 5.13 on.
func (w *statedWrite) possible(t *testing.T, m *ebpf.Map) bool {
	t.Helper()
	if !kmap.IsArray(m.Type()) {
		return true
	}
	if w.version == 0 || w.operation != "batch-update" {
		return w.version != 0
	}
	other, err := ebpf.NewMap(&ebpf.MapSpec{Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: m.MaxEntries()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	err = operate(other, w.operation, w.first, w.n, w.version)
	if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		t.Fatal(err)
	}
	return err == nil
}

// statedMethods are the attach methods whose statements are tested. The emulator often fails while the kernel patches the
// entry of all system calls.
func statedMethods() []capture.Attach {
	methods := []capture.Attach{capture.AttachKprobe, capture.AttachFexit}
	if kernelName() == "" {
		methods = append(methods, capture.AttachSyscall)
	}
	return methods
}

// startStated starts the node of a fixture, whose maps have their first entries. The next scan is an hour away.
func startStated(t *testing.T, f *coverageFixture) {
	t.Helper()
	f.config.ScanInterval, f.config.MaxScanInterval = time.Hour, time.Hour
	for name, m := range f.maps {
		for i := range uint64(firstEntries) {
			if name != "unreplicable" {
				if err := putAny(m, i, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	f.start()
	poll.Eventually(t, "all maps but one are replicated", func() bool {
		return !slices.ContainsFunc(f.status().Maps, func(m daemon.MapStatus) bool {
			return m.State != daemon.MapReplicating && m.Name != "unreplicable"
		})
	})
}

// TestCoverageHolds checks what `syncd check` states about maps of eleven kinds and their writers: the node detects each
// kind of write "at once" without a scan, and those of programs that the statement names not at all.
func TestCoverageHolds(t *testing.T) {
	for _, attach := range statedMethods() {
		t.Run(string(attach), func(t *testing.T) {
			needAttach(t, attach)
			f := newCoverageFixture(t, attach, mapKinds)
			traced := f.program("traced", dataplane.Update, tracedEntry, 1, 1)
			startStated(t, f)
			for name, stated := range f.coverages(attach) {
				if name == "unreplicable" {
					if stated.Problem == "" {
						t.Errorf("%s: got %+v, want a problem", name, stated)
					}
					continue
				}
				f.checkStated(name, stated, attach)
			}
			if attach != capture.AttachSyscall {
				f.checkTraced(traced, attach)
			}
		})
	}
}

// checkStated compares the statement about a map with what is expected on all kernels, and makes all writes to the map.
func (f *coverageFixture) checkStated(name string, stated daemon.MapCoverage, attach capture.Attach) {
	f.t.Helper()
	programs, syscalls := daemon.CoverAtOnce, daemon.CoverAtOnce
	if attach == capture.AttachSyscall {
		programs = daemon.CoverByScan
	}
	if name == "mapped" {
		syscalls = daemon.CoverByScan
	}
	if stated.Programs != programs || stated.Syscalls != syscalls {
		f.t.Errorf("%s: got %+v, want writes of programs %s and of bpf(2) %s", name, stated, programs, syscalls)
	}
	control := startControlPlane(f.t, filepath.Join(f.dir, name))
	for _, w := range statedWrites {
		if w.byProgram() && stated.Programs == daemon.CoverByScan || !w.possible(f.t, f.maps[name]) {
			continue
		}
		switch w.operation {
		case "program-update":
			f.runProgram(name, dataplane.Update, w.first, w.n, w.version)
		case "program-delete":
			f.runProgram(name, dataplane.Delete, w.first, w.n, w.version)
		default:
			control.do(w.operation, w.first, w.n, w.version)
		}
		poll.Eventually(f.t, name+": the table follows "+w.operation, func() bool { return f.follows(name, &w) })
	}
	if name == "mapped" {
		f.checkUndetected(name, "a write through mmap(2)", func() { f.writeMapped(name, 40, 8) }, control)
	}
	if stated.Programs == daemon.CoverByScan {
		f.checkUndetected(name, "a program", func() { f.runProgram(name, dataplane.Update, 40, 1, 8) }, control)
	}
}

// follows reports whether the table of a map has the result of a write.
func (f *coverageFixture) follows(name string, w *statedWrite) bool {
	f.t.Helper()
	entries := f.table(name)
	for i := range w.n {
		key, value := anyEntry(f.maps[name], w.first+i, w.version)
		got, found := entries[string(key)]
		if found != (w.version != 0) || found && !strings.Contains(got, string(value[:8])) {
			return false
		}
	}
	return true
}

// checkUndetected checks that hooks do not detect a write that gives entry 40 version 8. A later write by bpf(2) to entry 50 is
// detected first.
func (f *coverageFixture) checkUndetected(name, what string, write func(), control controlPlane) {
	f.t.Helper()
	write()
	control.do("update", 50, 1, 9)
	f.await(name, "bpf(2)", 50, 9)
	if f.has(name, 40, 8) && !f.scannedForLosses() {
		f.t.Errorf("%s: entry of %s: got it without a scan, want it by scan as stated", name, what)
	}
}

// scannedForLosses reports whether a scan has followed losses, so that the table may have anything.
func (f *coverageFixture) scannedForLosses() bool {
	l := f.status().Capture.Losses
	return l.Open || l.Repaired > 0
}

// writeMapped writes an element of 16 bytes through mmap(2).
func (f *coverageFixture) writeMapped(name string, n, version uint64) {
	f.t.Helper()
	memory, err := f.maps[name].Memory()
	if err != nil {
		f.t.Fatal(err)
	}
	_, value := anyEntry(f.maps[name], n, version)
	if _, err := memory.WriteAt(value, int64(n)*16); err != nil {
		f.t.Fatal(err)
	}
}

// evictingMaps are the maps of TestCoverageHoldsForEvictions: for each type one that programs fill, and one that bpf(2) fills.
var evictingMaps = map[string]*ebpf.MapSpec{
	"lru-program":        {Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"lru-bpf":            {Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"lru-percpu-program": {Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"lru-percpu-bpf":     {Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
}

// TestCoverageHoldsForEvictions: if `syncd check` states that evictions are detected at once, those by programs and by bpf(2)
// are. If it states that scans find them, hooks detect those by at least one writer not.
func TestCoverageHoldsForEvictions(t *testing.T) {
	for _, attach := range statedMethods() {
		t.Run(string(attach), func(t *testing.T) {
			needAttach(t, attach)
			f := newCoverageFixture(t, attach, evictingMaps)
			f.config.EvictionDeletes = true // the table then has no evicted entry whose event it received
			// The kernel evicts entries of the CPU that writes. The control plane inherits the CPU of this thread.
			unpin, err := dataplane.Pin(0)
			if err != nil {
				t.Fatal(err)
			}
			defer unpin()
			startStated(t, f)
			undetected := map[string]bool{} // by type
			for name, stated := range f.coverages(attach) {
				evicted := f.evict(name)
				if stated.Evictions == daemon.CoverAtOnce {
					poll.Eventually(t, name+": the table lacks the evicted entries", func() bool { return f.known(name, evicted) == 0 })
					continue
				}
				kind := f.maps[name].Type().String()
				undetected[kind] = undetected[kind] || f.known(name, evicted) > 0
			}
			for kind, some := range undetected {
				if !some && !f.scannedForLosses() {
					t.Errorf("%s: evictions: got all detected, want some found by scan as stated", kind)
				}
			}
		})
	}
}

// evict fills a map with new entries, by its writer, and returns the keys of the first entries that are evicted. The table
// has the events of all these writes that the hooks report.
func (f *coverageFixture) evict(name string) (keys []string) {
	f.t.Helper()
	const n = 3000
	m, control := f.maps[name], startControlPlane(f.t, filepath.Join(f.dir, name))
	if strings.HasSuffix(name, "program") {
		f.runProgram(name, dataplane.Update, 1000, n, 1)
	} else {
		control.do("update", 1000, n, 1)
	}
	for i := range uint64(firstEntries) {
		key, _ := anyEntry(m, i, 1)
		value, err := m.LookupBytes(key)
		if err != nil {
			f.t.Fatal(err)
		}
		if value == nil {
			keys = append(keys, string(key))
		}
	}
	if len(keys) == 0 {
		f.t.Fatalf("%s: first entries that are evicted: got none, want some", name)
	}
	control.do("update", 9000, 1, 1)
	f.await(name, "bpf(2)", 9000, 1)
	return keys
}

// known returns how many of the keys the table of a map has.
func (f *coverageFixture) known(name string, keys []string) (n int) {
	f.t.Helper()
	entries := f.table(name)
	for _, key := range keys {
		if _, found := entries[key]; found {
			n++
		}
	}
	return n
}
