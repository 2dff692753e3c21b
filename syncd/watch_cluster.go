package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/schema"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// clusterWatch prints the counters of a map, of all nodes, at an interval.
type clusterWatch struct {
	out      io.Writer
	asJSON   bool
	screen   bool // the output is a terminal: each table replaces the last one
	interval time.Duration
	top      int
	times    int // tables to print, 0: until interrupted
	fields   []string

	records map[string]daemon.Entry // by key
	// deleted has the versions of deletes, by key, until the present records have arrived: these may be older.
	deleted map[string]uint64
	rows    map[string]*clusterRow // by key and owner
	printed time.Time
}

// clusterRow is the sum of the records of a key and an owner: a drained map has one for each boot of the owner.
type clusterRow struct {
	key, owner string
	json       json.RawMessage // key
	records    int
	sums       []uint64
	last       []uint64  // sums in the last table
	rates      []float64 // per second
}

// errNoSumFields means that no field of the map is known to be a counter.
var errNoSumFields = errors.New("no field of the map has the role sum: choose counters with --sum FIELD")

// run prints tables until ctx ends.
func (w *clusterWatch) run(ctx context.Context, client *daemon.Client, name string, query daemon.EntryQuery) error {
	if len(w.fields) == 0 {
		if err := w.findFields(ctx, client, name); err != nil {
			return err
		}
	}
	query.Form = daemon.FormJSON
	entries := make(chan *daemon.Entry, 1024) // nil: all present records have arrived
	g, ctx := errgroup.WithContext(ctx)
	// Changes first, so that none is lost before the present records.
	for _, watch := range []bool{true, false} {
		q := query
		q.Watch = watch
		g.Go(func() error {
			send := func(e *daemon.Entry) error {
				select {
				case entries <- e:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			err := client.Entries(ctx, name, q, func(e *daemon.Entry) error { entry := *e; return send(&entry) })
			if err == nil && !watch {
				err = send(nil)
			}
			return err
		})
	}
	g.Go(func() error { return w.printTables(ctx, entries) })
	err := g.Wait()
	if errors.Is(err, errDone) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// errDone ends a watch that has printed all tables.
var errDone = errors.New("all tables are printed")

func (w *clusterWatch) findFields(ctx context.Context, client *daemon.Client, name string) error {
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, m := range status.Maps {
		if m.Name == name {
			w.fields = m.SumFields
		}
	}
	if len(w.fields) == 0 {
		return usageError{fmt.Errorf("map %s: %w", name, errNoSumFields)}
	}
	return nil
}

func (w *clusterWatch) printTables(ctx context.Context, entries <-chan *daemon.Entry) error {
	w.records, w.rows, w.deleted = make(map[string]daemon.Entry), make(map[string]*clusterRow), make(map[string]uint64)
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for printed := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-entries:
			if e == nil {
				w.deleted = nil
			} else if err := w.add(e); err != nil {
				return err
			}
		case now := <-tick.C:
			if err := w.print(now); err != nil {
				return err
			}
			if printed++; printed == w.times {
				return errDone
			}
		}
	}
}

// add enters a record, unless a later version of it is known.
func (w *clusterWatch) add(e *daemon.Entry) error {
	id := string(e.Key)
	former, known := w.records[id]
	if known && former.Version > e.Version || w.deleted[id] > e.Version {
		return nil
	}
	if known {
		if err := w.account(&former, false); err != nil {
			return err
		}
	}
	if e.Deleted {
		delete(w.records, id)
		if w.deleted != nil {
			w.deleted[id] = e.Version
		}
		return nil
	}
	w.records[id] = *e
	return w.account(e, true)
}

// account adds a record to its row, or removes it.
func (w *clusterWatch) account(e *daemon.Entry, add bool) error {
	key, shown, err := textOfKey(e.Key)
	if err != nil {
		return err
	}
	id := key + " " + e.Owner
	r := w.rows[id]
	if r == nil {
		r = &clusterRow{key: key, owner: e.Owner, json: shown, sums: make([]uint64, len(w.fields)), last: make([]uint64, len(w.fields)), rates: make([]float64, len(w.fields))}
		w.rows[id] = r
	}
	if add {
		r.records++
	} else {
		r.records--
	}
	for i, field := range w.fields {
		n, err := numberOf(e.Value, field)
		if err != nil {
			return err
		}
		if add {
			r.sums[i] += n
		} else {
			r.sums[i] -= n
		}
	}
	return nil
}

// print prints the rows that increased most since the last table.
func (w *clusterWatch) print(now time.Time) error {
	seconds := now.Sub(w.printed).Seconds()
	list, total := make([]*clusterRow, 0, len(w.rows)), make([]float64, len(w.fields))
	owners := make(map[string]bool)
	for id, r := range w.rows {
		for i := range r.sums {
			if r.rates[i] = 0; !w.printed.IsZero() && r.sums[i] > r.last[i] {
				r.rates[i] = float64(r.sums[i]-r.last[i]) / seconds
			}
			total[i] += r.rates[i]
		}
		copy(r.last, r.sums)
		if r.records == 0 {
			delete(w.rows, id)
			continue
		}
		owners[r.owner] = true
		list = append(list, r)
	}
	w.printed = now
	slices.SortFunc(list, func(a, b *clusterRow) int {
		return cmp.Or(cmp.Compare(b.rates[0], a.rates[0]), cmp.Compare(b.sums[0], a.sums[0]), cmp.Compare(a.key, b.key), cmp.Compare(a.owner, b.owner))
	})
	shown := list[:min(w.top, len(list))]
	if w.asJSON {
		return w.printJSON(now, shown, len(list), len(owners), total)
	}
	return w.printTable(shown, len(list), len(owners), total)
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

func (w *clusterWatch) printJSON(now time.Time, shown []*clusterRow, keys, nodes int, total []float64) error {
	table := clusterTable{Time: now, Nodes: nodes, Keys: keys, Rates: make(map[string]float64), Top: []clusterTableRow{}}
	for i, field := range w.fields {
		table.Rates[field] = total[i]
	}
	for _, r := range shown {
		row := clusterTableRow{Key: r.json, Owner: r.owner, Sums: make(map[string]string), Rates: make(map[string]float64)}
		for i, field := range w.fields {
			row.Sums[field], row.Rates[field] = strconv.FormatUint(r.sums[i], 10), r.rates[i]
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

func (w *clusterWatch) printTable(shown []*clusterRow, keys, nodes int, total []float64) error {
	var text bytes.Buffer
	if w.screen {
		text.WriteString("\033[H\033[2J") // the cursor to the first line, and clear the screen
	}
	fmt.Fprintf(&text, "keys %d, nodes %d", keys, nodes)
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
			key = key[:maxKeyWidth-3] + "..."
		}
		fmt.Fprintf(table, "%s\t%s", key, r.owner)
		for i := range w.fields {
			fmt.Fprintf(table, "\t%s\t%s", short(float64(r.sums[i])), short(r.rates[i]))
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if !w.screen {
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

// textOfKey returns the fields of a key as text, and the key, without the origin of a drained map.
func textOfKey(key json.RawMessage) (text string, shown json.RawMessage, err error) {
	decoder := json.NewDecoder(bytes.NewReader(key))
	if _, err := decoder.Token(); err != nil {
		return "", nil, fmt.Errorf("read key: %w", err)
	}
	var out, object strings.Builder
	object.WriteByte('{')
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return "", nil, fmt.Errorf("read key: %w", err)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return "", nil, fmt.Errorf("read key: %w", err)
		}
		if name == schema.OriginField {
			continue
		}
		if out.Len() > 0 {
			out.WriteByte(' ')
			object.WriteByte(',')
		}
		fmt.Fprintf(&out, "%s=%s", name, strings.Trim(string(value), `"`))
		fmt.Fprintf(&object, "%q:%s", name, value)
	}
	object.WriteByte('}')
	return out.String(), json.RawMessage(object.String()), nil
}

// numberOf returns the number in a field of a value. In a per-CPU map it is the sum over all CPUs.
func numberOf(value json.RawMessage, field string) (uint64, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(value, &object); err != nil {
		return 0, fmt.Errorf("read value: %w", err)
	}
	name, rest, nested := strings.Cut(field, ".")
	inner, ok := object[name]
	if !ok {
		return sumOfCPUs(object, field)
	}
	if nested {
		return numberOf(inner, rest)
	}
	n, err := strconv.ParseUint(strings.Trim(string(inner), `"`), 10, 64)
	if err != nil {
		return 0, usageError{fmt.Errorf("field %s is not an unsigned integer: choose another --sum", field)}
	}
	return n, nil
}

func sumOfCPUs(value map[string]json.RawMessage, field string) (sum uint64, err error) {
	var cpus []json.RawMessage
	if json.Unmarshal(value["cpu"], &cpus) != nil {
		return 0, usageError{fmt.Errorf("values have no field %s: choose another --sum", field)}
	}
	for _, cpu := range cpus {
		n, err := numberOf(cpu, field)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// addClusterWatch gives the command watch the flags of the tables. It returns a function that reports whether they are
// in use, and runs them.
func addClusterWatch(cmd *cobra.Command, flags *entryFlags) func(cmd *cobra.Command, name string) (used bool, err error) {
	w := &clusterWatch{}
	cluster := cmd.Flags().Bool("cluster", false, "print a table of the counters of all nodes at each interval, instead of changes")
	cmd.Flags().DurationVar(&w.interval, "interval", time.Second, "time between two tables")
	cmd.Flags().IntVar(&w.top, "top", 20, "maximum number of keys in a table, those that increase most")
	cmd.Flags().IntVar(&w.times, "times", 0, "number of tables (0: until interrupted)")
	cmd.Flags().StringArrayVar(&w.fields, "sum", nil, "`FIELD` of the value that is a counter (repeatable; default: those with the role sum)")
	return func(cmd *cobra.Command, name string) (bool, error) {
		if !*cluster {
			for _, flag := range []string{"interval", "top", "times", "sum"} {
				if cmd.Flags().Changed(flag) {
					return true, usageError{fmt.Errorf("--%s needs --cluster", flag)}
				}
			}
			return false, nil
		}
		switch {
		case w.interval < 100*time.Millisecond:
			return true, usageError{fmt.Errorf("--interval %s is below 100ms", w.interval)}
		case w.top < 1 || w.times < 0:
			return true, usageError{fmt.Errorf("--top %d, --times %d: give at least 1 and 0", w.top, w.times)}
		case flags.raw:
			return true, usageError{errors.New("--raw has no fields, and --cluster needs them")}
		}
		w.out, w.asJSON = cmd.OutOrStdout(), flags.asJSON
		w.screen = !w.asJSON && isTerminal(w.out)
		return true, w.run(cmd.Context(), daemon.NewClient(flags.socket), name, flags.query)
	}
}
