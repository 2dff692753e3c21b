package table

import (
	"slices"
	"testing"
	"unsafe"
)

func (r *rig) intern(o Owner) (id OwnerID) {
	r.tab.Update(func(tx *Tx) { id = tx.Intern(o) })
	return id
}

func (r *rig) reused() (n uint64) {
	r.tab.View(func(tx *Tx) { n = tx.OwnersReused() })
	return n
}

// TestOwnerIDsAreReused: one other owner gets an id that ReclaimOwners gives back. OwnersReused counts it.
func TestOwnerIDsAreReused(t *testing.T) {
	r := newRig(t)
	r.intern(peer)
	r.remote(Accepted, second, other, 10, "k", "v")
	if n := r.reused(); n != 0 {
		t.Errorf("%d ids reused at first", n)
	}
	r.tab.View((*Tx).ReclaimOwners)
	for i, want := range []OwnerID{1, 3, 4} {
		if id := r.intern(Owner{"n", uint64(i)}); id != want {
			t.Errorf("owner %d has id %d, want %d", i, id, want)
		}
	}
	if n := r.reused(); n != 1 {
		t.Errorf("%d ids reused, want 1", n)
	}
	r.tab.View(func(tx *Tx) {
		if o := tx.Owner(5); o != (Owner{}) {
			t.Errorf("id 5 is of %v", o)
		}
		if o := tx.Owner(4); o != (Owner{"n", 2}) {
			t.Errorf("id 4 is of %v", o)
		}
	})
	if id := r.intern(peer); id != 5 {
		t.Errorf("the owner that was given back has id %d, want a new one", id)
	}
}

// TestOwnerIDsDuringConversion: while a conversion copies the ids, none is given back or reused.
func TestOwnerIDsDuringConversion(t *testing.T) {
	r := newRig(t)
	r.intern(peer)
	r.tab.View((*Tx).ReclaimOwners) // id 1 is free
	r.tab.owners.keep = true
	if id := r.intern(other); id != 2 {
		t.Errorf("id %d, want a new one", id)
	}
	r.tab.View((*Tx).ReclaimOwners)
	if id := r.intern(other); id != 2 {
		t.Errorf("id %d after the owner was given back", id)
	}
	r.tab.owners.keep = false
	if id := r.intern(Owner{"d", 1}); id != 1 {
		t.Errorf("id %d, want the free one", id)
	}
}

// TestOwnersAreLimited: owners that are not live get half of the ids at most, and live ones all. Free ids do not
// count. Before SetMembers all owners count as live.
func TestOwnersAreLimited(t *testing.T) {
	live, stranger := Owner{"live", 1}, Owner{"stranger", 1}
	for _, test := range []struct {
		used, free int
		members    bool
		owner      Owner
		want       bool
	}{
		{maxStrangers - 1, 0, true, stranger, true},
		{maxStrangers, 0, true, stranger, false},
		{maxStrangers - 1, 5, true, stranger, true},
		{maxStrangers, 5, true, stranger, false},
		{maxStrangers, 0, true, live, true},
		{maxStrangers, 0, false, stranger, true},
		{maxOwners - 1, 0, true, stranger, false},
		{maxOwners - 1, 0, false, stranger, true},
		{maxOwners - 1, 0, true, live, true},
		{maxOwners, 0, true, live, false},
		{maxOwners, 0, false, stranger, false},
		{maxOwners - 1, 1, true, live, true},
	} {
		tab := newRig(t).tab
		o := &tab.owners
		if test.members {
			tab.tx.SetMembers([]string{"live"}, nil)
		}
		o.list = slices.Grow(o.list, test.used+test.free)[:test.used+test.free]
		for i := range test.free {
			o.spare = append(o.spare, OwnerID(test.used+i))
		}
		if id := o.intern(test.owner); (id != NoOwner) != test.want {
			t.Errorf("%+v: id %d", test, id)
		}
		if n := len(o.list); !test.want && n != test.used+test.free {
			t.Errorf("%+v: %d ids", test, n)
		}
		o.list = o.list[:1]
	}
}

// TestOwnerNameIsCopied: Intern copies the name, which may be a piece of a large buffer.
func TestOwnerNameIsCopied(t *testing.T) {
	r := newRig(t)
	buffer := "a name in a buffer"
	id := r.intern(Owner{buffer[2:6], 1})
	r.tab.View(func(tx *Tx) {
		if o := tx.Owner(id); o.Node != "name" || unsafe.StringData(o.Node) == unsafe.StringData(buffer[2:]) {
			t.Errorf("%q is not a copy", o.Node)
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

// TestGoneNodesTogether: a call changes the nodes that it names, also before they own records, and no
// other.
func TestGoneNodesTogether(t *testing.T) {
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
