package replicate

import (
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestBatchWithoutAllocationPerDelta checks that encoding and merging do not allocate per delta.
func TestBatchWithoutAllocationPerDelta(t *testing.T) {
	layout := Layout{KeySize: schematest.ConnectionKeySize, ValueSize: schematest.ConnectionValueSize}
	t.Run("bytes", func(t *testing.T) { costsNoAllocation(t, layout) })
	layout.Schema = schematest.Connection()
	t.Run("typed", func(t *testing.T) { costsNoAllocation(t, layout) })
}

func costsNoAllocation(t *testing.T, layout Layout) {
	self := table.Owner{Node: "a", Incarnation: 1}
	tb := newSizedTable(t, self, layout.KeySize, layout.ValueSize, false)
	fillTable(tb, wire.MaxBatchDeltas, 1)
	m, err := newLocalMap(testMap, layout, tb)
	if err != nil {
		t.Fatalf("new local map: got error %v, want nil", err)
	}
	e := m.newEncoder(self, wire.EncoderOptions{Index: 1})
	c := tb.NewCursor(0)
	defer c.Close()
	var data []byte
	var rec table.Record
	encode := func() {
		tb.View(func(tx *table.Tx) {
			e.Begin(tx, wire.MaxBatchDeltas, schema.Times{})
			for tx.Next(c, &rec) {
				e.Add(tx, e.Slot(rec.Owner), &rec)
			}
			out := e.Finish(0, c.Position(), true)
			data = append(data[:0], out.Buffers()[0].ReadOnlyData()...)
			data = append(data, out.Buffers()[1].ReadOnlyData()...)
			out.Free()
		})
		c.Close()
		c = tb.NewCursor(0)
	}
	if n := testing.AllocsPerRun(20, encode); n > 20 {
		t.Errorf("allocations to encode a batch: got %v, want at most 20", n)
	}

	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 1}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	theirs := newSizedTable(t, r.opt.Self, layout.KeySize, layout.ValueSize, false)
	if err := r.AddMap(testMap, layout, theirs); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	s, in := newAcceptedStream(r, Peer{Node: "a", Incarnation: 1})
	merge := func() {
		in.position = 0
		if err := s.handle(data); err != nil {
			t.Fatalf("handle message: got error %v, want nil", err)
		}
	}
	merge()
	if n := testing.AllocsPerRun(20, merge); n > 0 {
		t.Errorf("allocations to merge a batch: got %v, want none", n)
	}
	if n := theirs.Stats().Live; n != wire.MaxBatchDeltas {
		t.Errorf("merged keys: got %d, want maxBatchDeltas", n)
	}
}

// TestListWithoutAllocationPerDelta checks that a list of differences does not allocate for records that are the same here, and
// that it does not compare records once it is full.
func TestListWithoutAllocationPerDelta(t *testing.T) {
	x, l := newListFixture(t)
	x.in.comparison.list = nil
	x.beginResend(l)
	l.exact = true
	same := stockBatch(x.in.index, x.in.position, x.in.position, 1, 2, 3)
	same.GetBatch().Resent, same.GetBatch().CaughtUp = true, false
	costs := func(m *mapsyncv1.SubscribeResponse) float64 {
		data := mustMarshal(t, m)
		return testing.AllocsPerRun(20, func() {
			if err := x.stream.handle(data); err != nil {
				t.Fatal(err)
			}
		})
	}
	if n := costs(same); n > 0 || len(l.differences) != 0 {
		t.Errorf("records that are the same: got %v allocations, %d differences, want none", n, len(l.differences))
	}
	l.differences = make([]Difference, maxDifferences)
	if n := costs(x.resentBatch(1, 2, 4)); n > 0 {
		t.Errorf("records for a full list: got %v allocations, want none", n)
	}
}
