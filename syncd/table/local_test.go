package table

import "testing"

func TestLocalVersionIsTimePlusSkew(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v1 packet 0")
	r.want("k", "v1 v1000 a100")
	// A peer whose clock is 500 ahead moves this node's versions ahead, for good.
	r.remote(Accepted, 2000, peer, 2500, "p", "x")
	r.local(Accepted, 3000, "update k v2 packet 0")
	r.want("k", "v2 v3500 a100")
	r.remote(Accepted, 4000, peer, 4100, "p", "y")
	r.local(Accepted, 5000, "update k v3 packet 0")
	r.want("k", "v3 v5500 a100")
}

func TestLocalOfOneCPUNeverLoses(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v1 packet 0")
	r.local(Accepted, 1000, "update k v2 packet 0")
	r.local(Accepted, 1000, "update k v3 packet 0")
	r.want("k", "v3 v1002 a100")
	r.wantRechecks("")
}

func TestLocalOlderIsStaleAndRechecked(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 5*second, "update k v1 packet 0")
	r.local(Stale, 3*second, "update k v2 packet 1")
	r.want("k", "v1 v5000000000 a100")
	r.wantRechecks("k")
	r.local(Stale, 3*second, "delete k - packet 1")
	r.wantRechecks("k")
}

func TestLocalOlderThanDirtyIsStaleOnly(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 5*second, peer, Version(5*second), "k", "v1")
	r.local(Stale, 3*second, "update k v2 packet 1")
	r.wantRechecks("")
	// Nor later: what the daemon writes is right.
	r.write()
	r.wantRechecks("")
}

func TestLocalCPUsAtOneMoment(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 5*second, "update k v1 packet 0")
	r.local(Accepted, 5*second+sameMoment, "update k v2 packet 1")
	r.wantRechecks("k")
	r.local(Accepted, 6*second, "update k v3 packet 0")
	r.local(Accepted, 6*second+sameMoment+1, "update k v4 packet 1")
	r.wantRechecks("")
	// An event that changes nothing counts as well, whichever came first.
	r.local(Unchanged, 7*second, "update k v4 packet 0")
	r.local(Unchanged, 7*second-10, "update k v4 packet 1")
	r.local(Accepted, 7*second+10, "update k v5 packet 1")
	r.wantRechecks("k")
}

func TestLocalDeleteBeforeCreate(t *testing.T) {
	r := newRig(t)
	r.local(Unchanged, 5*second+10, "delete k - packet 1")
	r.local(Accepted, 5*second, "update k v packet 0")
	r.wantRechecks("k")
	r.local(Unchanged, 8*second, "delete l - packet 1")
	r.local(Accepted, 9*second, "update l v packet 0")
	r.wantRechecks("")
	// A read from before a delete whose event has been here already.
	r.local(Unchanged, 10*second, "delete m - packet 0")
	r.local(Accepted, 10*second-10, "update m v reread 0")
	r.wantRechecks("m")
}

func TestLocalEqualIsUnchanged(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Accepted, 1000, "update l v packet 0")
	r.local(Unchanged, 2*second, "update k v packet 0")
	r.wantOrder("kl")
	r.want("k", "v v1000 a100")
	// Of a peer's record too: nothing is taken over.
	r.remote(Accepted, 3*second, peer, Version(3*second), "k", "v")
	r.local(Unchanged, 4*second, "update k v packet 0")
	r.want("k", "v v3000000000 b100")
}

func TestLocalTakesOver(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1000, peer, 1000, "k", "v1")
	r.local(Accepted, 2000, "update k v2 packet 0")
	r.want("k", "v2 v2000 a100")
	if keys := r.write(); keys != "" {
		t.Fatalf("wrote %q over what was taken over", keys)
	}
	r.wantRechecks("k")
	r.local(Unchanged, 2500, "update k v2 reread 0")
	// Found by reading, there is no doubt what the kernel holds.
	r.remote(Accepted, 3000, peer, 3000, "k", "v2")
	r.local(Accepted, 4*second, "update k v3 reread 0")
	r.want("k", "v3 v4000000000 a100")
	r.wantRechecks("")
}

