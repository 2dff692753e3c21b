package table

import "testing"

func TestRemoteHigherWins(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	r.want("k", "v1 v1000 b100 dirty")
	r.remote(Unchanged, 0, peer, 1000, "k", "v1")
	r.remote(Stale, 0, peer, 999, "k", "v0")
	// Of two records with the same version the record of the higher owner wins. Owners compare by
	// node, then by incarnation.
	r.remote(Accepted, 0, other, 1000, "k", "v2")
	r.remote(Stale, 0, peer, 1000, "k", "v1")
	r.remote(Stale, 0, Owner{"c", 99}, 1000, "k", "v3")
	r.remote(Accepted, 0, Owner{"c", 101}, 1000, "k", "v3")
	r.remote(Accepted, 0, peer, 1001, "k", "-")
	r.want("k", "- v1001 b100 dirty")
	if st := r.tab.Stats(); st.RemoteAccepted != 4 || st.RemoteStale != 4 {
		t.Fatalf("records: got %d accepted, %d stale, want 4 and 4", st.RemoteAccepted, st.RemoteStale)
	}
}

func TestRemoteTombstoneWinsOverItsOwnRecord(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1000, "k", "-")
	r.remote(Stale, 0, peer, 1000, "k", "v")
	r.want("k", "- v1000 b100 dirty")
}

func TestRemoteIsDirtyOnlyIfItDiffers(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "t", "-") // the map never held the key
	r.want("t", "- v1000 b100")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "k", "v")
	r.want("k", "v v2000 b100")
	r.remote(Accepted, 0, peer, 3000, "k", "w")
	r.want("k", "w v3000 b100 dirty")
	// While the record is dirty the kernel map may hold either value. A return to the value of the map
	// stays dirty.
	r.remote(Accepted, 0, peer, 4000, "k", "v")
	r.want("k", "v v4000 b100 dirty")
	r.write()
	r.remote(Accepted, 0, peer, 5000, "k", "-")
	r.want("k", "- v5000 b100 dirty")
	r.write()
	r.remote(Accepted, 0, other, 6000, "k", "-")
	r.want("k", "- v6000 c100")
	r.remote(Accepted, 0, other, 7000, "k", "v")
	r.want("k", "v v7000 c100 dirty")
}

func TestRemoteIsDirtyDuringPendingReread(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1*second, "update k v1 packet 0")
	r.local(Accepted, 1*second+1, "update k v2 packet 1")
	r.wantRereads("k")
	// The kernel map may hold v1: only a write of v2 makes its state certain.
	r.remote(Accepted, 2*second, peer, Version(2*second), "k", "v2")
	r.want("k", "v2 v2000000000 b100 dirty")
}

func TestRemoteRefuses(t *testing.T) {
	r := newRig(t)
	key, value := pad("k", keySize), pad("v", valueSize)
	r.tab.Update(func(tx *Tx) {
		b := tx.Intern(peer)
		for i, d := range []*Delta{
			{Key: key[1:], Value: value, Version: 1, Owner: b},
			{Key: key, Value: value[1:], Version: 1, Owner: b},
			{Key: key, Version: 1, Owner: b},
			{Key: key, Value: value, Version: 0, Owner: b},
			{Key: key, Value: value, Version: maxVersion + 1, Owner: b},
			{Key: key, Value: value, Version: 1, Owner: b + 1},
			{Key: key, Value: value, Version: 1, Owner: NoOwner},
		} {
			if o := tx.Remote(d, 0, RemoteOptions{}); o != Refused {
				t.Errorf("delta %d: got %s, want refused", i, o)
			}
		}
	})
	if st := r.tab.Stats(); st.Refused != 7 || st.Live != 0 {
		t.Fatalf("refused deltas: got %d, %d records, want 7 and 0", st.Refused, st.Live)
	}
}

func TestRemoteTouch(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"k", "l", "m", "n"} {
		r.remote(Accepted, 0, peer, 1000, k, "v")
	}
	r.merge(Unchanged, 0, peer, 1000, "k", "v", RemoteOptions{Touch: true})
	r.wantOrder("lmnk")
	// A stale record of the same node also counts as sent.
	r.merge(Stale, 0, Owner{"b", 90}, 900, "l", "v", RemoteOptions{Touch: true})
	r.wantOrder("mnkl")
	r.local(Accepted, 1*second, "update m w packet 0")
	r.merge(Stale, 0, peer, 1000, "m", "v", RemoteOptions{Touch: true})
	r.wantOrder("nklm")
	r.local(Accepted, 2*second, "update n w packet 0")
	r.merge(Stale, 0, peer, 1000, "m", "v", RemoteOptions{Touch: true})
	r.wantOrder("klmn")
}

