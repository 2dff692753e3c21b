package table

import "testing"

// A value that was read before a delete must not restore the key, even if the event of the delete
// arrived while the key was unknown.
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
		if n := tx.TakeRereads(keys[:]); n != 2 || string(keys[:16]) != string(gone)+string(expired) {
			t.Fatalf("rereads: got %d, of %q, want 2, of %q", n, keys[:8*n], string(gone)+string(expired))
		}
		tx.Local(&Change{Key: gone, Op: OpDelete, Context: ContextReread, Time: 2000})
		tx.Local(&Change{Key: expired, Op: OpDelete, Context: ContextReread, Time: 2000})
		tx.Adopt(10)
		var rec Record
		if !tx.Get(gone, &rec) || !rec.Delete || rec.Version != 1000 {
			t.Error("deleted key: got a live record, want none")
		}
		if tx.Get(expired, &rec) {
			t.Error("delete by a collector: got replicated, want local")
		}
		if !tx.Get(stays, &rec) || rec.Delete {
			t.Error("other key: got no record, want a live one")
		}
	})
}

// A read of a map may skip a key. A peer's delete of a key that the load did not find is still
// written. Otherwise a scan would take the entry for a new one.
func TestDeleteOfKeyMissedByLoad(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, 0, peer, 1000, "k", "-")
	r.want("k", "- v1000 b100 dirty")
	if keys := r.write(); keys != "k" {
		t.Fatalf("written keys: got %q, want k", keys)
	}
	r.scan(second)
	r.remote(Accepted, 0, peer, 1000, "l", "-")
	r.want("l", "- v1000 b100")
	// A new map was read once, too.
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.remote(Accepted, 0, peer, 1000, "m", "-")
	r.want("m", "- v1000 b100 dirty")
}

// The table does not treat a key of this node as deleted if the load did not find it.
func TestOwnKeyMissedByLoad(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, 1*second, older, 1000, "k", "v")
	r.want("k", "- v1001 a100")
	r.wantRereads("k")
	r.local(Accepted, 2*second, "update k v reread 0")
	r.want("k", "v v2000000000 a100")
	r.remote(Accepted, 2*second, older, 1000, "l", "-")
	r.wantRereads("l")
	r.local(Unchanged, 3*second, "delete l - reread 0")
	r.scan(4*second, "k", "v")
	r.wantRereads("")
	r.remote(Accepted, 5*second, older, 1000, "m", "v")
	r.wantRereads("")
}

func TestLoadAndAdopt(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c", "d"} {
		r.load(Accepted, k, "v")
	}
	r.load(Unchanged, "a", "v")
	r.wantOrder("")
	r.local(Unchanged, 1*second, "update a v reread 0")
	r.want("a", "v v0 a100")
	// A record that must be written, even with the same content, is in use.
	r.local(Accepted, 2*second, "update b v packet 0")
	r.remote(Accepted, 3*second, peer, Version(3*second), "c", "w")
	r.want("c", "w v3000000000 b100 dirty")
	r.remote(Accepted, 3*second, peer, Version(3*second), "d", "v")
	r.want("d", "v v3000000000 b100")
	if n := r.tab.Stats().Unversioned; n != 1 {
		t.Fatalf("unversioned records: got %d, want 1", n)
	}
	r.adopt()
	r.want("a", "v v2 a100")
	r.wantOrder("bcda")
	// An event from before Adopt is still later than the load.
	r.local(Accepted, 3*second, "update a w packet 0")
	r.want("a", "w v3000000000 a100")
	// A peer that sends a newer record of an adopted key later replaces the adopted record.
	r.load(Accepted, "e", "v")
	r.adopt()
	r.remote(Accepted, 4*second, peer, 1000, "e", "-")
	r.want("e", "- v1000 b100 dirty")
}

// TestSameValueAfterAdoption: a write of the same value shows that an adopted or restored entry is current. From then on, the record
// does not lose against that of a node that was isolated.
func TestSameValueAfterAdoption(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c"} {
		r.load(Accepted, k, "v")
	}
	r.adopt()
	r.local(Accepted, 2*second, "update a v packet 0")
	r.want("a", "v v2000000000 a100")
	r.local(Unchanged, 3*second, "update a v packet 0")
	r.local(Accepted, 2*second, "update b v syscall 0")
	r.local(Unchanged, 2*second, "update c v reread 0")
	r.want("c", "v v2 a100")
	for _, k := range []string{"a", "b"} {
		r.remote(Stale, 4*second, older, 1000, k, "w")
	}
	r.remote(Accepted, 4*second, older, 1000, "c", "w")
	// Peers have named the owner of the entry, and the owner has the record.
	r.remote(Accepted, 4*second, peer, NamedVersion, "d", "v")
	r.write()
	r.local(Unchanged, 5*second, "update d v packet 0")
	r.want("d", "v v1 b100")
	r.setGone("b", true)
	r.local(Accepted, 6*second, "update d v packet 0")
	r.want("d", "v v6000000000 a100")
}

func TestAdoptInChunks(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c"} {
		r.load(Accepted, k, "v")
	}
	r.tab.Update(func(tx *Tx) {
		if !tx.Adopt(2) || tx.Unversioned() != 1 || tx.Adopt(2) || tx.Unversioned() != 0 || tx.Adopt(2) {
			t.Fatal("Adopt: got other chunks, want two: one of 2 records, and one of the third record")
		}
	})
	r.wantOrder("abc")
}

func TestLoadOfKnownKeys(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1000, peer, 1000, "p", "v")
	r.load(Ignored, "p", "w") // the record is dirty
	r.write()
	// The load may have read the key before that write, and the data plane may have written it since.
	r.load(Stale, "p", "w")
	r.want("p", "v v1000 b100")
	r.remote(Accepted, 1000, peer, 1000, "q", "-")
	r.load(Stale, "q", "w")
	r.want("q", "- v1000 b100")
	r.local(Accepted, 1000, "update o v packet 0")
	r.load(Stale, "o", "w")
	r.wantRereads("pqo")
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load([]byte("k"), pad("v", valueSize)) })
	r.do(Refused, func(tx *Tx) Outcome { return tx.Load(pad("k", keySize), []byte("v")) })
}
