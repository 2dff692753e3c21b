package wire

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// encodeAll encodes the records of a table after a cursor into one batch, as long as they fit. It
// returns the batch as the stock decoder reads it.
func encodeAll(t *testing.T, e *Encoder, tb *table.Table, c *table.Cursor) *mapsyncv1.Batch {
	t.Helper()
	var rec table.Record
	previous := c.Position()
	tb.View(func(tx *table.Tx) {
		e.Begin(tx, tx.Head(), schema.Times{})
		for e.Fits() && tx.Next(c, &rec) {
			e.Add(tx, e.Slot(rec.Owner), &rec)
		}
	})
	return finished(t, e, previous, c.Position(), false)
}

// finished returns the batch of Finish as the stock decoder reads it.
func finished(t *testing.T, e *Encoder, previous, position uint64, caughtUp bool) *mapsyncv1.Batch {
	t.Helper()
	out := e.Finish(previous, position, caughtUp)
	defer out.Free()
	var m mapsyncv1.SubscribeResponse
	if err := proto.Unmarshal(frameBytes(out), &m); err != nil {
		t.Fatalf("unmarshal: got error %v, want nil", err)
	}
	return m.GetBatch()
}

// putRemote merges a record of another owner.
func putRemote(t *testing.T, tb *table.Table, owner table.Owner, d table.Delta) {
	t.Helper()
	tb.Update(func(tx *table.Tx) {
		d.Owner = tx.Intern(owner)
		if o := tx.Remote(&d, 0, table.RemoteOptions{}); o != table.Accepted {
			t.Fatalf("record of %v: got %s, want %s", owner, o, table.Accepted)
		}
	})
}

// TestExpiredRecords checks how an expired record is sent to each kind of peer, and that other records are
// sent as usual.
func TestExpiredRecords(t *testing.T) {
	self, z := table.Owner{Node: "a", Incarnation: 1}, table.Owner{Node: "z", Incarnation: 1}
	tb := newTable(t, self)
	putRemote(t, tb, z, table.Delta{Key: key(1), Value: value(1), Version: 5})
	putRemote(t, tb, z, table.Delta{Key: key(1), Version: 5, Delete: true, Expired: true})
	putRemote(t, tb, z, table.Delta{Key: key(2), Value: value(1), Version: 6})
	putRemote(t, tb, z, table.Delta{Key: key(3), Version: 7, Delete: true})
	const update, remove, expire = mapsyncv1.Operation_OPERATION_UPDATE, mapsyncv1.Operation_OPERATION_DELETE, mapsyncv1.Operation_OPERATION_EXPIRE
	for name, c := range map[string]struct {
		observe bool
		want    []mapsyncv1.Operation
	}{
		"replica":  {false, []mapsyncv1.Operation{expire, update, remove}},
		"observer": {true, []mapsyncv1.Operation{remove, update, remove}},
	} {
		e := NewEncoder(EncoderOptions{Index: 1, Origin: self, Schema: codecOf(t, tb), Observe: c.observe})
		cursor := tb.NewCursor(0)
		var got []mapsyncv1.Operation
		for _, d := range encodeAll(t, e, tb, cursor).GetDeltas() {
			got = append(got, d.GetOperation())
		}
		cursor.Close()
		if !slices.Equal(got, c.want) || e.Deltas() != len(c.want) {
			t.Errorf("%s: operations: got %v, %d deltas, want %v", name, got, e.Deltas(), c.want)
		}
	}
}

// TestUnencodableRecords checks that a record whose key cannot be encoded is reported and counted, and
// that the batch contains its key and the other records.
func TestUnencodableRecords(t *testing.T) {
	s := schematest.OldVersion()
	self := table.Owner{Node: "a", Incarnation: 1}
	tb, err := table.New(table.Options{Self: self, KeySize: s.Key.Size, ValueSize: s.Value.Size})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	enc, err := schema.NewEncoder(s, nil)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	padded := []byte{10, 0, 0, 2, 0, 80, 0, 1} // the last two bytes are padding
	tb.Update(func(tx *table.Tx) {
		for i, key := range [][]byte{{10, 0, 0, 1, 0, 80, 0, 0}, padded, {10, 0, 0, 3, 0, 80, 0, 0}} {
			tx.Local(&table.Change{Key: key, Value: make([]byte, s.Value.Size), Time: int64(i + 1)})
		}
	})
	var reported [][]byte
	e := NewEncoder(EncoderOptions{Index: 1, Origin: self, Schema: enc, Unencodable: func(tx *table.Tx, r *table.Record, err error) {
		if reported = append(reported, slices.Clone(r.Key)); !errors.Is(err, schema.ErrPadding) || tx.Owner(r.Owner) != self {
			t.Errorf("unencodable record: got error %v, owner %v, want an error with schema.ErrPadding and %v", err, tx.Owner(r.Owner), self)
		}
	}})
	c := tb.NewCursor(0)
	defer c.Close()
	if b := encodeAll(t, e, tb, c); len(b.GetDeltas()) != 3 || e.Deltas() != 3 || b.GetDeltas()[1].GetOperation() != mapsyncv1.Operation_OPERATION_UNSENT || e.Unencodable() != 1 || len(reported) != 1 || !slices.Equal(reported[0], padded) {
		t.Errorf("batch: got %d deltas, counted %d and %d unencodable, reported %x, want 3 with a key alone, 3, 1 and %x",
			len(b.GetDeltas()), e.Deltas(), e.Unencodable(), reported, padded)
	}
	if b := encodeAll(t, e, tb, c); len(b.GetDeltas())+e.Deltas()+e.Unencodable() != 0 {
		t.Errorf("next batch: got %d deltas, counted %d and %d unencodable, want none", len(b.GetDeltas()), e.Deltas(), e.Unencodable())
	}
}

