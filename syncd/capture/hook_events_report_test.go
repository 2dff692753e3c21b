package capture_test

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// report collects the results of all rows, for one table per kernel.
var report caseReport

type caseReport struct {
	rows  []string
	cells map[string]map[string]string
}

func (r *caseReport) add(row string, h *hookedCapture, cell string) {
	if r.cells == nil {
		r.cells = make(map[string]map[string]string)
	}
	if r.cells[row] == nil {
		r.rows, r.cells[row] = append(r.rows, row), make(map[string]string)
	}
	r.cells[row][string(h.attach)+" "+string(h.buffer)] = cell
}

func (r *caseReport) print() {
	columns := []string{"kprobe ring", "kprobe perf", "fexit ring", "fexit perf"}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "events/hook runs\t%s\n", strings.Join(columns, "\t"))
	for _, row := range r.rows {
		fmt.Fprint(w, row)
		for _, column := range columns {
			fmt.Fprint(w, "\t", r.cells[row][column])
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	printKernel(text.String())
}
