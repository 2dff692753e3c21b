package table

import "testing"

func TestRemoteHigherWins(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	r.want("k", "v1 v1000 b100 dirty")
	r.remote(Unchanged, 0, peer, 1000, "k", "v1")
	r.remote(Stale, 0, peer, 999, "k", "v0")
	// The same version: the higher owner wins, by node, then incarnation.
	r.remote(Accepted, 0, other, 1000, "k", "v2")
	r.remote(Stale, 0, peer, 1000, "k", "v1")
	r.remote(Stale, 0, Owner{"c", 99}, 1000, "k", "v3")
	r.remote(Accepted, 0, Owner{"c", 101}, 1000, "k", "v3")
	r.remote(Accepted, 0, peer, 1001, "k", "-")
	r.want("k", "- v1001 b100 dirty")
	if st := r.tab.Stats(); st.RemoteAccepted != 4 || st.RemoteStale != 4 {
		t.Fatalf("accepted %d, stale %d", st.RemoteAccepted, st.RemoteStale)
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
	r.remote(Accepted, 0, peer, 1000, "t", "-") // never was there
	r.want("t", "- v1000 b100")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "k", "v")
	r.want("k", "v v2000 b100")
	r.remote(Accepted, 0, peer, 3000, "k", "w")
	r.want("k", "w v3000 b100 dirty")
	// While it is dirty the kernel holds neither; back to what it holds or not.
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

func TestRemoteIsDirtyWhileARecheckIsOut(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1*second, "update k v1 packet 0")
	r.local(Accepted, 1*second+1, "update k v2 packet 1")
	r.wantRechecks("k")
	// The kernel may hold v1: only writing v2 makes sure.
	r.remote(Accepted, 2*second, peer, Version(2*second), "k", "v2")
	r.want("k", "v2 v2000000000 b100 dirty")
}

func TestRemoteRefuses(t *testing.T) {
	r := newRig(t)
	key, value := pad("k", simKey), pad("v", simValue)
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
				t.Errorf("delta %d: %s", i, o)
			}
		}
	})
	if st := r.tab.Stats(); st.Refused != 7 || st.Live != 0 {
		t.Fatalf("refused %d, %d records", st.Refused, st.Live)
	}
}

func TestRemoteTouch(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"k", "l", "m", "n"} {
		r.remote(Accepted, 0, peer, 1000, k, "v")
	}
	r.merge(Unchanged, 0, peer, 1000, "k", "v", RemoteOptions{Touch: true})
	r.wantOrder("lmnk")
	// A stale record of the same node proves the key as well.
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
	// The same here: what the peers hold stays right, under its old name.
	r.remote(Accepted, 0, older, 1000, "e", "v")
	r.want("e", "v v1000 a90")
	// Changed or created here while no daemon watched.
	r.remote(Accepted, 0, older, 1000, "d", "w")
	r.want("d", "v v1001 a100")
	r.remote(Accepted, 0, older, 1000, "t", "-")
	r.want("t", "v v1001 a100")
	// Deleted here meanwhile, or long ago.
	r.remote(Accepted, 0, older, 1000, "x", "v")
	r.want("x", "- v1001 a100")
	r.remote(Accepted, 0, older, 1000, "y", "-")
	r.want("y", "- v1000 a90")
	if keys := r.write(); keys != "" {
		t.Fatalf("wrote %q to a map that is right", keys)
	}
	if n := r.tab.Stats().Unversioned; n != 0 {
		t.Fatalf("%d unversioned", n)
	}
	// A second peer knows a newer state, or an older one.
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
	// A third node that took the key over since wins over both.
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
	// What the new map holds is newer than the old map's record.
	r.load(Accepted, "d", "v")
	r.remote(Accepted, 0, older, 1000, "d", "w")
	r.want("d", "v v1001 a100")
	r.load(Accepted, "e", "v")
	r.remote(Accepted, 0, older, 1000, "e", "v")
	r.want("e", "v v1000 a90")
	// Whichever record of an earlier incarnation comes first.
	r.remote(Accepted, 0, older, 1100, "e", "w")
	r.want("e", "v v1101 a100")
	r.load(Accepted, "g", "v")
	r.remote(Accepted, 0, older, 1000, "g", "v")
	r.remote(Accepted, 0, older, 1100, "g", "-")
	r.want("g", "v v1101 a100")
	// A value that a peer's record replaced is not that of the map any more.
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

func TestConflictOwn(t *testing.T) {
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
	// The same content here, too, has a version that the peers' does not win over.
	r.remote(Accepted, 1000, self, 3000, "k", "v")
	r.want("k", "v v3001 a100")
	// The same holds for an expired record.
	r.expired(Accepted, 1000, self, 4000, "k")
	r.want("k", "v v4001 a100")
	// What has become of the key since counts.
	r.remote(Accepted, 1000, peer, 5000, "k", "p")
	r.write()
	r.remote(Accepted, 1000, self, 6000, "k", "w")
	r.want("k", "p v6001 a100")
	if st := r.tab.Stats(); st.RemoteConflictOwn != 6 {
		t.Fatalf("%d conflicts", st.RemoteConflictOwn)
	}
	if keys := r.write(); keys != "" {
		t.Fatalf("wrote %q", keys)
	}
}

func TestOlderIncarnationIsOurs(t *testing.T) {
	r := newRig(t, sameMap)
	r.load(Accepted, "k", "v")
	r.remote(Accepted, 0, older, 1000, "k", "v")
	r.local(Accepted, 2*second, "delete k - syscall 0")
	r.want("k", "- v2000001000 a100") // a skew of 1000
}
