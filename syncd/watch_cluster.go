package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// clusterWatch prints the counters of a map, of all nodes, at an interval.
type clusterWatch struct {
	out      io.Writer
	asJSON   bool
	screen   *os.File // the terminal, on which each table replaces the last one; nil: the output is none
	interval time.Duration
	top      int
	times    int // tables to print, 0: until interrupted
	fields   []string

	records map[string]*clusterRecord // by key
	rows    map[string]*clusterRow    // by key without origin, and owner
	// watched has the keys that changed before the present records had arrived; nil afterwards. A present record may be
	// older than the change.
	watched map[string]bool
	// owners have records since the last table, or longer. Their records may be old when they arrive first.
	owners  map[string]bool
	printed time.Time
}

// clusterRecord is a record of the map.
type clusterRecord struct {
	row  *clusterRow
	sums []uint64
}

// clusterRow has the records of a key and an owner: a drained map has one for each boot of the owner.
type clusterRow struct {
	key, owner string
	json       json.RawMessage // key
	records    int
	sums       []uint64
	increases  []uint64 // since the last table
}

// errNoSumFields means that no field of the map is known to be a counter.
var errNoSumFields = errors.New("no unsigned field of the map has the role sum: choose counters with --sum FIELD")

// clusterEntry is an entry that has arrived. Without an entry, all present records have.
type clusterEntry struct {
	*daemon.Entry
	change bool // not one of the present records
}

