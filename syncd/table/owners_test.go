package table

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"mapsync/internal/race"
)

func (r *rig) intern(o Owner) (id OwnerID) {
	r.tab.Update(func(tx *Tx) { id = tx.Intern(o) })
	return id
}

func (r *rig) reused() (n uint64) {
	r.tab.View(func(tx *Tx) { n = tx.OwnersReused() })
	return n
}

// TestOwnerIDsAreReused: another owner gets an id that ReclaimOwners has freed. OwnersReused counts
// the reuse.
func TestOwnerIDsAreReused(t *testing.T) {
	r := newRig(t)
	r.intern(peer)
	r.remote(Accepted, second, other, 10, "k", "v")
	if n := r.reused(); n != 0 {
		t.Errorf("reused ids at first: got %d, want 0", n)
	}
	r.tab.View((*Tx).ReclaimOwners)
	for i, want := range []OwnerID{1, 3, 4} {
		if id := r.intern(Owner{"n", uint64(i)}); id != want {
			t.Errorf("owner %d: got id %d, want %d", i, id, want)
		}
	}
	if n := r.reused(); n != 1 {
		t.Errorf("reused ids: got %d, want 1", n)
	}
	r.tab.View(func(tx *Tx) {
		if o := tx.Owner(5); o != (Owner{}) {
			t.Errorf("id 5: got owner %v, want none", o)
		}
		if o := tx.Owner(4); o != (Owner{"n", 2}) {
			t.Errorf("id 4: got owner %v, want %v", o, Owner{"n", 2})
		}
	})
	if id := r.intern(peer); id != 5 {
		t.Errorf("reclaimed owner: got id %d, want a new one", id)
	}
}

// TestRecordOwners: an owner is listed as long as a record or a tombstone has it. This node is not.
func TestRecordOwners(t *testing.T) {
	r := newRig(t)
	r.intern(peer) // without records
	r.remote(Accepted, second, other, 10, "k", "v")
	owners := func() (list []Owner) {
		r.tab.View(func(tx *Tx) { tx.RecordOwners(func(o Owner) { list = append(list, o) }) })
		return list
	}
	if got := owners(); !slices.Equal(got, []Owner{other}) {
		t.Errorf("owners of records: got %v, want %v", got, other)
	}
	r.tab.Update(func(tx *Tx) { tx.Local(&Change{Key: pad("k", keySize), Value: pad("w", valueSize), Time: 20 * second}) })
	if got := owners(); len(got) != 0 {
		t.Errorf("owners after this node has taken the record over: got %v, want none", got)
	}
}

// TestOwnerIDsDuringConversion: while a conversion copies the ids, the table neither frees nor reuses
// an id.
func TestOwnerIDsDuringConversion(t *testing.T) {
	r := newRig(t)
	r.intern(peer)
	r.tab.View((*Tx).ReclaimOwners) // id 1 is free
	r.tab.owners.keepIDs = true
	if id := r.intern(other); id != 2 {
		t.Errorf("Intern during the conversion: got id %d, want a new one", id)
	}
	r.tab.View((*Tx).ReclaimOwners)
	if id := r.intern(other); id != 2 {
		t.Errorf("Intern after the owner was reclaimed: got id %d, want 2", id)
	}
	r.tab.owners.keepIDs = false
	if id := r.intern(Owner{"d", 1}); id != 1 {
		t.Errorf("Intern after the conversion: got id %d, want the free one", id)
	}
}

// TestOwnersAreLimited: owners that are not live get at most half of the ids. Live owners may get all
// of them. Free ids do not count. Before SetMembers all owners count as live.
func TestOwnersAreLimited(t *testing.T) {
	race.SkipSequential(t)
	live, unverified := Owner{"live", 1}, Owner{"unverified", 1}
	for _, test := range []struct {
		used, free int
		members    bool
		owner      Owner
		want       bool
	}{
		{maxNotLiveOwners - 1, 0, true, unverified, true},
		{maxNotLiveOwners, 0, true, unverified, false},
		{maxNotLiveOwners - 1, 5, true, unverified, true},
		{maxNotLiveOwners, 5, true, unverified, false},
		{maxNotLiveOwners, 0, true, live, true},
		{maxNotLiveOwners, 0, false, unverified, true},
		{maxOwners - 1, 0, true, unverified, false},
		{maxOwners - 1, 0, false, unverified, true},
		{maxOwners - 1, 0, true, live, true},
		{maxOwners, 0, true, live, false},
		{maxOwners, 0, false, unverified, false},
		{maxOwners - 1, 1, true, live, true},
	} {
		tab := newRig(t).tab
		o := &tab.owners
		if test.members {
			tab.tx.SetMembers([]string{"live"}, nil)
		}
		o.list = slices.Grow(o.list, test.used+test.free)[:test.used+test.free]
		for i := range test.free {
			o.freeIDs = append(o.freeIDs, OwnerID(test.used+i))
		}
		if id := o.intern(test.owner); (id != NoOwner) != test.want {
			t.Errorf("%+v: got id %d, want an id other than %d: %t", test, id, NoOwner, test.want)
		}
		if n := len(o.list); !test.want && n != test.used+test.free {
			t.Errorf("%+v: got %d ids, want %d", test, n, test.used+test.free)
		}
		o.list = o.list[:1]
	}
}

