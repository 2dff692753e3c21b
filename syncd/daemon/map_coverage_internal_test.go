package daemon

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestCoverageOfMaps(t *testing.T) {
	c := config.Default()
	c.ScanInterval, c.ScanBudget = 10*time.Second, 5
	tracer, lb := kmap.Program{ID: 7, Name: "tracer", Type: ebpf.Kprobe}, kmap.Program{ID: 8, Name: "lb", Type: ebpf.XDP}
	// A scan of a million entries: 703 ms on the reference machine, twice that on a slower one, 1/8 for the runtime, 5 %.
	const million = 2 * 31.6
	unchanged, costly := 10., math.Round(million)
	if capture.AttachFexit.Detects(ebpf.Kprobe) {
		unchanged, costly = 40, 160+math.Round(million/2)
	}
	for name, test := range map[string]struct {
		info     kmap.Info
		programs []kmap.Program
		offer    capture.ProbeResult
		want     MapCoverage
	}{
		"kprobe": {
			kmap.Info{Type: ebpf.Hash},
			[]kmap.Program{tracer, lb},
			capture.ProbeResult{Attach: capture.AttachKprobe},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: "-", Scan: 10, ScanUnchanged: 10, Undetected: []string{"tracer (Kprobe, id 7)"}},
		},
		"fexit, LRU": {
			kmap.Info{Type: ebpf.LRUHash},
			[]kmap.Program{lb},
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: CoverAtOnce, Scan: 10, ScanUnchanged: unchanged},
		},
		"fexit, LRU without the hook of evictions": {
			kmap.Info{Type: ebpf.LRUHash},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit, Missing: []string{"htab_lru_map_delete_node"}},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: CoverByScan, Scan: 10, ScanUnchanged: 10},
		},
		"none": {
			kmap.Info{Type: ebpf.LRUHash},
			[]kmap.Program{tracer},
			capture.ProbeResult{Attach: capture.AttachNone},
			MapCoverage{Programs: CoverByScan, Syscalls: CoverByScan, Evictions: CoverByScan, Scan: 10, ScanUnchanged: 10},
		},
		"a million entries": {
			kmap.Info{Type: ebpf.Hash, KeySize: 48, ValueSize: 176, Entries: 1_000_000, MaxEntries: 1_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachNone},
			MapCoverage{Programs: CoverByScan, Syscalls: CoverByScan, Evictions: "-", Scan: math.Round(million), ScanUnchanged: math.Round(million)},
		},
		"a million entries with fexit": {
			kmap.Info{Type: ebpf.Hash, KeySize: 48, ValueSize: 176, Entries: 1_000_000, MaxEntries: 1_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: "-", Scan: math.Round(million), ScanUnchanged: costly},
		},
		"unknown number of entries": {
			kmap.Info{Type: ebpf.Hash, KeySize: 48, ValueSize: 176, Entries: -1, MaxEntries: 1_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachNone},
			MapCoverage{Programs: CoverByScan, Syscalls: CoverByScan, Evictions: "-", Scan: math.Round(million), ScanUnchanged: math.Round(million)},
		},
		"fexit, an array that processes map into their memory": {
			kmap.Info{Type: ebpf.Array, Flags: unix.BPF_F_MMAPABLE},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverByScan, Evictions: "-", Scan: 10, ScanUnchanged: 10},
		},
		"fexit, another array": {
			kmap.Info{Type: ebpf.Array},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: "-", Scan: 10, ScanUnchanged: unchanged},
		},
		"a map that cannot be replicated": {
			kmap.Info{Type: ebpf.Hash, Unsupported: errors.New("too large")},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Evictions: "-", Problem: "too large"},
		},
	} {
		test.want.Type = test.info.Type.String()
		got := coverage(&test.info, test.programs, &test.offer, &c, 0)
		got.Scan, got.ScanUnchanged = math.Round(got.Scan), math.Round(got.ScanUnchanged)
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

// TestScanWork compares the estimate with measurements on 6.18. The bounds of `syncd check` must hold, so that the
// estimate is at least the measured time.
func TestScanWork(t *testing.T) {
	for name, test := range map[string]struct {
		info        kmap.Info
		least, most time.Duration
	}{
		"many entries":            {kmap.Info{Type: ebpf.Hash, KeySize: 48, ValueSize: 176, Entries: 1_000_000, MaxEntries: 1_000_000}, 670 * time.Millisecond, 750 * time.Millisecond},
		"no entries":              {kmap.Info{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 10_000_000}, 70 * time.Millisecond, 90 * time.Millisecond},
		"no entries, LRU":         {kmap.Info{Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 8_388_609}, 70 * time.Millisecond, 90 * time.Millisecond},
		"a full power of two":     {kmap.Info{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 8_388_608}, 35 * time.Millisecond, 45 * time.Millisecond},
		"no entries, per-CPU LRU": {kmap.Info{Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 32, CPUs: 2, MaxEntries: 8_388_608}, 35 * time.Millisecond, 45 * time.Millisecond},
		"large values":            {kmap.Info{Type: ebpf.Hash, KeySize: 8, ValueSize: 32_000, Entries: 5000, MaxEntries: 5000}, 33 * time.Millisecond, 130 * time.Millisecond},
		"large values of per-CPU": {kmap.Info{Type: ebpf.PerCPUHash, KeySize: 8, ValueSize: 2048, CPUs: 2, Entries: 50_000, MaxEntries: 50_000}, 100 * time.Millisecond, 210 * time.Millisecond}, // 5.10 needs calls
		"per-CPU LRU":             {kmap.Info{Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 32, CPUs: 2, Entries: 100_000, MaxEntries: 100_000}, 194 * time.Millisecond, 300 * time.Millisecond},
		"per-CPU, 128 CPUs":       {kmap.Info{Type: ebpf.PerCPUHash, KeySize: 8, ValueSize: 1024, CPUs: 128, Entries: 100_000, MaxEntries: 100_000}, 1400 * time.Millisecond, 1650 * time.Millisecond},
		"per-CPU array, 128 CPUs": {kmap.Info{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 1024, CPUs: 128, Entries: 1000, MaxEntries: 1000}, 14 * time.Millisecond, 17 * time.Millisecond},
		"large values with lock":  {kmap.Info{Type: ebpf.Hash, KeySize: 16, ValueSize: 8192, HasSpinLock: true, Entries: 10_000, MaxEntries: 10_000}, 43 * time.Millisecond, 90 * time.Millisecond},
		"array":                   {kmap.Info{Type: ebpf.Array, KeySize: 4, ValueSize: 16, Entries: 1000, MaxEntries: 1000}, 545 * time.Microsecond, 546 * time.Microsecond},
		"one entry":               {kmap.Info{Type: ebpf.Hash, KeySize: 4, ValueSize: 16, Entries: 1, MaxEntries: 1}, 549 * time.Nanosecond, 551 * time.Nanosecond},
	} {
		if got := scanWork(&test.info); got < test.least || got > test.most {
			t.Errorf("processor time of a scan, %s: got %s, want %s to %s", name, got, test.least, test.most)
		}
	}
}

// TestScansOfTakeoverMapsAreNotRarer: takeover-expiry needs scans that show which entries are in use.
func TestScansOfTakeoverMapsAreNotRarer(t *testing.T) {
	c := config.Default()
	c.Maps, c.TakeoverExpiries = []string{"ct", "nat", "rules"}, []string{"ct=50s", "rules=never"}
	for name, want := range map[string]time.Duration{"ct": 40 * time.Second, "nat": 160 * time.Second, "rules": 40 * time.Second} {
		o := scanIntervals(&c, name, &kmap.Info{Type: ebpf.Hash})
		if got := o.IntervalAtRest(time.Minute); got != want {
			t.Errorf("interval of unchanged map %s: got %s, want %s", name, got, want)
		}
	}
	c.MaxScanInterval = 30 * time.Second
	o := scanIntervals(&c, "nat", &kmap.Info{Type: ebpf.Array})
	if got := o.IntervalAtRest(time.Minute); got != c.MaxScanInterval {
		t.Errorf("interval of an unchanged map with max-scan-interval: got %s, want %s", got, c.MaxScanInterval)
	}
}

// TestScansOfMappedArraysAreNotRarer: hooks do not detect the writes of processes that map an array into their memory.
func TestScansOfMappedArraysAreNotRarer(t *testing.T) {
	c := config.Default()
	o := scanIntervals(&c, "rules", &kmap.Info{Type: ebpf.Array, Flags: unix.BPF_F_MMAPABLE})
	if got := o.IntervalAtRest(time.Minute); got != c.ScanInterval {
		t.Errorf("interval of an unchanged array with BPF_F_MMAPABLE: got %s, want %s", got, c.ScanInterval)
	}
}
