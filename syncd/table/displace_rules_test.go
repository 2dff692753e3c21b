package table

import "testing"

// fullMap returns a record that the kernel map refused, while it holds k and j, both older.
func fullMap(t *testing.T) (*rig, Record) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1001, "j", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "m", "v")
	return r, r.refuse()[0]
}

// TestDisplaceForWhatWasRefused: no entry is displaced for another version than the refused one, for a
// record that was not refused since, or for a tombstone.
func TestDisplaceForWhatWasRefused(t *testing.T) {
	r, m := fullMap(t)
	late := m
	late.Version++
	if _, key := r.displace(late); key != "" {
		t.Errorf("%q is displaced for another version", key)
	}
	if _, key := r.displace(m); key != "k" {
		t.Errorf("%q is displaced", key)
	}
	if _, key := r.displace(m); key != "" {
		t.Errorf("%q is displaced for a record that is to be written again", key)
	}
	r, m = fullMap(t)
	r.remote(Accepted, 0, peer, 2000, "m", "-")
	if refused := r.refuse(); len(refused) != 1 || !refused[0].Delete {
		t.Fatalf("refused %+v", refused)
	}
	if _, key := r.displace(m); key != "" {
		t.Errorf("%q is displaced for a tombstone", key)
	}
}

// TestDisplacedIsWrittenAgain: a displaced entry that was changed and written meanwhile is written again.
// A deleted one is not, and one that is still to be written keeps its place.
func TestDisplacedIsWrittenAgain(t *testing.T) {
	displaced := func(r *rig, rec Record) {
		r.tab.Update(func(tx *Tx) { tx.Displaced(rec.Ref, rec.Version, 3000) })
		checkInvariants(t, r.tab)
	}
	r, m := fullMap(t)
	k, _ := r.displace(m)
	r.remote(Accepted, 0, peer, 5000, "k", "w")
	r.write()
	r.remote(Accepted, 0, peer, 6000, "l", "v")
	displaced(r, k)
	r.want("k", "w v5000 b100 dirty")
	r.wantOrder("jmlk")

	r, m = fullMap(t)
	k, _ = r.displace(m)
	r.local(Accepted, second, "delete k - packet 0")
	displaced(r, k)
	if s := r.state("k"); s != "- v1000002000 a100" { // a skew of 2000
		t.Errorf("k is %q", s)
	}

	r, m = fullMap(t)
	k, _ = r.displace(m)
	r.remote(Accepted, 0, peer, 5000, "k", "w")
	r.remote(Accepted, 0, peer, 6000, "l", "v")
	displaced(r, k)
	r.wantOrder("jmkl")
}

// TestDisplacedAfterARetry: the writer may have written the entry again before it left the map.
func TestDisplacedAfterARetry(t *testing.T) {
	r, m := fullMap(t)
	k, _ := r.displace(m)
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	r.write()
	r.want("k", "v v1000 b100")
	r.tab.Update(func(tx *Tx) { tx.Displaced(k.Ref, k.Version, 3000) })
	r.want("k", "v v1000 b100 dirty")
}

// TestDisplacedOfNothing: a slot without a record and an unversioned record are not to be written.
func TestDisplacedOfNothing(t *testing.T) {
	r := newRig(t)
	r.bury(second, "k")
	r.tab.Update(func(tx *Tx) { tx.Displaced(Ref(firstSlot), 7, 8) })
	if n := r.tab.Stats().Dirty; n != 0 {
		t.Errorf("%d records are to be written", n)
	}
	r.load(Accepted, "l", "v")
	r.tab.Update(func(tx *Tx) { tx.Displaced(Ref(firstSlot), 7, 8) })
	r.want("l", "v v0 a100")
}

// TestEqualVersionsDisplaceNothing: a record displaces older ones of its owner.
func TestEqualVersionsDisplaceNothing(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, 0, peer, 1000, "m", "v")
	if _, key := r.displace(r.refuse()[0]); key != "" {
		t.Errorf("%q is displaced for a record of the same version", key)
	}
}

// TestDisplacedOutdatesReadings: what was read before the entry left the map does not count.
func TestDisplacedOutdatesReadings(t *testing.T) {
	r, m := fullMap(t)
	k, _ := r.displace(m)
	r.remote(Accepted, 0, peer, 5000, "k", "w")
	r.write()
	var read Reading
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&read) })
	r.tab.Update(func(tx *Tx) { tx.Displaced(k.Ref, k.Version, 3000) })
	_, s := r.tab.find(pad("k", simKey))
	if !read.outdates(s) {
		t.Error("a value that was read before counts")
	}
}