// TestBatchMarks checks the marks of a batch, and batches without deltas.
func TestBatchMarks(t *testing.T) {
	self := table.Owner{Node: "a"}
	tb := newTable(t, self)
	putTable(t, tb, 0, 3, 1)
	for range 2 {
		for i := range 8 {
			resent, requested, caughtUp := i&1 != 0, i&2 != 0, i&4 != 0
			e := NewEncoder(EncoderOptions{Index: 7, Origin: self, Schema: codecOf(t, tb), Resent: resent, Requested: requested})
			check := func(what string, b *mapsyncv1.Batch) {
				t.Helper()
				if b.GetResent() != resent || b.GetRequested() != requested || b.GetCaughtUp() != caughtUp || b.GetMap() != 7 ||
					b.GetPreviousPosition() != 3 || b.GetPosition() != 300 || b.GetOrigin().GetNode() != "a" || len(b.GetDeltas())+len(b.GetOwners()) != 0 {
					t.Errorf("%s: got %v, want resent %t, requested %t, caught up %t", what, b, resent, requested, caughtUp)
				}
			}
			check("before Begin", finished(t, e, 3, 300, caughtUp))
			tb.View(func(tx *table.Tx) { e.Begin(tx, 0, schema.Times{}) })
			check("without records", finished(t, e, 3, 300, caughtUp))
			tb.View(func(tx *table.Tx) { e.Begin(tx, 0, schema.Times{}) })
			e.Release()
			e.Release()
			check("after Release", finished(t, e, 3, 300, caughtUp))
		}
	}
}

// TestBatchBounds checks that batches are full at MaxBatchDeltas, and that a batch of large entries ends
// before its buffer does.
func TestBatchBounds(t *testing.T) {
	self := table.Owner{Node: "a", Incarnation: 1}
	tb := newTable(t, self)
	putTable(t, tb, 0, 2*MaxBatchDeltas+1, 1)
	e := NewEncoder(EncoderOptions{Index: 1, Origin: self, Schema: codecOf(t, tb)})
	c := tb.NewCursor(0)
	defer c.Close()
	for _, want := range []int{MaxBatchDeltas, MaxBatchDeltas, 1, 0} {
		if b := encodeAll(t, e, tb, c); len(b.GetDeltas()) != want || e.Deltas() != want {
			t.Errorf("deltas of a batch: got %d, counted %d, want %d", len(b.GetDeltas()), e.Deltas(), want)
		}
	}
	const size = 30_000
	large, err := table.New(table.Options{Self: self, KeySize: testKeySize, ValueSize: size})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	large.Update(func(tx *table.Tx) {
		for i := range 10 {
			v := make([]byte, size)
			v[size-1] = 1
			tx.Local(&table.Change{Key: key(i), Value: v, Time: 1})
		}
	})
	e = NewEncoder(EncoderOptions{Index: 1, Origin: self, Schema: codecOf(t, large)})
	all := large.NewCursor(0)
	defer all.Close()
	for _, want := range []int{4, 4, 2} {
		b := encodeAll(t, e, large, all)
		if n := len(b.GetDeltas()); n != want || proto.Size(b) > bufferSizes[len(bufferSizes)-1] {
			t.Errorf("batch of large entries: got %d deltas in %d bytes, want %d", n, proto.Size(b), want)
		}
	}
}

