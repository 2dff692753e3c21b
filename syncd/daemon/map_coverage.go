package daemon

import (
	"context"
	"fmt"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
)

// scanEntryCost is about the processor time that a scan needs for one entry. docs/capture.md has the
// measurements.
const scanEntryCost = 700 * time.Nanosecond

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
	Syscalls  string `json:"syscalls"`  // updates and deletes by bpf(2)
	Evictions string `json:"evictions"` // by the kernel, from an LRU map
	// Scan is the longest time until a scan finds a change, such as one in place, in seconds.
	// ScanUnchanged is the same for a map that does not change otherwise.
	Scan          float64 `json:"scan_seconds"`
	ScanUnchanged float64 `json:"scan_unchanged_seconds"`
	// Undetected are the programs whose writes only scans find, with type and id.
	Undetected []string `json:"undetected_programs,omitempty"`
	// Problem is why syncd cannot replicate the map.
	Problem string `json:"problem,omitempty"`
}

// coverage states how soon writes to a map are detected with an attach method and settings. programs are
// those that use the map.
func coverage(info *kmap.Info, programs []kmap.Program, o *capture.ProbeResult, c *config.Config) MapCoverage {
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
	m.Programs, m.Syscalls = seen(covers.Programs), seen(covers.Syscalls)
	if isLRU(info) {
		m.Evictions = seen(covers.Evictions)
	}
	for _, p := range programs {
		if covers.Programs && !o.Attach.Detects(p.Type) {
			m.Undetected = append(m.Undetected, fmt.Sprintf("%s (%s, id %d)", p.Name, p.Type, p.ID))
		}
	}
	entries := info.Entries
	if entries < 0 {
		entries = info.MaxEntries
	}
	work := time.Duration(entries) * scanEntryCost
	scan := time.Duration(float64(work) * 100 / c.ScanBudget)
	m.Scan = (max(c.ScanInterval, scan) + scan).Seconds()
	m.ScanUnchanged = m.Scan
	if o.DetectsAllWrites() {
		intervals := scanIntervals(c, m.Name)
		// The scans of a slower machine may be twice as costly, and then rarer.
		m.ScanUnchanged = (max(intervals.IntervalAtRest(2*work), scan) + scan).Seconds()
	}
	return m
}

// CoverMaps states how soon writes are detected, for every hash map and array of this host. o is the probe of the attach
// method. Listing maps needs CAP_SYS_ADMIN.
func CoverMaps(ctx context.Context, o *capture.ProbeResult, c *config.Config) ([]MapCoverage, error) {
	infos, err := kmap.List(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]uint32, len(infos))
	for i := range infos {
		ids[i] = infos[i].ID
	}
	programs, err := kmap.ProgramsOfMaps(ids)
	if err != nil {
		return nil, err
	}
	list := make([]MapCoverage, len(infos))
	for i := range infos {
		list[i] = coverage(&infos[i], programs[infos[i].ID], o, c)
	}
	return list, nil
}