func TestLocalOwnIsIgnored(t *testing.T) {
	r := newRig(t)
	r.local(Ignored, 1000, "update k v own 0")
	r.want("k", "unknown")
	if st := r.tab.Stats(); st.LocalOwn != 1 {
		t.Fatalf("%d own writes counted", st.LocalOwn)
	}
}

func TestLocalRefusesSizes(t *testing.T) {
	r := newRig(t)
	key, value := pad("k", simKey), pad("v", simValue)
	for _, c := range []*Change{
		{Key: key[:3], Value: value},
		{Key: append(key, 0), Value: value},
		{Key: key, Value: value[:3]},
		{Key: key},
		{Key: nil, Op: OpDelete},
		{Key: key, Value: value, Op: OpEvict + 1},
	} {
		r.do(Refused, func(tx *Tx) Outcome { return tx.Local(c) })
	}
	if st := r.tab.Stats(); st.Refused != 6 || st.Live != 0 {
		t.Fatalf("refused %d, %d records", st.Refused, st.Live)
	}
}

func TestDeleteOfOwnRecordTravels(t *testing.T) {
	for _, ctx := range []string{"packet", "process", "syscall", "reread"} {
		r := newRig(t)
		r.local(Accepted, 1000, "update k v packet 0")
		r.local(Accepted, 2*second, "delete k - "+ctx+" 0")
		r.want("k", "- v2000000000 a100")
		r.local(Unchanged, 3*second, "delete k - "+ctx+" 0")
		r.local(Accepted, 4*second, "update k w packet 0")
		r.want("k", "w v4000000000 a100")
	}
}

func TestDeleteOfPeersRecord(t *testing.T) {
	for ctx, want := range map[string]Outcome{
		"packet": Accepted, "process": Accepted, "syscall": Restored, "reread": Restored,
	} {
		r := newRig(t)
		r.remote(Accepted, 1000, peer, 1000, "k", "v")
		r.remote(Accepted, 1000, peer, 1000, "l", "v")
		r.write()
		if ctx == "reread" {
			// What was read may be from before the daemon's own write.
			r.local(Stale, 2*second, "delete k - reread 0")
			r.wantRechecks("k")
		}
		r.local(want, 3*second, "delete k - "+ctx+" 0")
		r.wantOrder("lk")
		if want == Accepted {
			r.want("k", "- v3000000000 a100")
			continue
		}
		r.want("k", "v v1000 b100 dirty")
		if st := r.tab.Stats(); st.Restored != 1 {
			t.Fatalf("restored %d", st.Restored)
		}
		if keys := r.write(); keys != "k" {
			t.Fatalf("wrote %q, want the record back", keys)
		}
	}
}

func TestDeleteOfGoneOwnersRecordTravels(t *testing.T) {
	r := newRig(t)
	r.setGone("c", true) // before anything of it is known
	r.remote(Accepted, 1000, peer, 1000, "k", "v")
	r.remote(Accepted, 1000, other, 1000, "l", "v")
	r.write()
	r.local(Restored, 2*second, "delete k - syscall 0")
	r.setGone("b", true)
	r.local(Accepted, 3*second, "delete k - syscall 0")
	r.local(Accepted, 3*second, "delete l - syscall 0")
	r.want("k", "- v3000000000 a100")
	r.want("l", "- v3000000000 a100")
	r.setGone("b", false)
	r.remote(Accepted, 4*second, peer, Version(4*second), "k", "w")
	r.local(Restored, 5*second, "delete k - syscall 0")
}

func TestDeleteOfUnversioned(t *testing.T) {
	r := newRig(t, sameMap)
	for _, k := range []string{"d", "n", "p", "o", "e", "u"} {
		r.load(Accepted, k, "v")
	}
	// The data plane means it, whoever owns the key. A collector does not know.
	r.local(Accepted, 1000, "delete d - packet 0")
	r.want("d", "- v1000 a100")
	for _, k := range []string{"n", "p", "o", "u"} {
		r.local(Accepted, 1000, "delete "+k+" - syscall 0")
		r.want(k, "- v0 a100")
	}
	r.local(Accepted, 1000, "delete e - reread 0")
	// A peer's is put back, one of an earlier life of this node is gone.
	r.remote(Accepted, 2000, peer, 900, "p", "v")
	r.want("p", "v v900 b100 dirty")
	r.remote(Accepted, 2000, peer, 900, "e", "-")
	r.want("e", "- v900 b100")
	r.remote(Accepted, 2000, older, 900, "o", "v")
	r.want("o", "- v901 a100")
	// It is used again, or was before it was deleted: what the map holds will tell.
	r.local(Accepted, 2000, "update u w packet 1")
	r.want("u", "w v2000 a100")
	r.wantRechecks("u")
	// Nobody knew it, and nobody is told.
	r.claim()
	r.want("n", "unknown")
	r.remote(Accepted, 4000, peer, 900, "n", "v")
	r.want("n", "v v900 b100 dirty")
}

