package daemon

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

func TestCoverageOfMaps(t *testing.T) {
	c := config.Default()
	c.ScanInterval, c.ScanBudget = 10*time.Second, 5
	tracer, lb := kmap.Program{ID: 7, Name: "tracer", Type: ebpf.Kprobe}, kmap.Program{ID: 8, Name: "lb", Type: ebpf.XDP}
	unchanged, costly := 10., 28.
	if capture.AttachFexit.Detects(ebpf.Kprobe) {
		unchanged, costly = 40, 174 // 160 s and a scan of 14 s
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
			kmap.Info{Type: ebpf.Hash, Entries: 1_000_000, MaxEntries: 2_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachNone},
			MapCoverage{Programs: CoverByScan, Syscalls: CoverByScan, Evictions: "-", Scan: 28, ScanUnchanged: 28},
		},
		"a million entries with fexit": {
			kmap.Info{Type: ebpf.Hash, Entries: 1_000_000, MaxEntries: 2_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: "-", Scan: 28, ScanUnchanged: costly},
		},
		"unknown number of entries": {
			kmap.Info{Type: ebpf.Hash, Entries: -1, MaxEntries: 1_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachNone},
			MapCoverage{Programs: CoverByScan, Syscalls: CoverByScan, Evictions: "-", Scan: 28, ScanUnchanged: 28},
		},
		"a map that cannot be replicated": {
			kmap.Info{Type: ebpf.Hash, Unsupported: errors.New("too large")},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			MapCoverage{Evictions: "-", Problem: "too large"},
		},
	} {
		test.want.Type = test.info.Type.String()
		if got := coverage(&test.info, test.programs, &test.offer, &c); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

// TestScansOfTakeoverMapsAreNotRarer: takeover-expiry needs scans that show which entries are in use.
func TestScansOfTakeoverMapsAreNotRarer(t *testing.T) {
	c := config.Default()
	c.Maps, c.TakeoverExpiries = []string{"ct", "nat", "rules"}, []string{"ct=50s", "rules=never"}
	for name, want := range map[string]time.Duration{"ct": 40 * time.Second, "nat": 160 * time.Second, "rules": 40 * time.Second} {
		o := scanIntervals(&c, name)
		if got := o.IntervalAtRest(time.Minute); got != want {
			t.Errorf("interval of unchanged map %s: got %s, want %s", name, got, want)
		}
	}
	c.MaxScanInterval = 30 * time.Second
	o := scanIntervals(&c, "nat")
	if got := o.IntervalAtRest(time.Minute); got != c.MaxScanInterval {
		t.Errorf("interval of an unchanged map with max-scan-interval: got %s, want %s", got, c.MaxScanInterval)
	}
}
