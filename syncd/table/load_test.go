package table

import "testing"

// What was read of a key before it was deleted must not bring it back, although
// the delete's event came while the key was unknown.
func TestDeleteDuringLoadIsNotUndone(t *testing.T) {
	tab, err := New(Options{Self: Owner{Node: "a", Incarnation: 1}, KeySize: 8, ValueSize: 8})
	if err != nil {
		t.Fatal(err)
	}
	gone, stays, value := []byte("gonegone"), []byte("staystay"), []byte("valuable")
	expired := []byte("idleidle")
	tab.Update(func(tx *Tx) {
		tx.BeginLoad()
		tx.Local(&Change{Key: gone, Op: OpDelete, Time: 1000})
		tx.Local(&Change{Key: expired, Op: OpDelete, Context: ContextSyscall, Time: 1000})
		tx.Load(gone, value)
		tx.Load(expired, value)
		tx.Load(stays, value)
		tx.EndLoad()
		var keys [32]byte
		if n := tx.TakeRechecks(keys[:]); n != 2 || string(keys[:16]) != string(gone)+string(expired) {
			t.Fatalf("%d rechecks, of %q", n, keys[:8*n])
		}
		tx.Local(&Change{Key: gone, Op: OpDelete, Context: ContextReread, Time: 2000})
		tx.Local(&Change{Key: expired, Op: OpDelete, Context: ContextReread, Time: 2000})
		tx.Claim(10)
		var rec Record
		if !tx.Get(gone, &rec) || !rec.Delete || rec.Version != 1000 {
			t.Error("the deleted key is back")
		}
		if tx.Get(expired, &rec) {
			t.Error("what a collector deleted is told to others")
		}
		if !tx.Get(stays, &rec) || rec.Delete {
			t.Error("the other key is gone")
		}
	})
}

// A read of a map may pass over a key. A peer's delete of a key that the load did not find is
// written all the same, or a scan would take what it finds there for new.
func TestDeleteOfAKeyThatTheLoadPassedOver(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, 0, peer, 1000, "k", "-")
	r.want("k", "- v1000 b100 dirty")
	if keys := r.write(); keys != "k" {
		t.Fatalf("wrote %q", keys)
	}
	r.scan(second)
	r.remote(Accepted, 0, peer, 1000, "l", "-")
	r.want("l", "- v1000 b100")
	// A new map was read once, too.
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.remote(Accepted, 0, peer, 1000, "m", "-")
	r.want("m", "- v1000 b100 dirty")
}

// Nor is a key of this node's own that the load did not find taken for deleted unseen.
func TestOwnKeyThatTheLoadPassedOver(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, 1*second, older, 1000, "k", "v")
	r.want("k", "- v1001 a100")
	r.wantRechecks("k")
	r.local(Accepted, 2*second, "update k v reread 0")
	r.want("k", "v v2000000000 a100")
	r.remote(Accepted, 2*second, older, 1000, "l", "-")
	r.wantRechecks("l")
	r.local(Unchanged, 3*second, "delete l - reread 0")
	r.scan(4*second, "k", "v")
	r.wantRechecks("")
	r.remote(Accepted, 5*second, older, 1000, "m", "v")
	r.wantRechecks("")
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
	// It may have been read before that write, and the data plane may have written since.
	r.load(Stale, "p", "w")
	r.want("p", "v v1000 b100")
	r.remote(Accepted, 1000, peer, 1000, "q", "-")
	r.load(Stale, "q", "w")
	r.want("q", "- v1000 b100")
	r.local(Accepted, 1000, "update o v packet 0")
	r.load(Stale, "o", "w")
	r.wantRechecks("pqo")
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load([]byte("k"), pad("v", simValue)) })
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load(pad("k", simKey), []byte("v")) })
}
