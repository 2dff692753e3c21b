package table

import (
	"fmt"
	"testing"
)

// TestSearchInParts: one call of Displace examines a limited number of records. It returns more until the search
// has found a victim, or has examined all records twice.
func TestSearchInParts(t *testing.T) {
	r := newRig(t)
	for i := range 2 * displaceSteps {
		key := fmt.Sprint(i)
		r.remote(Accepted, 0, peer, 1000, key, "v")
		r.write()
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad(key, keySize)) })
	}
	r.remote(Accepted, 0, peer, 2000, "m", "v")
	m, victim := r.refuse()[0], Record{}
	r.tab.Update(func(tx *Tx) {
		if found, more := tx.Displace(m.Ref, m.Version, &victim); found || !more {
			t.Errorf("Displace after some of the records: got found %v, more %v, want false, true", found, more)
		}
	})
}

// TestVictimEndsTheSearch: the search for the next victim may examine all records again.
func TestVictimEndsTheSearch(t *testing.T) {
	r, m := fullMap(t)
	h := &r.tab.owners.otherOwners
	h.examined, h.untried = 4, true
	if _, key := r.displace(m); key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	if h.examined != 0 || h.untried {
		t.Errorf("search after a victim: got %d records examined, untried %v, want 0, false", h.examined, h.untried)
	}
}

// TestVictimGetsAnotherVersionDuringDisplacement: while the writer deletes a victim, its record gets another version, because the
// node defends it against an earlier incarnation of its own. An event from before the delete then does not count
// as evidence that the map has the entry.
func TestVictimGetsAnotherVersionDuringDisplacement(t *testing.T) {
	r := withMembers(t)
	r.remote(Accepted, 1, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, 1, peer, 2000, "m", "v")
	m := r.refuse()[0]
	victim, key := r.displace(m)
	if key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	r.remote(Defended, 2, Owner{Node: "a", Incarnation: 50}, 3000, "k", "w")
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 20_000) })
	r.local(Accepted, 10_000, "update k x packet 0")
	if keys := r.write(); keys != "mk" {
		t.Errorf("written keys: got %q, want mk, because the map lacks the entry of k", keys)
	}
}

// TestDisplaceOfUnknownSlots: Displace finds nothing for the head of a list and for a slot that was never used.
func TestDisplaceOfUnknownSlots(t *testing.T) {
	r, _ := fullMap(t)
	for _, ref := range []Ref{Ref(order), Ref(unversioned), Ref(r.tab.allocated)} {
		r.tab.Update(func(tx *Tx) {
			if found, more := tx.Displace(ref, 0, &Record{}); found || more {
				t.Errorf("Displace of slot %d: got found %v, more %v, want false, false", ref, found, more)
			}
		})
	}
}

// TestRecordWaitsForOtherGroupsOnly: a refused record waits for records that the writer has not tried if
// they are of a larger group. It does not wait for records of its own group.
func TestRecordWaitsForOtherGroupsOnly(t *testing.T) {
	for owner, want := range map[Owner]string{other: "klmo", peer: "klm"} {
		r := withMembers(t)
		r.remote(Accepted, 1, owner, 1000, "o", "v")
		for _, key := range []string{"k", "l", "m"} {
			r.remote(Accepted, 1, peer, 2000, key, "v")
		}
		o := r.take()
		r.applied(o, errFull)
		if _, key := r.displace(o); key != "" {
			t.Fatalf("Displace without an entry in the map: got victim %q, want none", key)
		}
		if keys := r.write(); keys != want {
			t.Errorf("keys that are written after a refused record of %s: got %q, want %q", owner.Node, keys, want)
		}
	}
}

// TestRecordWaitsOnce: a refused record waited for the records of a larger group. The map holds them now, but
// none may be displaced. The record does not wait again, so that the burst ends.
func TestRecordWaitsOnce(t *testing.T) {
	r := withMembers(t)
	r.remote(Accepted, 1, other, 1000, "o", "v")
	for _, key := range []string{"k", "l", "m"} {
		r.remote(Accepted, 1, peer, 2000, key, "v")
	}
	o := r.take()
	r.applied(o, errFull)
	r.displace(o)
	for _, key := range []string{"k", "l", "m"} {
		r.applied(r.take(), nil)
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad(key, keySize)) })
	}
	if rec := r.take(); text(rec.Key) != "o" {
		t.Fatalf("record after the others: got %s, want o", text(rec.Key))
	}
	r.applied(o, errFull)
	if _, key := r.displace(o); key != "" {
		t.Fatalf("Displace without an entry that is certain: got victim %q, want none", key)
	}
	if keys := r.write(); keys != "" {
		t.Errorf("keys that are written after the second refusal: got %q, want none", keys)
	}
}
