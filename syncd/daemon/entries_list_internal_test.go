package daemon

import (
	"encoding/binary"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/filter"
	"mapsync/syncd/table"
)

// flowSchema has keys of a zone, 16 bits, and a port, 8 bits. With padding, a byte follows that no field has. Values have the
// index of an interface.
func flowSchema(padding int) *schema.Schema {
	return &schema.Schema{
		Map: "flows",
		Key: &schema.Message{Name: "key", Size: 3 + padding, Fields: []schema.Field{
			{Name: "zone", Number: 1, Size: 2, Kind: schema.KindUint, Type: "unsigned short"},
			{Name: "port", Number: 2, Offset: 2, Size: 1, Kind: schema.KindUint, Type: "unsigned char"},
		}},
		Value: &schema.Message{Name: "value", Size: 4, Fields: []schema.Field{
			{Name: "link", Number: 1, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "unsigned int"},
		}},
	}
}

// newTestLister returns a lister of a table with a live record for each key, and a deleted one.
func newTestLister(t *testing.T, s *schema.Schema, where []string, deleted []byte, keys ...[]byte) *lister {
	t.Helper()
	tab, err := table.New(table.Options{Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: s.Key.Size, ValueSize: s.Value.Size})
	if err != nil {
		t.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) {
		for i, key := range keys {
			value := binary.LittleEndian.AppendUint32(nil, uint32(i))
			tx.Local(&table.Change{Key: key, Value: value[:s.Value.Size], Time: int64(i + 1)})
		}
		if deleted != nil {
			tx.Local(&table.Change{Key: deleted, Op: table.OpDelete, Time: int64(len(keys) + 1)})
		}
	})
	l := &lister{t: tab, schema: s, form: FormText, text: true, printer: export.NewPrinter(s, nil), times: func() schema.Times { return schema.Times{} }}
	for _, expression := range where {
		f, err := filter.Parse(s, expression)
		if err != nil {
			t.Fatal(err)
		}
		l.filters = append(l.filters, f)
	}
	return l
}

// Conditions that determine the key are answered from the index. All other ones read the table.
func TestDumpOfOneKey(t *testing.T) {
	keys := [][]byte{{1, 0, 80}, {1, 0, 81}, {2, 0, 80}}
	for name, test := range map[string]struct {
		where      []string
		padding    []byte // of each key
		tombstones bool
		complete   bool
		found      string // ports and zones of the dump
	}{
		"one key":              {where: []string{"zone=1", "port=81"}, complete: true, found: "1:81"},
		"no such key":          {where: []string{"zone=2", "port=81"}, complete: true},
		"other value":          {where: []string{"zone=1", "port=81", "value.link=7"}, complete: true},
		"its value":            {where: []string{"zone=1", "port=81", "value.link=1"}, complete: true, found: "1:81"},
		"contradiction":        {where: []string{"zone=1", "port=81", "port=80"}, complete: true},
		"tombstone":            {where: []string{"zone=2", "port=80"}, complete: true},
		"tombstone, requested": {where: []string{"zone=2", "port=80"}, tombstones: true, complete: true, found: "2:80"},
		"open port":            {where: []string{"zone=1"}, found: "1:80 1:81"},
		"range":                {where: []string{"zone=1", "port>=81"}, found: "1:81"},
		"no condition":         {found: "1:80 1:81"},
		"padding of zeros":     {where: []string{"zone=1", "port=81"}, padding: []byte{0, 0, 0}, complete: true, found: "1:81"},
		"other padding":        {where: []string{"zone=1", "port=81"}, padding: []byte{0, 9, 0}, found: "1:81"},
		"no padding found":     {where: []string{"zone=1", "port=82"}, padding: []byte{0, 9, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var all [][]byte
			for i, key := range keys {
				if key = slices.Clone(key); test.padding != nil {
					key = append(key, test.padding[i])
				}
				all = append(all, key)
			}
			l := newTestLister(t, flowSchema(len(all[0])-3), test.where, all[2], all...)
			l.tombstones = test.tombstones
			if got := l.find(); got != test.complete {
				t.Errorf("complete by the index: got %t, want %t", got, test.complete)
			}
			l.out = nil
			w := httptest.NewRecorder()
			if err := l.dump(w); err != nil {
				t.Fatal(err)
			}
			var found []string
			for line := range strings.Lines(w.Body.String()) {
				var zone, port int
				if _, err := fmt.Sscanf(line, "{zone=%d port=%d}", &zone, &port); err != nil {
					t.Fatalf("line %q: %v", line, err)
				}
				found = append(found, fmt.Sprint(zone, ":", port))
			}
			if got := strings.Join(found, " "); got != test.found {
				t.Errorf("dump: got %q, want %q", got, test.found)
			}
		})
	}
}

