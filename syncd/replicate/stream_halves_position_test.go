package replicate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// newTestEncoder returns a StreamEncoder of a table with three entries, from a position on,
// and the table.
func newTestEncoder(t *testing.T, after uint64) (*StreamEncoder, *table.Table) {
	t.Helper()
	from := newTable(t, table.Owner{Node: "a", Incarnation: 1}, false)
	putTable(t, from, 1, 4, 1)
	e, err := NewStreamEncoder(from, nil, after)
	if err != nil {
		t.Fatalf("new stream encoder: got error %v, want nil", err)
	}
	t.Cleanup(e.Close)
	return e, from
}

// allMessages returns the messages up to the end.
func (e *StreamEncoder) allMessages(t *testing.T) (messages [][]byte) {
	t.Helper()
	for more := true; more; {
		var err error
		more, err = e.Next(func(m mem.BufferSlice) { messages = append(messages, m.Materialize()) })
		if err != nil {
			t.Fatalf("next messages: got error %v, want nil", err)
		}
	}
	return messages
}

// TestStreamEncoderAndDecoder checks that a StreamDecoder merges the messages of a
// StreamEncoder in order.
func TestStreamEncoderAndDecoder(t *testing.T) {
	e, from := newTestEncoder(t, 0)
	to := newTable(t, table.Owner{Node: "b", Incarnation: 2}, false)
	d, err := NewStreamDecoder(to, nil, from.Self())
	if err != nil {
		t.Fatalf("new stream decoder: got error %v, want nil", err)
	}
	first := e.allMessages(t)
	putTable(t, from, 4, 5, 1)
	second := e.allMessages(t)
	if len(first) != 1 || len(second) != 1 {
		t.Fatalf("messages: got %d and %d, want 1 and 1", len(first), len(second))
	}
	for i, want := range []int{3, 4} {
		if err := d.Merge([][]byte{first[0], second[0]}[i]); err != nil || len(live(to)) != want {
			t.Errorf("message %d: got error %v, %d entries, want %d", i, err, len(live(to)), want)
		}
	}
	if err := d.Merge(first[0]); !errors.Is(err, errGap) {
		t.Errorf("merge a message again: got %v, want a gap", err)
	}
	if err := d.Merge([]byte{0xff}); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("merge an invalid message: got %v, want ErrMalformed", err)
	}
	other, err := NewStreamDecoder(newTable(t, table.Owner{Node: "c", Incarnation: 2}, false), nil, table.Owner{Node: "x", Incarnation: 1})
	if err != nil {
		t.Fatalf("new stream decoder: got error %v, want nil", err)
	}
	if err := other.Merge(first[0]); !errors.Is(err, errProtocol) {
		t.Errorf("merge a message of another node: got %v, want a protocol error", err)
	}
}

// TestStreamEncoderFromPosition checks that records before the position are not encoded.
func TestStreamEncoderFromPosition(t *testing.T) {
	for after, c := range map[uint64]struct {
		from uint64
		n    int
	}{0: {0, 3}, 2: {2, 1}, 3: {3, 0}, 99: {0, 3}} {
		e, _ := newTestEncoder(t, after)
		n := 0
		for _, m := range e.allMessages(t) {
			var b wire.Batch
			data, ok := wire.BatchPayload(m)
			if !ok || b.Parse(data) != nil {
				t.Fatalf("after %d: got no batch, want a valid one", after)
			}
			n += b.DeltaCount
		}
		if e.outbound.startPosition != c.from || n != c.n {
			t.Errorf("after %d: got %d records from %d, want %d from %d", after, n, e.outbound.startPosition, c.n, c.from)
		}
	}
}

// TestStreamEncoderSchemaMismatch checks that a schema that does not fit the table is an error, and
// that no peer is dialled.
func TestStreamEncoderSchemaMismatch(t *testing.T) {
	tb := newTable(t, table.Owner{Node: "a", Incarnation: 1}, false)
	if _, err := NewStreamEncoder(tb, schematest.OldVersion(), 0); !errors.Is(err, ErrMap) {
		t.Errorf("new encoder: got %v, want ErrMap", err)
	}
	if _, err := NewStreamDecoder(tb, schematest.OldVersion(), target); !errors.Is(err, ErrMap) {
		t.Errorf("new decoder: got %v, want ErrMap", err)
	}
	e, _ := newTestEncoder(t, 0)
	if _, err := e.outbound.s.r.opt.Dial(peerX(5)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "dial from standalone replicator") {
		t.Errorf("dial: got %v, want an error with context.Canceled and \"dial from standalone replicator\"", err)
	}
}
