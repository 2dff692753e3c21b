package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"mapsync/syncd/daemon"
)

// scanTimesOf explains the last columns.
const scanTimesOf = "BY SCAN and UNCHANGED: for a map that is replicated alone; replicated maps share scan-budget;\n" +
	"for machines whose scans need at most twice the processor time of those in docs/capture.md"

// printMapCoverage prints the statements about maps, and then their problems.
func printMapCoverage(out io.Writer, list []daemon.MapCoverage) error {
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
	if len(list) > 0 {
		fmt.Fprintln(out, scanTimesOf)
	}
	for i := range list {
		m := &list[i]
		printMapProblems(out, m.ID, m.Name, m.Problem, m.Undetected)
	}
	_, err := fmt.Fprintln(out)
	return err
}

// printMapProblems prints why a map cannot be replicated, unless problem is empty, and the programs whose writes to the map
// the hooks do not detect.
func printMapProblems(out io.Writer, id uint32, name, problem string, undetected []string) {
	if problem != "" {
		fmt.Fprintf(out, "map %d %s cannot be replicated: %s\n", id, name, problem)
	}
	for _, program := range undetected {
		fmt.Fprintf(out, "map %d %s: writes by %s are seen by scan only\n", id, name, program)
	}
}