func TestOwnRecordsReturnToTheSameMap(t *testing.T) {
	r := newRig(t, sameMap)
	for _, k := range []string{"e", "d", "t"} {
		r.load(Accepted, k, "v")
	}
	// The map of this node holds the same value: the record of the peers keeps its version and owner.
	r.remote(Accepted, 0, older, 1000, "e", "v")
	r.want("e", "v v1000 a90")
	// These keys were changed or created here while syncd was stopped.
	r.remote(Accepted, 0, older, 1000, "d", "w")
	r.want("d", "v v1001 a100")
	r.remote(Accepted, 0, older, 1000, "t", "-")
	r.want("t", "v v1001 a100")
	// These keys were deleted here meanwhile, or long ago.
	r.remote(Accepted, 0, older, 1000, "x", "v")
	r.want("x", "- v1001 a100")
	r.remote(Accepted, 0, older, 1000, "y", "-")
	r.want("y", "- v1000 a90")
	if keys := r.write(); keys != "" {
		t.Fatalf("written keys: got %q, want none", keys)
	}
	if n := r.tab.Stats().Unversioned; n != 0 {
		t.Fatalf("unversioned records: got %d, want 0", n)
	}
	// A second peer sends a newer state, or an older one.
	r.remote(Accepted, 0, older, 1500, "e", "v")
	r.want("e", "v v1500 a90")
	r.remote(Accepted, 0, older, 1600, "e", "w")
	r.want("e", "v v1601 a100")
	r.remote(Stale, 0, older, 1550, "e", "w")
	r.remote(Accepted, 0, older, 1500, "x", "v")
	r.want("x", "- v1501 a100")
	r.remote(Accepted, 0, older, 1700, "x", "-")
	r.want("x", "- v1700 a90")
	r.remote(Accepted, 0, older, 1500, "y", "v")
	r.want("y", "- v1501 a100")
	// A third node that has taken over the key since then wins over both.
	r.remote(Accepted, 0, peer, 1602, "e", "p")
	r.want("e", "p v1602 b100 dirty")
	r.remote(Accepted, 0, older, 1603, "e", "q")
	r.want("e", "q v1603 a90 dirty")
}

func TestOwnRecordsRefillANewMap(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, older, 1000, "x", "v")
	r.want("x", "v v1000 a90 dirty")
	r.remote(Accepted, 0, older, 1001, "x", "w")
	r.want("x", "w v1001 a90 dirty")
	// The entry in the new map is newer than the record of the old map.
	r.load(Accepted, "d", "v")
	r.remote(Accepted, 0, older, 1000, "d", "w")
	r.want("d", "v v1001 a100")
	r.load(Accepted, "e", "v")
	r.remote(Accepted, 0, older, 1000, "e", "v")
	r.want("e", "v v1000 a90")
	// This holds for either order of the records of earlier incarnations.
	r.remote(Accepted, 0, older, 1100, "e", "w")
	r.want("e", "v v1101 a100")
	r.load(Accepted, "g", "v")
	r.remote(Accepted, 0, older, 1000, "g", "v")
	r.remote(Accepted, 0, older, 1100, "g", "-")
	r.want("g", "v v1101 a100")
	// A record of a peer replaced the value, so the map has another value now.
	for key, replaced := range map[string]string{"h": "p", "i": "-"} {
		r.load(Accepted, key, "v")
		r.remote(Accepted, 0, older, 1000, key, "v")
		r.remote(Accepted, 0, peer, 1001, key, replaced)
		r.remote(Accepted, 0, older, 1002, key, "q")
		r.want(key, "q v1002 a90 dirty")
	}
	r.remote(Accepted, 0, older, 1003, "h", "x")
	r.want("h", "x v1003 a90 dirty")
	r.local(Accepted, 500, "update f v packet 0")
	r.remote(Accepted, 600, older, 2000, "f", "w")
	r.want("f", "v v2001 a100")
	r.remote(Accepted, 600, older, 3000, "f", "-")
	r.want("f", "v v3001 a100")
}

