package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestEncodedBatchMatchesStockDecoder decodes the batches of the encoder with the stock decoder. It
// compares every field, and the size with that of the stock encoder.
func TestEncodedBatchMatchesStockDecoder(t *testing.T) {
	self := table.Owner{Node: "a", Incarnation: 77}
	tb := newTable(t, self)
	putTable(t, tb, 0, 1500, 1)
	tb.Update(func(tx *table.Tx) {
		for i := range 200 {
			id := tx.Intern(table.Owner{Node: "x", Incarnation: uint64(i)})
			d := table.Delta{Key: key(i), Version: 1 << 61, Owner: id, Delete: i%3 == 0, Value: value(i)}
			if o := tx.Remote(&d, 0, table.RemoteOptions{}); o != table.Accepted {
				t.Fatalf("delta of x: got outcome %v, want %v", o, table.Accepted)
			}
		}
	})
	want := make(map[string]*mapsyncv1.Delta)
	c := tb.NewCursor(0)
	defer c.Close()
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		e := NewEncoder(EncoderOptions{Index: 300, Origin: self, Schema: codecOf(t, tb)})
		for done := false; !done; {
			from := c.Position()
			e.Begin(tx, tx.Head(), schema.Times{})
			for e.Fits() {
				if done = !tx.Next(c, &rec); done {
					break
				}
				e.Add(tx, e.Slot(rec.Owner), &rec)
				d := wantDelta(&rec)
				want[string(d.Key)] = d
			}
			checkBatch(t, tx, frameBytes(e.Finish(from, c.Position(), done)), self, from, c.Position(), done, want)
		}
	})
	if len(want) > 0 {
		t.Errorf("records that were not sent: got %d, want 0", len(want))
	}
}

func wantDelta(rec *table.Record) *mapsyncv1.Delta {
	d := &mapsyncv1.Delta{
		Key: wireBytes(rec.Key), Value: wireBytes(rec.Value), Version: uint64(rec.Version),
		Owner: uint32(rec.Owner), Operation: mapsyncv1.Operation_OPERATION_UPDATE,
	}
	if rec.Delete {
		d.Operation = mapsyncv1.Operation_OPERATION_DELETE
	}
	return d
}

func checkBatch(t *testing.T, tx *table.Tx, data []byte, self table.Owner, from, to uint64, last bool, want map[string]*mapsyncv1.Delta) {
	t.Helper()
	var m mapsyncv1.SubscribeResponse
	if err := proto.Unmarshal(data, &m); err != nil {
		t.Fatalf("unmarshal: got error %v, want nil", err)
	}
	if n := proto.Size(&m); n != len(data) {
		t.Errorf("size of the batch: got %d bytes, want %d", len(data), n)
	}
	if len(data) > maxBatchBytes+16<<10 {
		t.Errorf("size of the batch: got %d bytes, want a header of at most 16 KiB and maxBatchBytes", len(data))
	}
	b := m.GetBatch()
	for _, d := range b.GetDeltas() {
		o := b.GetOwners()[d.GetOwner()]
		d.Owner = uint32(tx.Intern(table.Owner{Node: o.GetNode(), Incarnation: o.GetNumber()}))
		if diff := cmp.Diff(want[string(d.GetKey())], d, protocmp.Transform()); diff != "" {
			t.Fatalf("delta (-want +got):\n%s", diff)
		}
		delete(want, string(d.GetKey()))
	}
	b.Deltas, b.Owners = nil, nil
	head := &mapsyncv1.Batch{Map: 300, Origin: incarnation(self), PreviousPosition: from, Position: to, CaughtUp: last}
	if diff := cmp.Diff(head, b, protocmp.Transform()); diff != "" {
		t.Errorf("head of the batch (-want +got):\n%s", diff)
	}
}

// TestFieldSizes checks that the computed sizes are those of the encoded fields.
func TestFieldSizes(t *testing.T) {
	for _, n := range []int{0, 1, 2, 127, 128, 16383, 16384} {
		if got, want := bytesSize(n), len(appendBytes(nil, tagKey, make([]byte, n))); got != want {
			t.Errorf("%d bytes: size: want %d, got %d", n, want, got)
		}
		if got, want := fieldSize(uint64(n)), len(appendField(nil, tagOwner, uint64(n))); got != want {
			t.Errorf("number %d: size: want %d, got %d", n, want, got)
		}
	}
}
