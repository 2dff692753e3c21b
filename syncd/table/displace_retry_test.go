package table

import "testing"

// fullMap returns a rig and a record that the full kernel map refused. The map holds the older records
// k and j.
func fullMap(t *testing.T) (*rig, Record) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1001, "j", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "m", "v")
	return r, r.refuse()[0]
}

// TestDisplaceOnlyForRefusedVersion: Displace removes an entry only for the refused version of a
// record. It removes none for a record that was not refused since, or for a tombstone.
func TestDisplaceOnlyForRefusedVersion(t *testing.T) {
	r, m := fullMap(t)
	late := m
	late.Version++
	if _, key := r.displace(late); key != "" {
		t.Errorf("Displace for another version: got victim %q, want none", key)
	}
	if _, key := r.displace(m); key != "k" {
		t.Errorf("Displace: got victim %q, want k", key)
	}
	if _, key := r.displace(m); key != "" {
		t.Errorf("Displace for a requeued record: got victim %q, want none", key)
	}
	r, m = fullMap(t)
	r.remote(Accepted, 0, peer, 2000, "m", "-")
	if refused := r.refuse(); len(refused) != 1 || !refused[0].Delete {
		t.Fatalf("refused records: got %+v, want 1 delete", refused)
	}
	if _, key := r.displace(m); key != "" {
		t.Errorf("Displace for a tombstone: got victim %q, want none", key)
	}
}

// TestDisplacedIsWrittenAgain: a displaced entry that was changed and written meanwhile is written
// again. A deleted record is not written again. A record that is still dirty keeps its position.
func TestDisplacedIsWrittenAgain(t *testing.T) {
	displaced := func(r *rig, rec Record) {
		r.tab.Update(func(tx *Tx) { tx.Displaced(rec.Ref, 3000) })
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
	if s := r.state("k"); s != "- v1000002000 a100" { // a skew of 2000 ns
		t.Errorf("k: got %q, want \"- v1000002000 a100\"", s)
	}

	r, m = fullMap(t)
	k, _ = r.displace(m)
	r.remote(Accepted, 0, peer, 5000, "k", "w")
	r.remote(Accepted, 0, peer, 6000, "l", "v")
	displaced(r, k)
	r.wantOrder("jmkl")
}

// TestDisplacedAfterARetry: the writer may have written the entry again before it was removed from the
// map.
func TestDisplacedAfterARetry(t *testing.T) {
	r, m := fullMap(t)
	k, _ := r.displace(m)
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	r.write()
	r.want("k", "v v1000 b100")
	r.tab.Update(func(tx *Tx) { tx.Displaced(k.Ref, 3000) })
	r.want("k", "v v1000 b100 dirty")
}

// TestDisplacedIgnoresUnknownRecords: a slot without a record and an unversioned record do not become
// dirty.
func TestDisplacedIgnoresUnknownRecords(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "k")
	r.tab.Update(func(tx *Tx) { tx.Displaced(Ref(firstSlot), 8) })
	if n := r.tab.Stats().Dirty; n != 0 {
		t.Errorf("dirty records: got %d, want 0", n)
	}
	r.load(Accepted, "l", "v")
	r.tab.Update(func(tx *Tx) { tx.Displaced(Ref(firstSlot), 8) })
	r.want("l", "v v0 a100")
}

// TestEqualVersionsDisplaceNothing: a record displaces only older records of its owner.
func TestEqualVersionsDisplaceNothing(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, 0, peer, 1000, "m", "v")
	if _, key := r.displace(r.refuse()[0]); key != "" {
		t.Errorf("Displace for a record of the same version: got victim %q, want none", key)
	}
}

// TestDisplacedInvalidatesReadings: a value that was read before the entry was displaced is stale.
func TestDisplacedInvalidatesReadings(t *testing.T) {
	r, m := fullMap(t)
	k, _ := r.displace(m)
	r.remote(Accepted, 0, peer, 5000, "k", "w")
	r.write()
	var read Reading
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&read) })
	r.tab.Update(func(tx *Tx) { tx.Displaced(k.Ref, 3000) })
	_, s := r.tab.find(pad("k", keySize))
	if !read.isStale(s) {
		t.Error("a value that was read before the displacement: got accepted, want stale")
	}
}

// TestLoadedEntryIsVictim: the map held the entry at start, and a peer sent the same value. syncd has not
// written the entry, but has its record.
func TestLoadedEntryIsVictim(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.want("k", "v v1000 b100")
	r.remote(Accepted, 0, peer, 2000, "m", "v")
	if _, key := r.displace(r.refuse()[0]); key != "k" {
		t.Errorf("Displace: got victim %q, want k", key)
	}
}

// TestUnversionedEntriesCountForNoShare: entries that the map held at start belong to no other node.
func TestUnversionedEntriesCountForNoShare(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{peer.Node, other.Node}, nil) })
	for _, key := range []string{"l", "m", "n"} {
		r.load(Accepted, key, "v")
	}
	r.remote(Accepted, 0, peer, 1000, "j", "v")
	r.remote(Accepted, 0, peer, 1001, "k", "v")
	r.write()
	r.remote(Accepted, 0, other, 2000, "o", "v")
	if _, key := r.displace(r.refuse()[0]); key != "j" {
		t.Errorf("Displace: got victim %q, want j, of the node with the most entries", key)
	}
}

// TestSearchRestartsAtTheFirstRecord: a search without a victim has passed the first record, and the next
// one examines it again.
func TestSearchRestartsAtTheFirstRecord(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.remote(Accepted, 0, other, 2000, "m", "v")
	m := r.refuse()[0]
	if _, key := r.displace(m); key != "" {
		t.Fatalf("Displace without an entry in the map: got victim %q, want none", key)
	}
	r.takeRereads()
	r.local(Unchanged, 3*second, "update k v reread 0")
	for range 2 {
		r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
		m = r.refuse()[0]
		if _, key := r.displace(m); key == "k" {
			return
		}
	}
	t.Error("Displace: got no victim, want k, which is in the map again")
}

// TestExpiryDuringADisplacement: the owner expires a record that Displace has chosen, and a scan still reads the entry before the
// writer deletes it. The entry is not a change of this node.
func TestExpiryDuringADisplacement(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, other, 1001, "l", "v")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.wantRereads("k")
	r.local(Unchanged, second, "update k v reread 0") // syncd's own write explains the entry no longer
	r.remote(Accepted, 0, other, 2000, "m", "v")
	r.remote(Accepted, 0, peer, 2001, "n", "v")
	refused := r.refuse()
	victim, key := r.displace(refused[1])
	if key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	r.expired(Accepted, 3*second, peer, 1000, "k")
	r.scan(4*second, "k", "v", "l", "v")
	r.want("k", "- v1000 b100")
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 5*second) })
	r.scan(6*second, "l", "v")
	r.wantRereads("k")
	r.local(Unchanged, 7*second, "delete k - reread 0")
	r.want("k", "- v1000 b100")
	r.wantExpired("k", false)
	// From now on, an entry is one of this node's load balancer.
	r.scan(9*second, "k", "v", "l", "v")
	r.want("k", "v v9000002001 a100")
}
