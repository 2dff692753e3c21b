package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
)

// scanTimesAlone and scanTimesTogether explain the last columns.
const (
	scanTimesAlone    = "BY SCAN and UNCHANGED: for a map that is replicated alone; replicated maps share scan-budget;\n" + scanTimesFor
	scanTimesTogether = "BY SCAN and UNCHANGED: for these maps together, which share scan-budget;\n" + scanTimesFor
	scanTimesFor      = "for machines whose scans need at most twice the processor time of those in docs/capture.md"
)

// hostCoverage states how soon syncd detects the writes to the maps of this host.
type hostCoverage struct {
	// Maps are the maps of this host, those that cannot be replicated included. MapsOmitted is the number of maps that it
	// leaves out. MapsProblem is why the maps cannot be listed.
	Maps        []daemon.MapCoverage `json:"maps"`
	MapsOmitted int                  `json:"maps_omitted,omitempty"`
	MapsProblem string               `json:"maps_problem,omitempty"`
}

func (h *hostCoverage) print(out io.Writer) error {
	if h.MapsProblem != "" {
		fmt.Fprintf(out, "the maps of this host are not listed: %s\n\n", h.MapsProblem)
		return nil
	}
	if err := printMapCoverage(out, h.Maps, scanTimesAlone); err != nil {
		return err
	}
	if h.MapsOmitted > 0 {
		fmt.Fprintf(out, omittedMaps, h.MapsOmitted)
	}
	_, err := fmt.Fprintln(out)
	return err
}

// omittedMaps is the line with the number of maps that are left out.
const omittedMaps = "maps that are left out: %d (buffers of events; arrays of programs, of variables and of syncd)\n"

// printMapCoverage prints the statements about maps, with an explanation of the times, and then their problems.
func printMapCoverage(out io.Writer, list []daemon.MapCoverage, times string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MAP\tNAME\tTYPE\tPROGRAMS\tBPF(2)\tEVICTIONS\tBY SCAN\tUNCHANGED")
	rows := 0
	for i := range list {
		m := &list[i]
		if m.Problem != "" || m.DrainSums {
			continue
		}
		rows++
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, m.Name, m.Type, m.Programs, m.Syscalls, m.Evictions,
			seconds(math.Ceil(m.Scan)), seconds(math.Ceil(m.ScanUnchanged)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if rows > 0 {
		fmt.Fprintln(out, times)
	}
	for i := range list {
		m := &list[i]
		printMapProblems(out, m.ID, m.Name, m.Problem, m.Undetected)
		printMapSettings(out, m)
	}
	return nil
}

// printMapSettings prints what the settings of a map change.
func printMapSettings(out io.Writer, m *daemon.MapCoverage) {
	line := func(format string, args ...any) {
		wrap(out, fmt.Sprintf("map %d %s: ", m.ID, m.Name)+fmt.Sprintf(format, args...))
	}
	if m.DrainSums {
		line("syncd replicates sums of its drained entries, not its entries (drain-sums)")
	}
	if m.InPlace > 0 {
		line("a change in place of an entry that a program looks up is found within %s (in-place: hook)", seconds(m.InPlace))
	}
	if m.InPlaceProblem != "" {
		line("in-place: hook has no effect, scans find changes in place: %s", m.InPlaceProblem)
	}
	if m.Deletes == config.DeletesAny {
		line("a delete on any node is replicated (deletes: any)")
	}
}

// printMapProblems prints why a map cannot be replicated, unless problem is empty, and the programs whose writes to the map
// the hooks do not detect.
func printMapProblems(out io.Writer, id uint32, name, problem string, undetected []string) {
	if reason := strings.TrimPrefix(problem, kmap.ErrUnsupported.Error()+": "); reason != "" {
		wrap(out, fmt.Sprintf("map %d %s cannot be replicated: %s", id, name, reason))
	}
	for _, program := range undetected {
		wrap(out, fmt.Sprintf("map %d %s: writes by %s are seen by scan only", id, name, program))
	}
}
