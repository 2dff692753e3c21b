package daemon

import (
	"context"
	"math/bits"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// Terms of the processor time of a scan, in ns. docs/capture.md has the measurements.
const (
	// scanEntryCost and scanByteCost are for each entry and for each byte of its key and value: 700 ns for 48 + 176
	// bytes. The bytes cost less in hash maps, and as much in per-CPU maps.
	scanEntryCost = 530
	scanByteCost  = 0.75
	// scanCPUCost is for each possible CPU and entry of a per-CPU map: a lookup and a copy, each of other memory. Machines with
	// many CPUs were not measured.
	scanCPUCost = 100
	// scanCallCost is for each entry that a bpf(2) call of its own looks up.
	scanCallCost = 2000
	// scanBucketCost is for each bucket, with the empty ones.
	scanBucketCost = 5
)

// slowestMachine is how many times as much processor time scans may need on the slowest machine for which the statements
// hold.
const slowestMachine = 2

// Values of a [MapCoverage].
const (
	CoverAtOnce = "at once"
	CoverByScan = "by scan"
	CoverNone   = "-" // the map has no such writes
)

// MapCoverage states how soon syncd detects the writes to one map of this host with an attach method.
type MapCoverage struct {
	ID        uint32 `json:"id"`
	Name      string `json:"name"`
	Type      string `json:"type"`
	Programs  string `json:"programs"`  // updates and deletes by BPF programs
	Syscalls  string `json:"syscalls"`  // updates and deletes by processes: bpf(2), and mmap(2) if the map allows it
	Evictions string `json:"evictions"` // by the kernel, from an LRU map
	// Scan is the longest time until a scan finds a change, such as one in place, in seconds, if syncd replicates no
	// other map, and if scans cost at most slowestMachine times as much as on the reference machine. ScanUnchanged is the
	// same for a map that does not change otherwise.
	Scan          float64 `json:"scan_seconds"`
	ScanUnchanged float64 `json:"scan_unchanged_seconds"`
	// Undetected are the programs whose writes only scans find, with type and id.
	Undetected []string `json:"undetected_programs,omitempty"`
	// CoverSettings sets these. InPlace is the longest time until the hook of the setting in-place finds a change in place,
	// in seconds, or 0 without it. InPlaceProblem is why a hook in the settings has no effect. Deletes is the value of the
	// setting deletes. With DrainSums, syncd replicates sums and not the entries, so that the other statements are absent.
	InPlace        float64 `json:"in_place_seconds,omitempty"`
	InPlaceProblem string  `json:"in_place_problem,omitempty"`
	Deletes        string  `json:"deletes,omitempty"`
	DrainSums      bool    `json:"drain_sums,omitempty"`
	// Problem is why syncd cannot replicate the map.
	Problem string `json:"problem,omitempty"`
}

// coverage states how soon writes to a map are detected with an attach method and settings. programs are
// those that use the map, and others is the longest duration of the scans of all other replicated maps together.
func coverage(info *kmap.Info, programs []kmap.Program, o *capture.ProbeResult, c *config.Config, others time.Duration) MapCoverage {
	m := MapCoverage{ID: info.ID, Name: info.Name, Type: info.Type.String(), Evictions: CoverNone}
	if info.Unsupported != nil {
		m.Problem = info.Unsupported.Error()
		return m
	}
	seen := func(hooked bool) string {
		if hooked {
			return CoverAtOnce
		}
		return CoverByScan
	}
	covers := capture.Covers(o.Attach, o.Missing, info.Type)
	m.Programs, m.Syscalls = seen(covers.Programs), seen(covers.Syscalls && !info.Mappable())
	if isLRU(info) {
		m.Evictions = seen(covers.Evictions)
	}
	if covers.Programs {
		m.Undetected = undetected(programs, o.Attach)
	}
	scan := longestScan(info, c) + others
	m.Scan = (max(c.ScanInterval, scan) + scan).Seconds()
	m.ScanUnchanged = m.Scan
	if o.DetectsAllWrites() {
		intervals := scanIntervals(c, m.Name, info)
		m.ScanUnchanged = (max(intervals.IntervalAtRest(slowestMachine*scanWork(info)), scan) + scan).Seconds()
	}
	return m
}

// longestScan returns the longest duration of a scan of a map, on the slowest machine, with the whole budget of scans.
func longestScan(info *kmap.Info, c *config.Config) time.Duration {
	return kmap.LongestScan(slowestMachine*scanWork(info), c.ScanBudget/100)
}

// scanWork returns about the processor time that a scan of a map needs on the reference machine, whose measurements are in
// docs/capture.md.
func scanWork(info *kmap.Info) time.Duration {
	entries := info.Entries
	if entries < 0 {
		entries = info.MaxEntries
	}
	entry := scanEntryCost + scanByteCost*float64(info.KeySize+info.ValueSize) + scanCPUCost*float64(info.CPUs)
	if info.ScannedSingly() {
		entry += scanCallCost
	}
	ns := float64(entries) * entry
	switch info.Type {
	case ebpf.Array, ebpf.PerCPUArray: // without buckets: each element is an entry
		return time.Duration(ns)
	}
	buckets := 1 << bits.Len(uint(max(info.MaxEntries, 1)-1)) // the next power of two
	return time.Duration(ns + scanBucketCost*float64(buckets))
}

// CoverMaps states how soon writes to each of these maps are detected, in their order. Each statement is for a map
// that is replicated alone: others use a part of the budget of scans. o is the probe of the attach method. It needs CAP_SYS_ADMIN.
func CoverMaps(ctx context.Context, infos []kmap.Info, o *capture.ProbeResult, c *config.Config) ([]MapCoverage, error) {
	return coverMaps(ctx, infos, o, c, false)
}

// coverMaps is CoverMaps for maps that are replicated alone, or all together.
func coverMaps(ctx context.Context, infos []kmap.Info, o *capture.ProbeResult, c *config.Config, together bool) ([]MapCoverage, error) {
	ids := make([]uint32, len(infos))
	var all time.Duration
	for i := range infos {
		ids[i] = infos[i].ID
		all += longestScan(&infos[i], c)
	}
	programs, err := kmap.ProgramsOfMaps(ctx, ids)
	if err != nil {
		return nil, err
	}
	list := make([]MapCoverage, len(infos))
	for i := range infos {
		var others time.Duration
		if together {
			others = all - longestScan(&infos[i], c)
		}
		list[i] = coverage(&infos[i], programs[infos[i].ID], o, c, others)
	}
	return list, nil
}

// isLRU reports whether the kernel evicts entries of a map.
func isLRU(info *kmap.Info) bool {
	return info.Type == ebpf.LRUHash || info.Type == ebpf.LRUCPUHash
}
