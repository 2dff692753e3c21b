package replicate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"mapsync/syncd/table"
)

// measuredFrom returns an Encoding of a table with three entries, from a position on, and the table.
func measuredFrom(t *testing.T, after uint64) (*Encoding, *table.Table) {
	t.Helper()
	from := newTable(t, table.Owner{Node: "a", Incarnation: 1}, false)
	putTable(t, from, 1, 4, 1)
	e, err := NewEncoding(from, nil, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, from
}

// all returns the messages up to the end.
func (e *Encoding) all(t *testing.T) (messages [][]byte) {
	t.Helper()
	for more := true; more; {
		var err error
		more, err = e.Next(func(m mem.BufferSlice) { messages = append(messages, m.Materialize()) })
		if err != nil {
			t.Fatal(err)
		}
	}
	return messages
}

// TestMeasuredStream: what an Encoding makes, a Decoding takes in, in order.
func TestMeasuredStream(t *testing.T) {
	e, from := measuredFrom(t, 0)
	to := newTable(t, table.Owner{Node: "b", Incarnation: 2}, false)
	d, err := NewDecoding(to, nil, from.Self())
	if err != nil {
		t.Fatal(err)
	}
	first := e.all(t)
	putTable(t, from, 4, 5, 1)
	second := e.all(t)
	if len(first) != 1 || len(second) != 1 {
		t.Fatalf("%d and %d messages", len(first), len(second))
	}
	for i, want := range []int{3, 4} {
		if err := d.Take([][]byte{first[0], second[0]}[i]); err != nil || len(live(to)) != want {
			t.Errorf("message %d: %v, %d entries, want %d", i, err, len(live(to)), want)
		}
	}
	if err := d.Take(first[0]); !errors.Is(err, errGap) {
		t.Errorf("a message for the second time: %v", err)
	}
	if err := d.Take([]byte{0xff}); !errors.Is(err, errMalformed) {
		t.Errorf("a broken message: %v", err)
	}
	other, err := NewDecoding(newTable(t, table.Owner{Node: "c", Incarnation: 2}, false), nil, table.Owner{Node: "x", Incarnation: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Take(first[0]); !errors.Is(err, errProtocol) {
		t.Errorf("a message of another node: %v", err)
	}
}

// TestMeasuringFromAPosition leaves out what is before it.
func TestMeasuringFromAPosition(t *testing.T) {
	for after, c := range map[uint64]struct {
		from uint64
		n    int
	}{0: {0, 3}, 2: {2, 1}, 3: {3, 0}, 99: {0, 3}} {
		e, _ := measuredFrom(t, after)
		n := 0
		for _, m := range e.all(t) {
			var b batch
			data, ok := batchOf(m)
			if !ok || b.parse(data) != nil {
				t.Fatalf("after %d: no batch", after)
			}
			n += b.deltas
		}
		if e.feed.origin != c.from || n != c.n {
			t.Errorf("after %d: %d records from %d, want %d from %d", after, n, e.feed.origin, c.n, c.from)
		}
	}
}

// TestMeasuringOtherTypes: a schema that does not fit the table is an error, and no peer is dialled.
func TestMeasuringOtherTypes(t *testing.T) {
	tb := newTable(t, table.Owner{Node: "a", Incarnation: 1}, false)
	if _, err := NewEncoding(tb, oldSchema(), 0); !errors.Is(err, ErrMap) {
		t.Errorf("encoding: %v", err)
	}
	if _, err := NewDecoding(tb, oldSchema(), target); !errors.Is(err, ErrMap) {
		t.Errorf("decoding: %v", err)
	}
	e, _ := measuredFrom(t, 0)
	if _, err := e.feed.s.r.opt.Dial(peerX(5)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "dial while measuring") {
		t.Errorf("dial: %v", err)
	}
}
