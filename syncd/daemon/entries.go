package daemon

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/filter"
	"mapsync/syncd/table"
)

// Form is the form of keys and values in the output.
type Form string

// The forms.
const (
	FormJSON Form = "json" // an object of typed fields
	FormText Form = "text" // a string for people, without zero fields
	FormRaw  Form = "raw"  // a hex string: the bytes of the kernel map
)

// EntryQuery selects the entries of a map and the form of the output.
type EntryQuery struct {
	Form       Form     // empty: FormJSON
	Where      []string // conditions like "dport=443"; an entry must meet all of them
	Tombstones bool     // include tombstones
	Watch      bool     // print later changes, including deletes, instead of the current records
	// Opened is called when the daemon has begun to answer: with Watch, no later change is missing. It may be nil.
	Opened func()
}

func (q *EntryQuery) path(name string) string {
	what := "/dump/"
	if q.Watch {
		what = "/watch/"
	}
	form := q.Form
	if form == "" {
		form = FormJSON
	}
	values := url.Values{"form": {string(form)}, "where": q.Where, "tombstones": {strconv.FormatBool(q.Tombstones)}}
	return what + url.PathEscape(name) + "?" + values.Encode()
}

// Entry is one record of a map as `syncd dump` and `syncd watch` show it.
type Entry struct {
	Key         json.RawMessage `json:"key"`             // in the form of the query
	Value       json.RawMessage `json:"value,omitempty"` // absent if the key is deleted
	Deleted     bool            `json:"deleted,omitempty"`
	Expired     bool            `json:"expired,omitempty"` // deleted by expiry; a kernel map may still hold it
	Owner       string          `json:"owner,omitempty"`   // empty: not adopted yet
	Incarnation uint64          `json:"incarnation,omitempty,string"`
	Changed     time.Time       `json:"changed,omitzero"` // time of the version; absent: older than syncd
	Version     uint64          `json:"version,string"`
	Pending     bool            `json:"pending,omitempty"` // not yet written to the kernel map
}

// Bytes returns the key and the value of an entry in FormRaw. The value of a deleted entry is
// nil.
func (e *Entry) Bytes() (key, value []byte, err error) {
	if key, err = unhex(e.Key); err != nil {
		return nil, nil, fmt.Errorf("decode key: %w", err)
	}
	if e.Deleted {
		return key, nil, nil
	}
	if value, err = unhex(e.Value); err != nil {
		return nil, nil, fmt.Errorf("decode value: %w", err)
	}
	return key, value, nil
}

func unhex(text json.RawMessage) ([]byte, error) {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return hex.DecodeString(s)
}

// Text returns the key and the value of an entry in FormText or FormRaw. The value of a deleted
// entry is "".
func (e *Entry) Text() (key, value string, err error) {
	if err := json.Unmarshal(e.Key, &key); err != nil {
		return "", "", fmt.Errorf("read key: %w", err)
	}
	if !e.Deleted {
		if err := json.Unmarshal(e.Value, &value); err != nil {
			return "", "", fmt.Errorf("read value: %w", err)
		}
	}
	return key, value, nil
}

// serveEntries answers a dump or watch request.
func (a *admin) serveEntries(w http.ResponseWriter, r *http.Request) {
	m, l := a.listerFor(w, r)
	if m == nil {
		return
	}
	var err error
	if strings.HasPrefix(r.URL.Path, "/watch/") {
		err = l.watch(r.Context(), w, func() bool {
			t, _ := m.current()
			return a.daemon.replica(m.name) == m && t == l.t
		})
		if errors.Is(err, errReplaced) {
			panic(http.ErrAbortHandler) // the client receives an error instead of the end of the list
		}
	} else {
		err = l.dump(w)
	}
	if err != nil {
		a.daemon.log.Debug("entries request aborted", "error", err)
	}
}

// errReplaced ends a watch after the map was removed or got another table.
var errReplaced = errors.New("the map was removed, or has another layout")

// watchCheckInterval is the interval at which a watch checks that its map still has the same
// table.
const watchCheckInterval = time.Second

