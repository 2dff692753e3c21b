package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"mapsync/printable"
)

// rate returns the increase of a field per second.
func (r *clusterRow) rate(field int, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(r.increases[field]) / seconds
}

// print prints the rows that increased most since the last table.
func (w *clusterWatch) print(now time.Time) error {
	seconds := 0.0
	if !w.printed.IsZero() {
		seconds = now.Sub(w.printed).Seconds()
	}
	w.printed = now
	shown, total := w.takeRows(seconds)
	var err error
	if w.asJSON {
		err = w.printJSON(now, shown, seconds, total)
	} else {
		err = w.printTable(shown, seconds, total)
	}
	for _, r := range w.rows {
		clear(r.increases)
	}
	return err
}

// takeRows returns the first w.top rows in the order of a table, and the rate of each field over all rows. It removes
// the rows that have no records, and updates the owners.
func (w *clusterWatch) takeRows(seconds float64) (shown []*clusterRow, total []float64) {
	total = make([]float64, len(w.fields))
	clear(w.owners)
	for id, r := range w.rows {
		for i := range total {
			total[i] += r.rate(i, seconds)
		}
		if r.records == 0 {
			delete(w.rows, id)
			continue
		}
		w.owners[r.owner] = true
		if at, _ := slices.BinarySearchFunc(shown, r, compareRows); at < w.top {
			shown = slices.Insert(shown, at, r)
			shown = shown[:min(w.top, len(shown))]
		}
	}
	return shown, total
}

// compareRows sorts rows by their increase, and then by their sum.
func compareRows(a, b *clusterRow) int {
	return cmp.Or(cmp.Compare(b.increases[0], a.increases[0]), cmp.Compare(b.sums[0], a.sums[0]), cmp.Compare(a.key, b.key), cmp.Compare(a.owner, b.owner))
}

// clusterTable is the output with --json: one object for each table.
type clusterTable struct {
	Time  time.Time          `json:"time"`
	Nodes int                `json:"nodes"` // owners of keys
	Keys  int                `json:"keys"`  // of all owners
	Rates map[string]float64 `json:"rates"` // per second, of all keys
	Top   []clusterTableRow  `json:"top"`
}

type clusterTableRow struct {
	Key   json.RawMessage    `json:"key"`
	Owner string             `json:"owner"`
	Sums  map[string]string  `json:"sums"`
	Rates map[string]float64 `json:"rates"` // per second
}

func (w *clusterWatch) printJSON(now time.Time, shown []*clusterRow, seconds float64, total []float64) error {
	table := clusterTable{Time: now, Nodes: len(w.owners), Keys: len(w.rows), Rates: make(map[string]float64), Top: []clusterTableRow{}}
	for i, field := range w.fields {
		table.Rates[field] = total[i]
	}
	for _, r := range shown {
		row := clusterTableRow{Key: r.json, Owner: r.owner, Sums: make(map[string]string), Rates: make(map[string]float64)}
		for i, field := range w.fields {
			row.Sums[field], row.Rates[field] = strconv.FormatUint(r.sums[i], 10), r.rate(i, seconds)
		}
		table.Top = append(table.Top, row)
	}
	if err := json.NewEncoder(w.out).Encode(table); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

// maxKeyWidth is the longest text of a key in a table.
const maxKeyWidth = 48

func (w *clusterWatch) printTable(shown []*clusterRow, seconds float64, total []float64) error {
	var text bytes.Buffer
	if w.screen != nil {
		// The cursor to the first line, and clear the screen.
		if _, err := io.WriteString(w.screen, "\033[H\033[2J"); err != nil {
			return fmt.Errorf("print table: %w", err)
		}
	}
	fmt.Fprintf(&text, "keys %d, nodes %d", len(w.rows), len(w.owners))
	for i, field := range w.fields {
		fmt.Fprintf(&text, ", %s %s/s", field, short(total[i]))
	}
	text.WriteByte('\n')
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	fmt.Fprint(table, "KEY\tOWNER")
	for _, field := range w.fields {
		fmt.Fprintf(table, "\t%[1]s\t%[1]s/s", strings.ToUpper(field))
	}
	fmt.Fprintln(table)
	for _, r := range shown {
		key := r.key
		if len(key) > maxKeyWidth {
			key = printable.Truncated(key, maxKeyWidth-3)
		}
		fmt.Fprintf(table, "%s\t%s", key, r.owner)
		for i := range w.fields {
			fmt.Fprintf(table, "\t%s\t%s", short(float64(r.sums[i])), short(r.rate(i, seconds)))
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if w.screen == nil {
		text.WriteByte('\n')
	}
	_, err := w.out.Write(text.Bytes())
	return err
}

// short returns a number with at most five digits, and a unit prefix.
func short(n float64) string {
	for _, prefix := range []string{"", "k", "M", "G", "T", "P", "E"} {
		if math.Abs(n) < 10_000 || prefix == "E" {
			return strconv.FormatFloat(n, 'f', 0, 64) + prefix
		}
		n /= 1000
	}
	return ""
}