func TestVanishedWaitsToBeClaimed(t *testing.T) {
	r := newRig(t, shortLived)
	r.load(Accepted, "k", "v")
	r.local(Accepted, second, "delete k - syscall 0")
	r.expire(9*second, 9)
	r.want("k", "- v0 a100")
	r.local(Stale, second-1, "update k v reread 0") // by a scan that was under way
	r.wantRechecks("k")
	r.claim()
	// The slot is used again, and its old place in the queue is not its own.
	r.local(Accepted, 11*second, "update l v packet 0")
	r.local(Accepted, 18*second, "delete l - packet 0")
	r.expire(19*second-1, 9)
	r.want("l", "- v18000000000 a100")
	r.expire(19*second, 9)
	r.want("l", "unknown")
}

func TestEviction(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.want("k", "v v1000 a100")
	// Not to find it is no news, and no delete.
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.want("k", "v v1000 a100")
	// A peer's change of it has to be written even with the same content.
	r.remote(Accepted, 4*second, peer, Version(4*second), "k", "v")
	r.want("k", "v v4000000000 b100 dirty")
	r.write()
	// A victim of the daemon's own write is as gone as any.
	r.local(Ignored, 5*second, "evict k - own 0")
	r.local(Unchanged, 6*second, "delete k - reread 0")
	// Until the data plane puts it back.
	r.local(Unchanged, 7*second, "update k v packet 0")
	r.local(Stale, 8*second, "delete k - reread 0")
	r.wantRechecks("k")
	r.local(Restored, 8*second, "delete k - reread 0")
	r.local(Ignored, 9*second, "evict x - packet 0")
	if st := r.tab.Stats(); st.Evictions != 3 {
		t.Fatalf("counted %d evictions", st.Evictions)
	}
}

// An eviction is told of after the daemon has written the key again.
func TestEvictionToldLate(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.wantRechecks("k")
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.remote(Accepted, 4*second, peer, 2000, "k", "w")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 1")
	// So it is not known whether the map holds it, and a delete has to be written.
	r.remote(Accepted, 5*second, peer, 3000, "k", "-")
	r.want("k", "- v3000 b100 dirty")
}

func TestEvictionDeletes(t *testing.T) {
	r := newRig(t, evictions)
	// Whose it is, nobody knows yet.
	r.load(Accepted, "u", "v")
	r.local(Accepted, 1000, "evict u - packet 0")
	r.want("u", "- v0 a100")
	r.remote(Accepted, 1000, peer, 1000, "u", "v")
	r.want("u", "v v1000 b100 dirty")
	r.write()
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Accepted, 2*second, "evict k - packet 0")
	r.want("k", "- v2000000000 a100")
	// It must still not kill what lives elsewhere.
	r.remote(Accepted, 1000, peer, 1000, "p", "v")
	r.write()
	r.local(Ignored, 3*second, "evict p - packet 0")
	r.want("p", "v v1000 b100")
}

// Where no hook tells evictions, what an LRU map does not hold of another node's is left
// alone until that node changes it: to put it back would evict something else.
func TestUnseenEvictionsAreNotPutBack(t *testing.T) {
	r := newRig(t, func(o *Options) { o.EvictionsUnseen = true })
	r.remote(Accepted, 1000, peer, 1000, "k", "v")
	r.write()
	r.local(Stale, 2*second, "delete k - reread 0") // read before it was written, perhaps
	r.wantRechecks("k")
	r.local(Ignored, 3*second, "delete k - reread 0")
	r.want("k", "v v1000 b100")
	r.wantRechecks("")
	r.remote(Accepted, 4*second, peer, 2000, "k", "v")
	r.want("k", "v v2000 b100 dirty")
	// What this node's collector deletes is still put back.
	r.write()
	r.local(Restored, 5*second, "delete k - syscall 0")
	// And what is this node's own was deleted, as far as anybody can tell.
	r.local(Accepted, 1000, "update o v packet 0")
	r.local(Accepted, 6*second, "delete o - reread 0")
}

