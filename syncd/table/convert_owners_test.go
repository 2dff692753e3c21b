package table

import (
	"errors"
	"math"
	"testing"
)

// TestConvertKeepsOwners: owners keep their ids. Free ids are also free in the new table.
func TestConvertKeepsOwners(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.Intern(Owner{"forgotten", 1}) })
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.tab.View((*Tx).ReclaimOwners)
	to, _ := r.convert("")
	owners := func(tab *Table) (n int) {
		tab.View(func(tx *Tx) { tx.Owners(func(Owner) { n++ }) })
		return n
	}
	if n := owners(to.tab); n != 2 {
		t.Errorf("%d owners, want this node and the peer", n)
	}
	to.tab.Update(func(tx *Tx) {
		var rec Record
		tx.Get(pad("k", keySize), &rec)
		if id := tx.Intern(peer); id != rec.Owner {
			t.Errorf("owner id of the peer: got %d, want %d", id, rec.Owner)
		}
		if id := tx.Intern(other); id != 1 {
			t.Errorf("a new owner has id %d, want the free one", id)
		}
	})
	// The old table reclaims ids as before.
	r.tab.Update(func(tx *Tx) { tx.Intern(other) })
	r.tab.View((*Tx).ReclaimOwners)
	if n := owners(r.tab); n != 2 {
		t.Errorf("%d owners in the old table, want 2", n)
	}
}

// TestConvertMergesEqualKeysByOwner: of two records with the same version the record of the higher
// owner stays, in either order.
func TestConvertMergesEqualKeysByOwner(t *testing.T) {
	for _, owners := range [][2]Owner{{peer, other}, {other, peer}} {
		r := newRig(t)
		r.remote(Accepted, second, owners[0], 1000, "k", owners[0].Node)
		r.remote(Accepted, second, owners[1], 1000, "l", owners[1].Node)
		o, how := wider("")
		how.Key = func(dst, _ []byte) error { copy(dst, pad("k", keySize)); return nil }
		tab, done, err := r.tab.Convert(o, how)
		if err != nil || done.Records != 1 {
			t.Fatalf("Convert: got %+v, error %v, want 1 record", done, err)
		}
		checkInvariants(t, tab)
		(&rig{T: t, tab: tab}).want("k", "+c v1000 c100 dirty")
	}
}

// TestConvertKeepsExpiry: an expired tombstone stays expired, whether it is in a slot or compact.
func TestConvertKeepsExpiry(t *testing.T) {
	r := newRig(t)
	r.expired(Accepted, second, peer, 10, "compact")
	r.write()
	r.compact(3*second, 1)
	r.expired(Accepted, 3*second, peer, 10, "slot")
	r.remote(Accepted, 3*second, peer, 10, "deleted", "-")
	o, how := wider("")
	o.MaxRecords = 3 // the exact number of records
	tab, done, err := r.tab.Convert(o, how)
	if err != nil || done.Records != 3 || done.Failed != 0 {
		t.Fatalf("Convert: got %+v, error %v, want 3 records", done, err)
	}
	for key, want := range map[string]bool{"compact": true, "slot": true, "deleted": false} {
		var rec Record
		tab.View(func(tx *Tx) { tx.Get(pad(key, keySize), &rec) })
		if !rec.Delete || rec.Expired != want {
			t.Errorf("%s: %+v, want expired %v", key, rec, want)
		}
	}
}

// TestConvertReportsTheFirstReason: Convert reports the reason for the first of several skipped
// records.
func TestConvertReportsTheFirstReason(t *testing.T) {
	r := newRig(t)
	reasons := map[string]error{"k": errors.New("the first"), "l": errors.New("the second")}
	for _, k := range []string{"k", "l"} {
		r.remote(Accepted, second, peer, 1000, k, "v")
	}
	o, how := wider("")
	how.Key = func(_, src []byte) error { return reasons[text(src)] }
	if _, done, err := r.tab.Convert(o, how); err != nil || done.Failed != 2 || !errors.Is(done.Err, reasons["k"]) {
		t.Errorf("Convert: got %+v, error %v, want 2 failed records and the first reason", done, err)
	}
}

// TestConvertIntoFullTableDropsTombstone: compact tombstones count as records.
func TestConvertIntoFullTableDropsTombstone(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.deleteAndCompact(second, "l", "m")
	o, how := wider("")
	o.MaxRecords = 2
	tab, done, err := r.tab.Convert(o, how)
	if err != nil || done.Records != 2 || done.Failed != 1 || !errors.Is(done.Err, errNoRoom) {
		t.Fatalf("Convert: got %+v, error %v, want 2 records and 1 without room", done, err)
	}
	(&rig{T: t, tab: tab}).wantOrder("kl")
}

// TestConvertKeepsNamedEntries: peers have only named the owner of an entry. If the owner does not have it, it is an entry of this
// node, and no delete is inferred.
func TestConvertKeepsNamedEntries(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	r.load(Accepted, "k", "v")
	r.tab.Update(func(tx *Tx) {
		tx.EndLoad()
		tx.NoteOwner(pad("k", keySize), tx.Intern(peer), true)
	})
	to, _ := r.convert("")
	to.want("k", "+v v1 b100 dirty")
	to.sweepAll(math.MaxUint64, nil)
	to.want("k", "+v v2 a100 dirty")
}
