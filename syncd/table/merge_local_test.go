package table

import (
	"testing"
	"time"
)

func TestLocalVersionIsTimePlusSkew(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v1 packet 0")
	r.want("k", "v1 v1000 a100")
	// A peer whose clock is 500 ns ahead moves the versions of this node ahead permanently.
	r.remote(Accepted, 2000, peer, 2500, "p", "x")
	r.local(Accepted, 3000, "update k v2 packet 0")
	r.want("k", "v2 v3500 a100")
	r.remote(Accepted, 4000, peer, 4100, "p", "y")
	r.local(Accepted, 5000, "update k v3 packet 0")
	r.want("k", "v3 v5500 a100")
}

// One record far ahead moves versions by at most MaxSkew and only for minutes. A write of its key
// still wins.
func TestSkewIsLimitedAndDecays(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = 30 * time.Second })
	ahead := Version(second + 59*second)
	r.remote(Accepted, second, peer, ahead, "k", "x")
	r.local(Accepted, 2*second, "update j v1 packet 0")
	r.want("j", "v1 v32000000000 a100")
	r.local(Accepted, 2*second, "update k v1 packet 0")
	r.want("k", "v1 v60000000001 a100")
	r.local(Accepted, 51*second, "update j v2 packet 0") // 40 s after the end of the grace
	r.want("j", "v2 v71000000000 a100")
	last := Version(0)
	for at := 51 * second; at < 200*second; at += second / 2 {
		v := r.tab.versionAt(at)
		if v <= last {
			t.Fatalf("version at %d: got %d, want more than %d", at, v, last)
		}
		last = v
	}
	r.local(Accepted, 200*second, "update j v3 packet 0")
	r.want("j", "v3 v200000000000 a100")
	// A peer whose clock is always ahead keeps the skew.
	for at := 200 * second; at < 260*second; at += 5 * second {
		r.remote(Accepted, at, peer, Version(at+20*second), "p", "x")
	}
	if got := r.tab.skew.at(260 * second); got != 20*second {
		t.Errorf("skew: got %d, want 20 s", got)
	}
}

func TestLocalChangesOfOneCPUStayInOrder(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v1 packet 0")
	r.local(Accepted, 1000, "update k v2 packet 0")
	r.local(Accepted, 1000, "update k v3 packet 0")
	r.want("k", "v3 v1002 a100")
	r.wantRereads("")
}

func TestOlderLocalChangeIsStaleAndReread(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 5*second, "update k v1 packet 0")
	r.local(Stale, 3*second, "update k v2 packet 1")
	r.want("k", "v1 v5000000000 a100")
	r.wantRereads("k")
	r.local(Stale, 3*second, "delete k - packet 1")
	r.wantRereads("k")
}

func TestLocalChangeOlderThanDirtyRecordIsStale(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 5*second, peer, Version(5*second), "k", "v1")
	r.local(Stale, 3*second, "update k v2 packet 1")
	r.wantRereads("")
	// No reread follows later: the write of syncd is the current state.
	r.write()
	r.wantRereads("")
}

func TestConcurrentLocalChangesAreReread(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 5*second, "update k v1 packet 0")
	r.local(Accepted, 5*second+timestampMargin, "update k v2 packet 1")
	r.wantRereads("k")
	r.local(Accepted, 6*second, "update k v3 packet 0")
	r.local(Accepted, 6*second+timestampMargin+1, "update k v4 packet 1")
	r.wantRereads("")
	// An event that changes nothing also counts, in either order of arrival.
	r.local(Unchanged, 7*second, "update k v4 packet 0")
	r.local(Unchanged, 7*second-10, "update k v4 packet 1")
	r.local(Accepted, 7*second+10, "update k v5 packet 1")
	r.wantRereads("k")
}

func TestLocalDeleteBeforeCreate(t *testing.T) {
	r := newRig(t)
	r.local(Unchanged, 5*second+10, "delete k - packet 1")
	r.local(Accepted, 5*second, "update k v packet 0")
	r.wantRereads("k")
	r.local(Unchanged, 8*second, "delete l - packet 1")
	r.local(Accepted, 9*second, "update l v packet 0")
	r.wantRereads("")
	// This read is from before a delete whose event has already arrived.
	r.local(Unchanged, 10*second, "delete m - packet 0")
	r.local(Accepted, 10*second-10, "update m v reread 0")
	r.wantRereads("m")
}

func TestLocalEqualIsUnchanged(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Accepted, 1000, "update l v packet 0")
	r.local(Unchanged, 2*second, "update k v packet 0")
	r.wantOrder("kl")
	r.want("k", "v v1000 a100")
	// A write of the value of a peer's record also changes nothing: the peer stays the owner.
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
		t.Fatalf("written keys: got %q, want none over the taken-over record", keys)
	}
	r.wantRereads("k")
	r.local(Unchanged, 2500, "update k v2 reread 0")
	// A reread found the value, so the state of the kernel map is certain.
	r.remote(Accepted, 3000, peer, 3000, "k", "v2")
	r.local(Accepted, 4*second, "update k v3 reread 0")
	r.want("k", "v3 v4000000000 a100")
	r.wantRereads("")
}

