package daemon_test

import (
	"fmt"
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
	"golang.org/x/sys/unix"
)

// mapKinds are the maps of TestCoverageHolds, by name.
var mapKinds = map[string]*ebpf.MapSpec{
	"hash":         {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"dynamic":      {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1000, Flags: unix.BPF_F_NO_PREALLOC},
	"large":        {Type: ebpf.Hash, KeySize: 8, ValueSize: 8192, MaxEntries: 1000},
	"lru":          {Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"percpu":       {Type: ebpf.PerCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"lru-percpu":   {Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"array":        {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 100},
	"percpu-array": {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 100},
	"mapped":       {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 100, Flags: unix.BPF_F_MMAPABLE},
	"traced":       {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1000}, // a kprobe program writes it, too
	"inner":        {Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	"unreplicable": {Type: ebpf.Hash, KeySize: 8, ValueSize: 64 << 10, MaxEntries: 10},
}

// coverageFixture is a node with maps of several kinds.
type coverageFixture struct {
	*node
	dir  string
	maps map[string]*ebpf.Map
}

func newCoverageFixture(t *testing.T, attach capture.Attach, kinds map[string]*ebpf.MapSpec) *coverageFixture {
	t.Helper()
	f := &coverageFixture{dir: pinDir(t), maps: map[string]*ebpf.Map{}}
	var settings []string
	for name, spec := range kinds {
		spec := spec.Copy()
		spec.Name = name[:min(len(name), 15)]
		m := pinnedAs(t, filepath.Join(f.dir, name), spec)
		f.maps[name] = m
		if name == "inner" {
			outer := pinnedAs(t, filepath.Join(f.dir, "outer"),
				&ebpf.MapSpec{Name: "outer", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec})
			if err := outer.Put(uint32(0), m); err != nil {
				t.Fatal(err)
			}
			name += "=" + filepath.Join(f.dir, "outer") + "[0]"
		} else {
			name = filepath.Join(f.dir, name)
		}
		settings = append(settings, name)
	}
	f.node = newNode(t, 1, settings...)
	f.attach, f.config.Join = attach, nil
	return f
}

// await waits until the table of a map has an entry with a version.
func (f *coverageFixture) await(name, what string, n, version uint64) {
	f.t.Helper()
	poll.Eventually(f.t, name+" has the entry of "+what, func() bool { return f.has(name, n, version) })
}

// has reports whether the table of a map has an entry with a version, in a per-CPU map on any CPU.
func (f *coverageFixture) has(name string, n, version uint64) bool {
	f.t.Helper()
	key, value := anyEntry(f.maps[name], n, version)
	return strings.Contains(f.table(name)[string(key)], string(value[:8]))
}

// table returns the entries in the table of a map.
func (f *coverageFixture) table(name string) map[string]string {
	f.t.Helper()
	entries := map[string]string{}
	err := f.client.Entries(f.t.Context(), name, daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		entries[string(key)] = string(value)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return entries
}

// program opens a program that makes writes to the entries [first, first+n) of a map.
func (f *coverageFixture) program(name string, op dataplane.Op, first, n, version uint64) *dataplane.Program {
	f.t.Helper()
	p, err := dataplane.Open(f.maps[name], dataplane.Options{Capacity: int(n)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = p.Close() })
	for i := range n {
		key, value := anyEntry(f.maps[name], first+i, version)
		p.Add(op, ebpf.UpdateAny, key, value)
	}
	return p
}

func (f *coverageFixture) runProgram(name string, op dataplane.Op, first, n, version uint64) {
	f.t.Helper()
	if failed, err := f.program(name, op, first, n, version).Run(); err != nil || failed != 0 {
		f.t.Fatalf("writes of %s: got %d failed, error %v, want none", name, failed, err)
	}
}

// coverages returns what `syncd check` states about the maps, by name.
func (f *coverageFixture) coverages(attach capture.Attach) map[string]daemon.MapCoverage {
	f.t.Helper()
	offer := capture.Probe(attach)[0]
	infos, _, err := kmap.List(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	list, err := daemon.CoverMaps(f.t.Context(), infos, &offer, &f.config)
	if err != nil {
		f.t.Fatal(err)
	}
	found := map[string]daemon.MapCoverage{}
	for name, m := range f.maps {
		info, err := m.Info()
		if err != nil {
			f.t.Fatal(err)
		}
		id, _ := info.ID()
		i := slices.IndexFunc(list, func(c daemon.MapCoverage) bool { return c.ID == uint32(id) })
		if i < 0 {
			f.t.Fatalf("coverage of %s: got none, want a statement", name)
		}
		found[name] = list[i]
	}
	return found
}

// checkTraced makes a kprobe program write, and compares the result with the statement while the program is loaded.
func (f *coverageFixture) checkTraced(p *dataplane.Program, attach capture.Attach) {
	f.t.Helper()
	var stated daemon.MapCoverage
	err := p.RunByKprobe(func() { stated = f.coverages(attach)["traced"] })
	if err != nil || p.Done() != 1 {
		f.t.Fatalf("write of a kprobe program: got %d, error %v, want 1", p.Done(), err)
	}
	undetected := slices.ContainsFunc(stated.Undetected, func(s string) bool { return strings.Contains(s, "Kprobe") })
	if undetected == attach.Detects(ebpf.Kprobe) {
		f.t.Errorf("programs that are not detected: got %q, want the kprobe program: %t", stated.Undetected, !undetected)
	}
	// Events of one CPU are in order, and the writes of this test may come from any: later ones of all CPUs follow.
	for cpu := range ebpf.MustPossibleCPU() {
		unpin, err := dataplane.Pin(cpu)
		if err != nil {
			f.t.Fatal(err)
		}
		f.runProgram("traced", dataplane.Update, uint64(100+cpu), 1, 1)
		unpin()
		f.await("traced", fmt.Sprint("a program on CPU ", cpu), uint64(100+cpu), 1)
	}
	if got := f.has("traced", tracedEntry, 1); got == undetected {
		f.t.Errorf("entry of the kprobe program: got %t, want %t", got, !undetected)
	}
}

// TestScansFindChangesInPlace: in maps of all kinds, scans find a change in place. `syncd check` states the time of the
// two scans that this takes at most, and an interval that scans keep to.
func TestScansFindChangesInPlace(t *testing.T) {
	f := newCoverageFixture(t, capture.AttachNone, mapKinds)
	f.config.ScanInterval, f.config.MaxScanInterval = 500*time.Millisecond, time.Hour
	for name := range f.maps {
		if name != "unreplicable" {
			f.runProgram(name, dataplane.Update, 3, 1, 5)
		}
	}
	f.start()
	stated := f.coverages(capture.AttachNone)
	for name := range f.maps {
		if name == "unreplicable" {
			continue
		}
		f.await(name, "the first read", 3, 5)
		f.runProgram(name, dataplane.InPlace, 3, 1, 6)
		f.awaitByScan(name, "a change in place", 3, 6)
		if name == "mapped" {
			f.writeMapped(name, 3, 7)
			f.awaitByScan(name, "a write through mmap(2)", 3, 7)
		}
		bound := stated[name].Scan
		if least := f.config.ScanInterval.Seconds(); bound < least || stated[name].ScanUnchanged != bound {
			t.Errorf("%s: stated times: got %v and %v s, want both the same and at least %v s", name, bound, stated[name].ScanUnchanged, least)
		}
		// A busy machine makes single scans late.
		poll.Eventually(t, name+": scans are as frequent as stated", func() bool { return f.scan(name).Interval <= bound })
	}
}

// awaitByScan waits until the table of a map has an entry with a version, which was written before the call. At the end
// of the second scan that began after the call it has it, however long scans take.
func (f *coverageFixture) awaitByScan(name, what string, n, version uint64) {
	f.t.Helper()
	const limit = 1 + 2 // one was in progress
	before := f.scan(name).Scans
	var scans uint64
	var found bool
	poll.Eventually(f.t, fmt.Sprintf("%s has the entry of %s, or had %d scans", name, what, limit), func() bool {
		scans = f.scan(name).Scans - before // before the look at the table
		found = f.has(name, n, version)
		return found || scans >= limit
	})
	if !found {
		f.t.Errorf("%s: entry of %s: got none after %d scans, want it after at most %d", name, what, scans, limit)
	}
}

// scan returns the status of the scans of a map.
func (f *coverageFixture) scan(name string) daemon.ScanStatus {
	f.t.Helper()
	maps := f.status().Maps
	i := slices.IndexFunc(maps, func(m daemon.MapStatus) bool { return m.Name == name })
	if i < 0 || maps[i].Scan == nil {
		f.t.Fatalf("scans of %s: got none, want their status", name)
	}
	return *maps[i].Scan
}
