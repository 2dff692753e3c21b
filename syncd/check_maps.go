package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// scanEntryCost is about the processor time that a scan needs for one entry. docs/capture.md has the
// measurements.
const scanEntryCost = 700 * time.Nanosecond

// mapCoverage states how soon syncd sees the writes to one map of this host, with the attach method
// that auto selects. The values are "at once", "by scan" and "-".
type mapCoverage struct {
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

// coverage states how soon writes to a map are seen with an attach method and settings. programs are
// those that use the map.
func coverage(info *kmap.Info, programs []kmap.Program, o *capture.ProbeResult, c *config.Config) mapCoverage {
	m := mapCoverage{ID: info.ID, Name: info.Name, Type: info.Type.String(), Evictions: notAvailable}
	if info.Unsupported != nil {
		m.Problem = info.Unsupported.Error()
		return m
	}
	seen := func(hooked bool) string {
		if hooked {
			return atOnce
		}
		return byScan
	}
	covers := capture.Covers(o.Attach, o.Missing, info.Type)
	m.Programs, m.Syscalls = seen(covers.Programs), seen(covers.Syscalls)
	if info.Type == ebpf.LRUHash || info.Type == ebpf.LRUCPUHash {
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
	scan := time.Duration(float64(entries) * float64(scanEntryCost) * 100 / c.ScanBudget)
	m.Scan = (max(c.ScanInterval, scan) + scan).Seconds()
	m.ScanUnchanged = m.Scan
	if o.DetectsAllWrites() {
		m.ScanUnchanged = (max(c.LongestScanInterval(), scan) + scan).Seconds()
	}
	return m
}

// coverMaps states how soon writes are seen, for every hash map and array of this host.
func coverMaps(ctx context.Context, o *capture.ProbeResult) ([]mapCoverage, error) {
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
	c := config.Default()
	list := make([]mapCoverage, len(infos))
	for i := range infos {
		list[i] = coverage(&infos[i], programs[infos[i].ID], o, &c)
	}
	return list, nil
}

// printMapCoverage prints the statements about maps, and then their problems.
func printMapCoverage(out io.Writer, list []mapCoverage) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MAP\tNAME\tTYPE\tPROGRAMS\tBPF(2)\tEVICTIONS\tBY SCAN\tUNCHANGED")
	for i := range list {
		m := &list[i]
		if m.Problem == "" {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, m.Name, m.Type, m.Programs, m.Syscalls, m.Evictions,
				seconds(math.Ceil(m.Scan)), seconds(math.Ceil(m.ScanUnchanged)))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range list {
		switch m := &list[i]; {
		case m.Problem != "":
			fmt.Fprintf(out, "map %d %s cannot be replicated: %s\n", m.ID, m.Name, m.Problem)
		case len(m.Undetected) > 0:
			fmt.Fprintf(out, "map %d %s: writes by %s are seen by scan only\n", m.ID, m.Name, strings.Join(m.Undetected, ", "))
		}
	}
	_, err := fmt.Fprintln(out)
	return err
}