func TestOwnWriteEventIsIgnored(t *testing.T) {
	r := newRig(t)
	r.local(Ignored, 1000, "update k v own 0")
	r.want("k", "unknown")
	if st := r.tab.Stats(); st.LocalOwn != 1 {
		t.Fatalf("own writes: got %d, want 1", st.LocalOwn)
	}
}

func TestLocalRefusesSizes(t *testing.T) {
	r := newRig(t)
	key, value := pad("k", keySize), pad("v", valueSize)
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
		t.Fatalf("refused changes: got %d, %d records, want 6 and 0", st.Refused, st.Live)
	}
}

func TestDeleteOfOwnRecordIsReplicated(t *testing.T) {
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
			// The read may be from before the write of syncd.
			r.local(Stale, 2*second, "delete k - reread 0")
			r.wantRereads("k")
		}
		r.local(want, 3*second, "delete k - "+ctx+" 0")
		r.wantOrder("lk")
		if want == Accepted {
			r.want("k", "- v3000000000 a100")
			continue
		}
		r.want("k", "v v1000 b100 dirty")
		if st := r.tab.Stats(); st.Restored != 1 {
			t.Fatalf("restored records: got %d, want 1", st.Restored)
		}
		if keys := r.write(); keys != "k" {
			t.Fatalf("wrote %q, want the record back", keys)
		}
	}
}

func TestDeleteOfOrphanedRecordIsReplicated(t *testing.T) {
	r := newRig(t)
	r.setGone("c", true) // before the table has a record of the node
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
	// A delete by the data plane is replicated, whichever node owns the key. A delete by a collector
	// is not.
	r.local(Accepted, 1000, "delete d - packet 0")
	r.want("d", "- v1000 a100")
	for _, k := range []string{"n", "p", "o", "u"} {
		r.local(Accepted, 1000, "delete "+k+" - syscall 0")
		r.want(k, "- v0 a100")
	}
	r.local(Accepted, 1000, "delete e - reread 0")
	// The table restores a record of a peer. A record of an earlier incarnation of this node stays
	// deleted.
	r.remote(Accepted, 2000, peer, 900, "p", "v")
	r.want("p", "v v900 b100 dirty")
	r.remote(Accepted, 2000, peer, 900, "e", "-")
	r.want("e", "- v900 b100")
	r.remote(Accepted, 2000, older, 900, "o", "v")
	r.want("o", "- v901 a100")
	// The key was used again, or was used before the delete: a reread of the map decides.
	r.local(Accepted, 2000, "update u w packet 1")
	r.want("u", "w v2000 a100")
	r.wantRereads("u")
	// No peer has sent the key, so the table drops it without a tombstone.
	r.adopt()
	r.want("n", "unknown")
	r.remote(Accepted, 4000, peer, 900, "n", "v")
	r.want("n", "v v900 b100 dirty")
}

func TestDeletedUnversionedRecordIsKeptUntilAdoption(t *testing.T) {
	r := newRig(t, shortLived)
	r.load(Accepted, "k", "v")
	r.local(Accepted, second, "delete k - syscall 0")
	r.expire(9*second, 9)
	r.want("k", "- v0 a100")
	r.local(Stale, second-1, "update k v reread 0") // by a scan that was in progress
	r.wantRereads("k")
	r.adopt()
	// Another key reuses the slot. The old entry in the queue does not apply to it.
	r.local(Accepted, 11*second, "update l v packet 0")
	r.local(Accepted, 18*second, "delete l - packet 0")
	r.expire(19*second-1, 9)
	r.want("l", "- v18000000000 a100")
	r.expire(19*second, 9)
	r.want("l", "unknown")
}

func TestRereadWaitsForDirty(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1000, peer, 1000, "k", "v1")
	r.local(Ignored, 2*second, "update k v2 reread 0")
	r.want("k", "v1 v1000 b100 dirty")
	r.wantRereads("")
	r.write()
	r.wantRereads("k")
	r.local(Unchanged, 3*second, "update k v1 reread 0")
	r.wantRereads("")
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
	r.wantRereads("")
}

func TestRereadFromBeforeTheLastEvent(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 2*second, "update k v2 packet 0")
	r.local(Stale, 1*second, "update k v1 reread 0")
	r.want("k", "v2 v2000000000 a100")
	r.wantRereads("k")
	// The write may reach the map after the time in its event, and after the read.
	r.local(Accepted, 2*second+10, "update k v1 reread 0")
	r.wantRereads("k")
}

// TestDeleteOfADeletedKeyKeepsItsPosition: a delete of a key whose delete the writer has yet to write changes
// nothing.
func TestDeleteOfADeletedKeyKeepsItsPosition(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, 1, peer, 2000, "k", "-")
	r.remote(Accepted, 1, peer, 2000, "l", "v")
	r.local(Unchanged, second, "delete k - packet 0")
	r.wantOrder("kl")
}
