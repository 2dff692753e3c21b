package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/filter"
	"mapsync/syncd/table"
)

// lister writes entries of one table, one a line.
type lister struct {
	t          *table.Table
	schema     *schema.Schema
	form       Form
	text       bool
	tombstones bool
	printer    *export.Printer
	filters    []*filter.Filter
	times      func() schema.Times

	entries []listEntry
	bytes   []byte    // keys and values of entries
	out     []byte    // lines that are not written yet
	written time.Time // when the last ones were written
}

// listEntry is a copy of a record.
type listEntry struct {
	key, value []byte // the value is nil for a tombstone
	owner      table.Owner
	version    table.Version
	expired    bool
	pending    bool
}

func newLister(d *Daemon, t *table.Table, s *schema.Schema, query url.Values) (*lister, error) {
	l := &lister{
		t: t, schema: s, form: Form(query.Get("form")), text: query.Get("text") == "true", tombstones: query.Get("tombstones") == "true",
		printer: export.NewPrinter(s, d.namesIn(t)), times: d.clock.times,
	}
	switch l.form {
	case FormJSON, FormText, FormRaw:
	default:
		return nil, fmt.Errorf("form %q is unknown: ask for json, text or raw", l.form)
	}
	for _, expression := range query["where"] {
		f, err := filter.Parse(s, expression)
		if err != nil {
			return nil, err
		}
		f.Links = d.namesIn(t)
		l.filters = append(l.filters, f)
	}
	return l, nil
}

const (
	// listChunk and listBytes limit the number of records, and the bytes of those that match, that are read while the table's
	// lock is held once.
	listChunk = 1024
	listBytes = 1 << 20
	// listLaps limits a dump while records change faster than it reads them.
	listLaps = 4
	// listBuffer is the number of bytes from which on lines are written.
	listBuffer = 64 << 10
)

// dump writes the records, oldest change first. A record that changes during the dump may appear twice, the newer version
// last. If records change faster than the dump reads them, it ends after listLaps times the number of records at its start.
func (l *lister) dump(w http.ResponseWriter) error {
	if l.find() {
		return l.write(w)
	}
	cursor := l.t.NewCursor(0)
	defer cursor.Close()
	st := l.t.Stats()
	left := listChunk + listLaps*(st.Live+st.Tombstones)
	l.written = time.Now()
	for more := true; more && left > 0; {
		var n int
		n, more = l.next(cursor, l.tombstones)
		left -= n
		if err := l.writeSome(w); err != nil {
			return err
		}
	}
	return l.write(w)
}

// writeSome writes l.out if it is large. If few records match, it writes something once in keepAliveInterval.
func (l *lister) writeSome(w http.ResponseWriter) error {
	switch {
	case len(l.out) >= listBuffer:
		return l.write(w)
	case time.Since(l.written) >= keepAliveInterval:
		l.out = append(l.out, '\n')
		if err := l.write(w); err != nil {
			return err
		}
		_ = http.NewResponseController(w).Flush() // the next write returns the error
	}
	return nil
}

// watch writes each later change until ctx ends or a write fails. A key that changes faster than
// the client reads appears once, with its newest content. watch returns errReplaced after same
// has returned false.
func (l *lister) watch(ctx context.Context, w http.ResponseWriter, same func() bool) error {
	wake := make(chan struct{}, 1)
	cancel := l.t.Subscribe(wake)
	defer cancel()
	cursor := l.t.NewCursor(l.t.Stats().Head)
	defer cursor.Close()
	control := http.NewResponseController(w)
	check := time.NewTicker(watchCheckInterval)
	defer check.Stop()
	for {
		for more := true; more; {
			_, more = l.next(cursor, true)
			if err := l.write(w); err != nil {
				return err
			}
		}
		if err := control.Flush(); err != nil {
			return fmt.Errorf("write entries: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-check.C:
			if !same() {
				return errReplaced
			}
			emptyLine(w)
		}
	}
}

// next reads up to listChunk records and adds the lines of the matching ones to l.out. It returns the number of records read,
// and reports whether there may be more. The lines are made without the table's lock.
func (l *lister) next(cursor *table.Cursor, tombstones bool) (n int, more bool) {
	times := l.times()
	n, more = l.read(cursor, tombstones, &times)
	l.format(&times)
	return n, more
}

// read adds the matching ones of up to listChunk records to l.entries, like next.
func (l *lister) read(cursor *table.Cursor, tombstones bool, times *schema.Times) (n int, more bool) {
	l.t.View(func(tx *table.Tx) {
		var rec table.Record
		for more = true; more && n < listChunk && len(l.bytes) < listBytes; {
			if more = tx.Next(cursor, &rec); more {
				n++
				l.add(tx, &rec, tombstones, times)
			}
		}
	})
	return n, more
}

// find looks the entries up in the index of the table if the conditions on the key leave few possible keys. It reports
// whether the entries are complete. An entry whose key has padding other than zero is complete only if no other one is found:
// two keys that differ in their padding alone cannot be replicated.
func (l *lister) find() (complete bool) {
	keys, complete := filter.Keys(l.schema, l.filters)
	times := l.times()
	l.t.View(func(tx *table.Tx) {
		var rec table.Record
		for _, key := range keys {
			if tx.Get(key, &rec) {
				complete = true
				l.add(tx, &rec, l.tombstones, &times)
			}
		}
	})
	l.format(&times)
	return complete
}

// add adds a copy of a record to l.entries if it matches.
func (l *lister) add(tx *table.Tx, rec *table.Record, tombstones bool, t *schema.Times) {
	if rec.Delete && !tombstones {
		return
	}
	for _, f := range l.filters {
		if !f.Match(rec.Key, rec.Value, t) {
			return
		}
	}
	e := listEntry{version: rec.Version, expired: rec.Expired, pending: rec.Dirty}
	from := len(l.bytes)
	l.bytes = append(append(l.bytes, rec.Key...), rec.Value...)
	e.key = l.bytes[from : from+len(rec.Key)]
	if !rec.Delete {
		e.value = l.bytes[from+len(rec.Key):]
	}
	if rec.Version != 0 {
		e.owner = tx.Owner(rec.Owner)
	}
	l.entries = append(l.entries, e)
}

// format moves l.entries to l.out, as lines.
func (l *lister) format(times *schema.Times) {
	for i := range l.entries {
		if l.text {
			l.out = l.appendText(l.out, &l.entries[i], times)
		} else {
			l.out = l.appendJSON(l.out, &l.entries[i], times)
		}
	}
	l.entries, l.bytes = l.entries[:0], l.bytes[:0]
}

// write writes l.out.
func (l *lister) write(w http.ResponseWriter) error {
	if _, err := w.Write(l.out); err != nil {
		return fmt.Errorf("write entries: %w", err)
	}
	l.out, l.written = l.out[:0], time.Now()
	return nil
}