// TestChangesOfANewMapOutliveOlderIncarnations: changes in a new map since the start win over all
// records of earlier incarnations. This includes deletes, and holds even if the first record has the
// same state.
func TestChangesOfANewMapOutliveOlderIncarnations(t *testing.T) {
	for _, c := range []struct {
		event         string
		load, adopt   bool
		same, outcome string
	}{
		{"delete k - packet 0", true, true, "-", "-"},
		{"delete k - syscall 0", true, false, "-", "-"}, // the key is not adopted yet
		{"update k x packet 0", true, true, "x", "x"},
		{"update k x packet 0", false, false, "x", "x"},
	} {
		r := newRig(t)
		if c.load {
			r.load(Accepted, "k", "v")
		}
		if c.adopt {
			r.adopt()
		}
		r.local(Accepted, 500, c.event)
		r.remote(Accepted, 600, older, 1000, "k", c.same)
		r.want("k", c.outcome+" v1001 a100")
		r.remote(Accepted, 600, older, 1100, "k", "w")
		r.want("k", c.outcome+" v1101 a100")
		if keys := r.write(); keys != "" {
			t.Fatalf("%s: written keys: got %q, want none", c.event, keys)
		}
		// A third node that has taken over the key since then still wins.
		r.remote(Accepted, 600, peer, 1102, "k", "p")
		r.want("k", "p v1102 b100 dirty")
	}
	// A record that is unchanged since the load keeps the owner under which peers hold it.
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.remote(Accepted, 600, older, 1000, "k", "v")
	r.want("k", "v v1000 a90")
}

// The same holds if the tombstone has become compact meanwhile.
func TestCompactDeleteInANewMapOutlivesOlderIncarnations(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.local(Accepted, 1*second, "delete k - packet 0")
	r.remote(Accepted, 1*second, older, Version(2*second), "k", "-")
	r.write()
	r.compact(9*second, 1)
	r.remote(Accepted, 9*second, older, Version(3*second), "k", "w")
	r.want("k", "- v3000000001 a100")
	if keys := r.write(); keys != "" {
		t.Fatalf("written keys: got %q, want none", keys)
	}
}

func TestRemoteConflictWithOwnRecord(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.remote(Unchanged, 1000, self, 1000, "k", "v")
	r.remote(Stale, 1000, self, 900, "k", "w")
	r.remote(Accepted, 1000, self, 2000, "k", "w")
	r.want("k", "v v2001 a100")
	r.remote(Accepted, 1000, self, 2000, "x", "w")
	r.want("x", "- v2001 a100")
	r.remote(Accepted, 1000, self, 2001, "k", "-")
	r.want("k", "v v2002 a100")
	// The same content gets a version here that is higher than the version of the peers.
	r.remote(Accepted, 1000, self, 3000, "k", "v")
	r.want("k", "v v3001 a100")
	// The same holds for an expired record.
	r.expired(Accepted, 1000, self, 4000, "k")
	r.want("k", "v v4001 a100")
	// A later state of the key counts.
	r.remote(Accepted, 1000, peer, 5000, "k", "p")
	r.write()
	r.remote(Accepted, 1000, self, 6000, "k", "w")
	r.want("k", "p v6001 a100")
	if st := r.tab.Stats(); st.RemoteConflictOwn != 6 {
		t.Fatalf("conflicts: got %d, want 6", st.RemoteConflictOwn)
	}
	if keys := r.write(); keys != "" {
		t.Fatalf("written keys: got %q, want none", keys)
	}
}

// TestRemoteConflictInTheSameMap: a delta of this incarnation with the content of the record gets a higher version
// here, also if the map is that of an earlier incarnation.
func TestRemoteConflictInTheSameMap(t *testing.T) {
	r := newRig(t, sameMap)
	r.local(Accepted, 1000, "update k v packet 0")
	r.remote(Accepted, 1000, self, 2000, "k", "v")
	r.want("k", "v v2001 a100")
}

func TestEarlierIncarnationCountsAsOwn(t *testing.T) {
	r := newRig(t, sameMap)
	r.load(Accepted, "k", "v")
	r.remote(Accepted, 0, older, 1000, "k", "v")
	r.local(Accepted, 2*second, "delete k - syscall 0")
	r.want("k", "- v2000001000 a100") // a skew of 1000 ns
}