// run prints tables until ctx ends.
func (w *clusterWatch) run(ctx context.Context, client *daemon.Client, name string, query daemon.EntryQuery) error {
	if err := w.findFields(ctx, client, name); err != nil {
		return err
	}
	query.Form, query.Watch = daemon.FormJSON, false
	entries := make(chan clusterEntry, 1024)
	g, ctx := errgroup.WithContext(ctx)
	readCluster(ctx, g, client, name, query, entries)
	g.Go(func() error { return w.printTables(ctx, entries) })
	err := g.Wait()
	if errors.Is(err, errDone) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// readCluster starts goroutines of g that send the changes and the present records of a map to entries. An entry without
// a record follows the last present record. The goroutines end with ctx.
func readCluster(ctx context.Context, g *errgroup.Group, client *daemon.Client, name string, query daemon.EntryQuery, entries chan<- clusterEntry) {
	send := func(e clusterEntry) error {
		select {
		case entries <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	read := func(q daemon.EntryQuery) error {
		return client.Entries(ctx, name, q, func(e *daemon.Entry) error {
			entry := *e
			return send(clusterEntry{&entry, q.Watch})
		})
	}
	opened := make(chan struct{})
	g.Go(func() error {
		watch := query
		watch.Watch, watch.Opened = true, func() { close(opened) }
		err := read(watch)
		if err == nil && ctx.Err() == nil {
			err = errors.New("syncd has ended the watch")
		}
		return err
	})
	// The present records come after the beginning of the watch, so that no change is missing.
	g.Go(func() error {
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := read(query); err != nil {
			return err
		}
		return send(clusterEntry{})
	})
}

// errDone ends a watch that has printed all tables.
var errDone = errors.New("all tables are printed")

// findFields checks the map, and sets the fields if none are given.
func (w *clusterWatch) findFields(ctx context.Context, client *daemon.Client, name string) error {
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(status.Maps, func(m daemon.MapStatus) bool { return m.Name == name })
	if i < 0 {
		names := make([]string, len(status.Maps))
		for i := range status.Maps {
			names[i] = status.Maps[i].Name
		}
		return usageError{errors.New(daemon.UnknownMap(name, names))}
	}
	if len(w.fields) == 0 {
		w.fields = status.Maps[i].SumFields
	}
	if len(w.fields) == 0 {
		return usageError{fmt.Errorf("map %s: %w", name, errNoSumFields)}
	}
	return nil
}

func (w *clusterWatch) reset() {
	w.records, w.rows = make(map[string]*clusterRecord), make(map[string]*clusterRow)
	w.watched, w.owners = make(map[string]bool), make(map[string]bool)
}

func (w *clusterWatch) printTables(ctx context.Context, entries <-chan clusterEntry) error {
	w.reset()
	timer := time.NewTimer(w.interval)
	defer timer.Stop()
	for printed := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-entries:
			if err := w.add(e); err != nil {
				return err
			}
		case <-timer.C:
			if w.watched == nil {
				if err := w.print(time.Now()); err != nil {
					return err
				}
				if printed++; printed == w.times {
					return errDone
				}
			}
			timer.Reset(w.interval)
		}
	}
}

// add enters an entry.
func (w *clusterWatch) add(e clusterEntry) error {
	if e.Entry == nil {
		w.watched = nil
		return nil
	}
	key := string(e.Key)
	switch {
	case w.watched == nil:
	case e.change:
		w.watched[key] = true
	case w.watched[key]:
		return nil
	}
	former := w.records[key]
	if former != nil {
		former.row.remove(former)
		delete(w.records, key)
	}
	if e.Deleted {
		return nil
	}
	return w.enter(e, former)
}

// enter adds a record to its row. former is the last one of the key, or nil.
func (w *clusterWatch) enter(e clusterEntry, former *clusterRecord) error {
	row, err := w.rowOf(e.Entry)
	if err != nil {
		return err
	}
	record := &clusterRecord{row, make([]uint64, len(w.fields))}
	for i, field := range w.fields {
		n, err := numberOf(e.Value, field)
		if err != nil {
			return err
		}
		record.sums[i] = n
		row.sums[i] += n
		switch {
		case former != nil && n >= former.sums[i]:
			row.increases[i] += n - former.sums[i]
		// The first records of an owner are those of a peer that has joined.
		case former == nil && e.change && w.owners[e.Owner]:
			row.increases[i] += n
		}
	}
	row.records++
	w.records[string(e.Key)] = record
	return nil
}

// rowOf returns the row of a record.
func (w *clusterWatch) rowOf(e *daemon.Entry) (*clusterRow, error) {
	key, shown, err := textOfKey(e.Key)
	if err != nil {
		return nil, err
	}
	id := key + " " + e.Owner
	r := w.rows[id]
	if r == nil {
		r = &clusterRow{key: key, owner: e.Owner, json: shown, sums: make([]uint64, len(w.fields)), increases: make([]uint64, len(w.fields))}
		w.rows[id] = r
	}
	return r, nil
}

// remove removes a record.
func (r *clusterRow) remove(record *clusterRecord) {
	r.records--
	for i, n := range record.sums {
		r.sums[i] -= n
	}
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
	flags.completeFlag(cmd, "sum", valueFields)
	return func(cmd *cobra.Command, name string) (bool, error) {
		if !*cluster {
			for _, flag := range []string{"interval", "top", "times", "sum"} {
				if cmd.Flags().Changed(flag) {
					return true, usageError{fmt.Errorf("--%s needs --cluster", flag)}
				}
			}
			return false, nil
		}
		if err := w.validate(flags); err != nil {
			return true, usageError{err}
		}
		w.out, w.asJSON = cmd.OutOrStdout(), flags.asJSON
		if !w.asJSON {
			w.screen = terminalOf(w.out)
		}
		return true, w.run(cmd.Context(), flags.client(), name, flags.query)
	}
}

// validate returns an error if the flags of the tables, or other flags of the command, are not usable with --cluster.
func (w *clusterWatch) validate(flags *entryFlags) error {
	switch {
	case w.interval < 100*time.Millisecond:
		return fmt.Errorf("--interval %s is below 100ms", w.interval)
	case w.top < 1 || w.times < 0:
		return fmt.Errorf("--top %d, --times %d: give at least 1 and 0", w.top, w.times)
	case flags.raw:
		return errors.New("--raw has no fields, and --cluster needs them")
	}
	for _, condition := range flags.query.Where {
		if !strings.HasPrefix(strings.TrimSpace(condition), "key.") {
			return fmt.Errorf("--where %s: with --cluster a condition is on a field of the key: write key.FIELD", condition)
		}
	}
	return nil
}