// TestOwnersOfBatches checks that each batch has its owners once, in the order of their first records,
// and that decisions of the caller remain in their slots.
func TestOwnersOfBatches(t *testing.T) {
	tb := newTable(t, table.Owner{Node: "a", Incarnation: 1})
	y, z := table.Owner{Node: "y", Incarnation: 1}, table.Owner{Node: "z"}
	e := NewEncoder(EncoderOptions{Index: 1, Origin: tb.Self(), Schema: codecOf(t, tb)})
	c := tb.NewCursor(0)
	defer c.Close()
	for version := range uint64(3) {
		for i := range 6 {
			putRemote(t, tb, []table.Owner{y, z}[i%2], table.Delta{Key: key(i), Value: value(i), Version: table.Version(5 + version)})
		}
		b := encodeAll(t, e, tb, c)
		if o := b.GetOwners(); len(o) != 2 || o[0].GetNode() != "y" || o[0].GetNumber() != 1 || o[1].GetNode() != "z" || o[1].GetNumber() != 0 || len(b.GetDeltas()) != 6 {
			t.Fatalf("batch %d: got owners %v of %d records, want y 1 and z 0 of 6 records", version, o, len(b.GetDeltas()))
		}
		for i, d := range b.GetDeltas() {
			if d.GetOwner() != uint32(i%2) || d.GetVersion() != 5+version {
				t.Errorf("batch %d: record %d: got owner %d, version %d, want %d and %d", version, i, d.GetOwner(), d.GetVersion(), uint32(i%2), 5+version)
			}
		}
		tb.View(func(tx *table.Tx) {
			s := e.Slot(tx.Intern(z))
			if s.Epoch != version || s.Send != (version > 0) {
				t.Errorf("slot after batch %d: got %+v, want epoch %d, send %t", version, s, version, version > 0)
			}
			s.Epoch, s.Send = version+1, true
		})
	}
}

// TestSlotsOfReusedIDs checks that the decision about an owner does not apply to the next owner with the
// same id.
func TestSlotsOfReusedIDs(t *testing.T) {
	tb := newTable(t, table.Owner{Node: "a", Incarnation: 1})
	putRemote(t, tb, table.Owner{Node: "y", Incarnation: 1}, table.Delta{Key: key(1), Value: value(1), Version: 5})
	e := NewEncoder(EncoderOptions{Index: 1, Origin: tb.Self(), Schema: codecOf(t, tb)})
	var was table.OwnerID
	tb.View(func(tx *table.Tx) {
		e.Begin(tx, 0, schema.Times{})
		was = tx.Intern(table.Owner{Node: "y", Incarnation: 1})
		s := e.Slot(was)
		s.Epoch, s.Send = 1, true
	})
	putTable(t, tb, 1, 2, 2) // this node takes over the record
	tb.View((*table.Tx).ReclaimOwners)
	putRemote(t, tb, table.Owner{Node: "z", Incarnation: 1}, table.Delta{Key: key(2), Value: value(2), Version: 5})
	tb.View(func(tx *table.Tx) {
		if id := tx.Intern(table.Owner{Node: "z", Incarnation: 1}); id != was {
			t.Fatalf("id of the next owner: got %d, want %d", id, was)
		}
		e.Begin(tx, 0, schema.Times{})
		if s := e.Slot(was); *s != (OwnerSlot{}) {
			t.Errorf("slot of the next owner: got %+v, want none", *s)
		}
		s := e.Slot(was)
		s.Epoch = 1
		e.Release()
		if e.Begin(tx, 0, schema.Times{}); e.Slot(was).Epoch != 1 {
			t.Error("slot in the next batch: got no decision, want the decision of the caller")
		}
		e.Release()
	})
}

// TestTimesOfBatch checks that time stamps are converted by the clocks that Begin got.
func TestTimesOfBatch(t *testing.T) {
	s := schematest.Timed()
	tb, err := table.New(table.Options{Self: table.Owner{Node: "a"}, KeySize: s.Key.Size, ValueSize: s.Value.Size})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	enc, err := schema.NewEncoder(s, nil)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	v := make([]byte, s.Value.Size)
	v[0] = 9 // the monotonic clock
	tb.Update(func(tx *table.Tx) { tx.Local(&table.Change{Key: key(1), Value: v, Time: 1}) })
	e := NewEncoder(EncoderOptions{Index: 1, Origin: tb.Self(), Schema: enc})
	for _, boot := range []int64{1e18, 2e18} {
		times := schema.Times{Ktime: boot}
		c := tb.NewCursor(0)
		var rec table.Record
		tb.View(func(tx *table.Tx) {
			e.Begin(tx, 1, times)
			tx.Next(c, &rec)
			e.Add(tx, e.Slot(rec.Owner), &rec)
		})
		c.Close()
		got := finished(t, e, 0, 1, true).GetDeltas()[0].GetValue()
		if want := enc.AppendValue(nil, nil, v, &times); !slices.Equal(got, want) || len(want) == 0 {
			t.Errorf("value with the clock %d: got %x, want %x", boot, got, want)
		}
	}
}