// listerFor returns the replica in a request, and a lister for it. If the request is not valid,
// listerFor responds with an error and returns nil.
func (a *admin) listerFor(w http.ResponseWriter, r *http.Request) (*replica, *lister) {
	m, t, s := a.mapFor(w, r)
	if m == nil {
		return nil, nil
	}
	l, err := newLister(a.daemon, t, s, r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, nil
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	return m, l
}

// lister writes entries of one table as lines of JSON.
type lister struct {
	t          *table.Table
	form       Form
	tombstones bool
	printer    *export.Printer
	filters    []*filter.Filter
	times      func() schema.Times

	entries []Entry
}

func newLister(d *Daemon, t *table.Table, s *schema.Schema, query url.Values) (*lister, error) {
	l := &lister{
		t: t, form: Form(query.Get("form")), tombstones: query.Get("tombstones") == "true",
		printer: export.NewPrinter(s, d.links), times: d.clock.times, entries: make([]Entry, 0, listChunk),
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
		f.Links = d.links
		l.filters = append(l.filters, f)
	}
	return l, nil
}

const (
	// listChunk is the number of records that are read while the table's lock is held once.
	listChunk = 1024
	// listLaps limits a dump while records change faster than it reads them.
	listLaps = 4
)

// dump writes the records as JSON, one entry per line, oldest change first. A record that changes
// during the dump may appear twice, the newer version last. If records change faster than the
// dump reads them, it ends after listLaps times the number of records at its start.
func (l *lister) dump(w io.Writer) error {
	cursor := l.t.NewCursor(0)
	defer cursor.Close()
	out := bufio.NewWriter(w)
	st := l.t.Stats()
	left := listChunk + listLaps*(st.Live+st.Tombstones)
	for more := true; more && left > 0; left -= listChunk {
		more = l.next(cursor, l.tombstones)
		if err := l.flush(out); err != nil {
			return err
		}
	}
	return out.Flush()
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
	out := bufio.NewWriter(w)
	check := time.NewTicker(watchCheckInterval)
	defer check.Stop()
	for {
		for more := true; more; {
			more = l.next(cursor, true)
			if err := l.flush(out); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write entries: %w", err)
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
		}
	}
}

// next reads up to listChunk records and keeps the matching ones. It reports whether there may be
// more.
func (l *lister) next(cursor *table.Cursor, tombstones bool) (more bool) {
	l.entries = l.entries[:0]
	times := l.times()
	more = true
	l.t.View(func(tx *table.Tx) {
		var rec table.Record
		for range listChunk {
			if !tx.Next(cursor, &rec) {
				more = false
				return
			}
			if (!rec.Delete || tombstones) && l.matches(&rec, &times) {
				l.entries = append(l.entries, l.entry(tx, &rec, &times))
			}
		}
	})
	return more
}

func (l *lister) matches(rec *table.Record, t *schema.Times) bool {
	for _, f := range l.filters {
		if !f.Match(rec.Key, rec.Value, t) {
			return false
		}
	}
	return true
}

func (l *lister) flush(out io.Writer) error {
	encoder := json.NewEncoder(out)
	for i := range l.entries {
		if err := encoder.Encode(&l.entries[i]); err != nil {
			return fmt.Errorf("write entries: %w", err)
		}
	}
	return nil
}

func (l *lister) entry(tx *table.Tx, rec *table.Record, t *schema.Times) Entry {
	e := Entry{Key: l.key(rec.Key), Deleted: rec.Delete, Expired: rec.Expired, Version: uint64(rec.Version), Pending: rec.Dirty}
	if !rec.Delete {
		e.Value = l.value(rec.Value, t)
	}
	if rec.Version != 0 {
		owner := tx.Owner(rec.Owner)
		e.Owner, e.Incarnation = owner.Node, owner.Incarnation
		e.Changed = changedAt(rec.Version)
	}
	return e
}

// changedAt returns the time of a version. It is zero for an entry that was found in a kernel map: its time is unknown.
func changedAt(v table.Version) time.Time {
	original := table.OriginalVersion(v)
	if original == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(original))
}

func quoted(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`) // unreachable for a string
	}
	return b
}