// lockingLinks reads the table for each name.
type lockingLinks struct{ t *table.Table }

func (l lockingLinks) Name(uint32) (string, bool)  { return fmt.Sprint("if", l.t.Stats().Live), true }
func (l lockingLinks) Index(string) (uint32, bool) { return 0, false }

// A dump makes lines while it does not hold the lock of the table.
func TestDumpFormatsWithoutTheLock(t *testing.T) {
	l := newTestLister(t, flowSchema(0), nil, nil, []byte{1, 0, 80}, []byte{1, 0, 81})
	l.printer = export.NewPrinter(l.schema, lockingLinks{l.t})
	done := make(chan string, 1)
	go func() {
		w := httptest.NewRecorder()
		_ = l.dump(w) // the text has the outcome
		done <- w.Body.String()
	}()
	poll.Eventually(t, "the dump ends", func() bool { return len(done) == 1 })
	if text := <-done; !strings.Contains(text, "{zone=1 port=81} {link=if2} owner=a") {
		t.Errorf("dump: got %q, want the entries with interfaces", text)
	}
}

// A dump reads a bounded number of bytes while it holds the lock once, and writes lines in parts.
func TestDumpIsBounded(t *testing.T) {
	const size, entries = 64 << 10, 40
	s := schema.FromSizes("large", 4, size)
	tab, err := table.New(table.Options{Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: 4, ValueSize: size})
	if err != nil {
		t.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) {
		for i := range entries {
			tx.Local(&table.Change{Key: binary.LittleEndian.AppendUint32(nil, uint32(i)), Value: make([]byte, size), Time: int64(i + 1)})
		}
	})
	l := &lister{t: tab, schema: s, form: FormRaw, printer: export.NewPrinter(s, nil), times: func() schema.Times { return schema.Times{} }}
	cursor := tab.NewCursor(0)
	defer cursor.Close()
	if n, more := l.next(cursor, false); n < listBytes/size-1 || n > listBytes/size+1 || !more {
		t.Errorf("records of one part: got %d, more %t, want about %d, true", n, more, listBytes/size)
	}
	l.out = nil
	w := httptest.NewRecorder()
	if err := l.dump(w); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(w.Body.String(), "\n"); n != entries {
		t.Errorf("dump: got %d lines, want %d", n, entries)
	}
	if parts := cap(l.out); parts > 4*listBytes {
		t.Errorf("buffer of lines: got %d bytes, want at most %d", parts, 4*listBytes)
	}
}

// A dump of which no entry matches shows the client that it continues.
func TestDumpWithoutMatchesKeepsAlive(t *testing.T) {
	l := newTestLister(t, flowSchema(0), []string{"zone=9"}, nil, []byte{1, 0, 80})
	w := httptest.NewRecorder()
	l.written = time.Now()
	if err := l.writeSome(w); err != nil || w.Body.Len() > 0 {
		t.Errorf("written just now: got %q, error %v, want nothing", w.Body.String(), err)
	}
	l.written = l.written.Add(-keepAliveInterval)
	if err := l.writeSome(w); err != nil || w.Body.String() != "\n" || !w.Flushed || time.Since(l.written) > keepAliveInterval {
		t.Errorf("silent for an interval: got %q, flushed %t, error %v, want an empty line", w.Body.String(), w.Flushed, err)
	}
}
