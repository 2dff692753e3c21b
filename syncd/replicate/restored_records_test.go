package replicate

import (
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestRestoredRecordsNameNoOwner: a node with an entry that it has yet to adopt does not merge a peer's record of another live
// node. That node owns the entry, unless the peer has only restored the record.
func TestRestoredRecordsNameNoOwner(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	tb, err := table.New(table.Options{
		Self: r.opt.Self, KeySize: testKeySize, ValueSize: testValueSize, AdoptVersion: table.RestoredVersions,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		t.Fatal(err)
	}
	tb.Update(func(tx *table.Tx) {
		for i := range 4 {
			tx.Load(key(i), value(7))
		}
	})
	x := Peer{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}
	r.SetPeers([]Peer{x, {Node: "live", Incarnation: 9, Addr: "127.0.0.1:2"}})
	s, in := newAcceptedStream(r, x)
	s.up = true
	m := stockBatch(in.index, 0, 10, 0, 1, 2, 3)
	b := m.GetBatch()
	b.Owners = []*mapsyncv1.Incarnation{{Node: "live", Number: 3}, {Node: "x", Number: 1}}
	versions := []table.Version{table.RestoredVersions / 2, table.RestoredVersions + 5, table.RestoredVersions / 2, table.RestoredVersions / 2}
	for i, v := range versions {
		b.Deltas[i].Version = uint64(v)
	}
	b.Deltas[2].Owner = 1 // of the peer itself
	// The peer has not decided yet whether its entry has ended.
	b.Deltas[3].Owner, b.Deltas[3].Operation, b.Deltas[3].Value = 1, mapsyncv1.Operation_OPERATION_UNSENT, nil
	if err := s.handle(mustMarshal(t, m)); err != nil || in.err != nil {
		t.Fatalf("handle the batch: got error %v, error of the map %v, want none", err, in.err)
	}
	tb.Update(func(tx *table.Tx) {
		for tx.Adopt(1) {
		}
	})
	for i, want := range []string{"b", "live", "x", "b"} {
		var rec table.Record
		var owner string
		tb.View(func(tx *table.Tx) {
			tx.Get(key(i), &rec)
			owner = tx.Owner(rec.Owner).Node
		})
		if owner != want {
			t.Errorf("owner of entry %d: got %q with version %d, want %q", i, owner, rec.Version, want)
		}
	}
}