// TestIncarnationsOfOneNodeAreLimited: a live node sends records in the name of very many of its
// incarnations. This node and the other live nodes can still use ids.
func TestIncarnationsOfOneNodeAreLimited(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
	r.tab.Update(func(tx *Tx) {
		for i := range uint64(maxOwners + 1) {
			d := &Delta{Key: pad(fmt.Sprint(i), keySize), Value: pad("v", valueSize), Version: 1, Owner: tx.Intern(Owner{"b", i + 1})}
			tx.Remote(d, 1, RemoteOptions{})
		}
	})
	r.tab.Update((*Tx).ReclaimOwners)
	if n := r.tab.Stats().Live; n < maxNotLiveOwners-1 || n > maxNotLiveOwners {
		t.Errorf("incarnations of one node: got %d, want about %d", n, maxNotLiveOwners)
	}
	r.tab.Update(func(tx *Tx) { tx.SetDigestKey([]byte("another key")) }) // it counts the ids again
	for i := range uint64(1000) {
		r.remote(Accepted, 2, Owner{"c", i + 1}, Version(i+2), "c", "v")
		r.remote(Accepted, 2, Owner{"a", i + 1}, Version(i+2), "a", "v")
	}
	// Ids of b that no record has any more are free for b again.
	r.tab.Update(func(tx *Tx) {
		for i := range uint64(maxNotLiveOwners) {
			tx.Remote(&Delta{Key: pad(fmt.Sprint(i), keySize), Value: pad("w", valueSize), Version: 3, Owner: tx.Intern(peer)}, 3, RemoteOptions{})
		}
		tx.ReclaimOwners()
	})
	r.remote(Accepted, 4, Owner{"b", 1 << 40}, 4, "b", "v")
}

// TestShareOfOwnerIDs: a live node uses its share of the ids and not more, also after a change of the
// digest key, after a conversion, and after its ids were freed.
func TestShareOfOwnerIDs(t *testing.T) {
	r := newRig(t)
	members := func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) }
	r.tab.Update(members)
	r.remote(Accepted, 1, Owner{"c", 1}, 1, "k", "v") // c keeps its digest
	number := uint64(1)
	intern := func(r *rig, node string) (ids int) {
		r.tab.Update(func(tx *Tx) {
			for number++; tx.Intern(Owner{node, number}) != NoOwner; number++ {
				ids++
			}
		})
		return ids
	}
	const share = (maxOwners - maxNotLiveOwners) / 3
	for _, when := range []string{"of an empty table", "after they were freed"} {
		b, c := intern(r, "b"), intern(r, "c")
		if b+2 != maxNotLiveOwners || c+1 != share {
			t.Fatalf("ids %s: b got %d, c got %d, want %d and %d", when, b, c, maxNotLiveOwners-2, share-1)
		}
		r.tab.Update(func(tx *Tx) { tx.SetDigestKey([]byte(when)) })
		if more := intern(r, "c"); more != 0 {
			t.Errorf("ids %s and a change of the digest key: c got %d more, want 0", when, more)
		}
		to, _ := r.convert("")
		to.tab.Update(members)
		if more := intern(to, "c"); more != 0 {
			t.Errorf("ids %s and a conversion: c got %d more, want 0", when, more)
		}
		r = to
		r.tab.Update((*Tx).ReclaimOwners)
	}
}

// TestOwnerNameIsCopied: Intern copies the name, which may be a part of a large buffer.
func TestOwnerNameIsCopied(t *testing.T) {
	r := newRig(t)
	buffer := "a name in a buffer"
	id := r.intern(Owner{buffer[2:6], 1})
	r.tab.View(func(tx *Tx) {
		if o := tx.Owner(id); o.Node != "name" || unsafe.StringData(o.Node) == unsafe.StringData(buffer[2:]) {
			t.Errorf("owner name: got %q in the memory of the buffer, want a copy", o.Node)
		}
	})
}

// TestReturnedNodeIsNotGone: later incarnations of a node that has returned are not gone.
func TestReturnedNodeIsNotGone(t *testing.T) {
	for _, gone := range []bool{true, false} {
		r := newRig(t)
		r.setGone("b", true)
		r.setGone("b", gone)
		r.remote(Accepted, second, Owner{"b", 200}, 10, "k", "v")
		r.write()
		want := Restored
		if gone {
			want = Accepted
		}
		r.local(want, 2*second, "delete k - syscall 0")
	}
}

// TestSetGoneOfSeveralNodes: a call changes only the nodes that it names, also before they own
// records.
func TestSetGoneOfSeveralNodes(t *testing.T) {
	r := newRig(t)
	r.intern(Owner{"x", 1})
	r.intern(Owner{"c", 1})
	r.setGone("c", true)
	r.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{"x": true, "b": true}) })
	r.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{"b": false, "d": true}) })
	for node, want := range map[string]bool{"x": true, "b": false, "c": true, "d": true, "e": false} {
		for _, incarnation := range []uint64{1, 2} {
			if got := r.tab.owners.list[r.intern(Owner{node, incarnation})].gone; got != want {
				t.Errorf("%s, incarnation %d: gone %t, want %t", node, incarnation, got, want)
			}
		}
	}
}