func TestRereadWaitsForDirty(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1000, peer, 1000, "k", "v1")
	r.local(Ignored, 2*second, "update k v2 reread 0")
	r.want("k", "v1 v1000 b100 dirty")
	r.wantRechecks("")
	r.write()
	r.wantRechecks("k")
	r.local(Unchanged, 3*second, "update k v1 reread 0")
	r.wantRechecks("")
}

func TestRereadFindsInPlaceChange(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1*second, "update k v1 packet 0")
	r.local(Accepted, 2*second, "update k v2 reread 0")
	r.local(Unchanged, 3*second, "update k v2 reread 0")
	r.local(Accepted, 4*second, "delete k - reread 0")
	r.local(Unchanged, 5*second, "delete k - reread 0")
	r.local(Accepted, 6*second, "update k v3 reread 0")
	r.want("k", "v3 v6000000000 a100")
	r.local(Accepted, 7*second, "update new v reread 0")
	r.wantRechecks("")
}

func TestRereadFromBeforeTheLastEvent(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 2*second, "update k v2 packet 0")
	r.local(Stale, 1*second, "update k v1 reread 0")
	r.want("k", "v2 v2000000000 a100")
	r.wantRechecks("k")
	// The write may land after the time in its event, and after the read.
	r.local(Accepted, 2*second+10, "update k v1 reread 0")
	r.wantRechecks("k")
}

func TestLoadAndClaim(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c", "d"} {
		r.load(Accepted, k, "v")
	}
	r.load(Unchanged, "a", "v")
	r.wantOrder("")
	r.local(Unchanged, 1*second, "update a v reread 0")
	r.want("a", "v v0 a100")
	// To be written, even with the same content, is to be in use.
	r.local(Accepted, 2*second, "update b v packet 0")
	r.remote(Accepted, 3*second, peer, Version(3*second), "c", "w")
	r.want("c", "w v3000000000 b100 dirty")
	r.remote(Accepted, 3*second, peer, Version(3*second), "d", "v")
	r.want("d", "v v3000000000 b100")
	if n := r.tab.Stats().Unversioned; n != 1 {
		t.Fatalf("%d unversioned", n)
	}
	r.claim()
	r.want("a", "v v1 a100")
	r.wantOrder("bcda")
	// An event from before the claim is still later than what was loaded.
	r.local(Accepted, 3*second, "update a w packet 0")
	r.want("a", "w v3000000000 a100")
	// And whoever comes late and knows more of a claimed key, knows better.
	r.load(Accepted, "e", "v")
	r.claim()
	r.remote(Accepted, 4*second, peer, 1000, "e", "-")
	r.want("e", "- v1000 b100 dirty")
}

func TestClaimInChunks(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c"} {
		r.load(Accepted, k, "v")
	}
	r.tab.Update(func(tx *Tx) {
		if !tx.Claim(2) || tx.Unversioned() != 1 || tx.Claim(2) || tx.Unversioned() != 0 || tx.Claim(2) {
			t.Fatal("want two chunks")
		}
	})
	r.wantOrder("abc")
}

func TestLoadOfKnownKeys(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1000, peer, 1000, "p", "v")
	r.load(Ignored, "p", "w") // is about to be written
	r.write()
	r.load(Restored, "p", "w")
	r.want("p", "v v1000 b100 dirty")
	r.remote(Accepted, 1000, peer, 1000, "q", "-")
	r.load(Restored, "q", "w")
	r.want("q", "- v1000 b100 dirty")
	r.local(Accepted, 1000, "update o v packet 0")
	r.load(Stale, "o", "w")
	r.wantRechecks("o")
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load([]byte("k"), pad("v", simValue)) })
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load(pad("k", simKey), []byte("v")) })
}
