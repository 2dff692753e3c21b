package table

import (
	"errors"
	"testing"
)

var errFull = errors.New("map full")

func TestWriterWritesEachDirtyRecordOnce(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.local(Accepted, 1000, "update o v packet 0")
	r.remote(Accepted, 0, peer, 1001, "l", "v")
	r.remote(Accepted, 0, peer, 1002, "k", "w")
	if keys := r.write(); keys != "lk" {
		t.Fatalf("written keys: got %q, want lk", keys)
	}
	if keys := r.write(); keys != "" {
		t.Fatalf("second write: got keys %q, want none", keys)
	}
	st := r.tab.Stats()
	if st.Dirty != 0 || st.Applied != st.Head || st.Head != 4 {
		t.Fatalf("stats: got %+v, want Dirty 0, Applied and Head 4", st)
	}
}

func TestAppliedPositionOnlyGrows(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1000, "l", "v")
	for _, step := range []struct{ set, want uint64 }{{1, 1}, {0, 1}, {9, 2}, {1, 2}} {
		r.tab.Update(func(tx *Tx) {
			tx.SetApplied(step.set)
			if p := tx.AppliedPosition(); p != step.want {
				t.Errorf("set %d: %d, want %d", step.set, p, step.want)
			}
		})
	}
}

func TestChangedWhileBeingWritten(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.remote(Accepted, 0, peer, 2000, "k", "v2")
	r.applied(first, nil)
	r.want("k", "v2 v2000 b100 dirty")
	if keys := r.write(); keys != "k" {
		t.Fatalf("written keys: got %q, want k", keys)
	}
}

func TestSameVersionOfAnotherOwnerWhileBeingWritten(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.remote(Accepted, 0, other, 1000, "k", "v2")
	r.applied(first, nil)
	r.want("k", "v2 v1000 c100 dirty")
}

func TestExpiredHereWhileBeingWritten(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.local(Restored, 2000, "delete k - syscall 0")
	r.applied(first, nil)
	r.want("k", "v1 v1000 b100 dirty")
}

func TestTakenOverWhileBeingWritten(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.local(Accepted, 2000, "update k v2 packet 0")
	r.wantRereads("k") // the read precedes the end of the write
	r.local(Unchanged, 3000, "update k v2 reread 0")
	r.applied(first, nil)
	r.wantRereads("k")
	r.applied(first, nil)
	r.takeRereads()
	// A failed write has no effect.
	r.local(Unchanged, 4000, "update k v2 reread 0")
	r.applied(first, errFull)
	r.wantRereads("")
}

func TestTakenOverAndBackWhileBeingWritten(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.local(Accepted, 2000, "update k v2 packet 0")
	r.takeRereads()
	r.local(Unchanged, 3000, "update k v2 reread 0")
	r.remote(Accepted, 4000, other, 4000, "k", "v2")
	r.want("k", "v2 v4000 c100")
	// The kernel map now holds v1, written by syncd: this is not a change of another writer.
	r.applied(first, nil)
	r.want("k", "v2 v4000 c100 dirty")
	if keys := r.write(); keys != "k" {
		t.Fatalf("written keys: got %q, want k", keys)
	}
}

func TestEventFromBeforeTheWrite(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1*second, "update k v1 packet 0")
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.writer = r.tab.NewCursor(0)
	r.write()
	r.local(Accepted, 2*second, "update k v2 packet 0")
	r.wantRereads("k")
}

// The data plane deletes a key in a new map while the writer refills it with a record of this node.
func TestDeletedWhileBeingRefilled(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1*second, "update k v1 packet 0")
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.writer = r.tab.NewCursor(0)
	first := r.take()
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.applied(first, nil)
	r.wantRereads("k")
	r.local(Stale, 3*second, "update k v1 reread 0")
	r.want("k", "- v2000000000 a100 dirty")
	r.write()
	// The table accepts the value after a further reread: another writer wrote the same value.
	r.wantRereads("")
	r.local(Stale, 4*second, "update k v1 reread 0")
	r.wantRereads("k")
	r.local(Accepted, 5*second, "update k v1 reread 0")
}

func TestReadFromBeforeTheWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "k", "v2")
	r.write()
	r.local(Stale, 1*second, "update k v1 reread 0")
	r.want("k", "v2 v2000 b100")
	r.wantRereads("k")
	r.local(Accepted, 2*second, "update k v1 reread 0")
}

func TestFailedWrites(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"k", "l", "m"} {
		r.remote(Accepted, 0, peer, 1000, k, "v")
		r.applied(r.take(), errFull)
	}
	if keys := r.write(); keys != "" {
		t.Fatalf("written keys: got %q before the requeue, want none", keys)
	}
	if st := r.tab.Stats(); st.Dirty != 3 || st.Failed != 3 || st.WriteFailed != 3 || st.Applied != st.Head {
		t.Fatalf("stats: got %+v, want Dirty 3, Failed 3, WriteFailed 3", st)
	}
	// A change makes a failed record dirty immediately. After a takeover the write is not needed.
	r.remote(Accepted, 0, peer, 2000, "l", "w")
	r.local(Accepted, 3000, "update m w packet 0")
	if keys := r.write(); keys != "l" {
		t.Fatalf("written keys: got %q, want l", keys)
	}
	requeue := func(limit, want int) {
		t.Helper()
		r.tab.Update(func(tx *Tx) {
			if n := tx.RequeueFailed(limit); n != want {
				t.Errorf("requeued %d, want %d", n, want)
			}
		})
	}
	requeue(0, 0)
	requeue(5, 1)
	requeue(5, 0)
	again := r.take()
	r.applied(again, errFull)
	requeue(1, 1)
	if keys := r.write(); keys != "k" {
		t.Fatalf("written keys: got %q, want k", keys)
	}
	r.wantOrder("klm") // a retried record keeps its position, because no peer has sent it
}

func TestAppliedIgnoresOtherRefs(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.tab.Update(func(tx *Tx) {
		for ref := range Ref(1 << 14) {
			tx.Applied(ref, 1000, nil)
		}
		tx.Applied(1<<32-1, 1000, errFull)
	})
	r.want("k", "v v1000 a100")
	r.wantRereads("")
}

func TestRefill(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.remote(Accepted, 0, peer, 1000, "l", "v")
	r.remote(Accepted, 0, peer, 1000, "m", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "m", "-")
	r.load(Accepted, "u", "v")
	inFlight := r.take()
	r.tab.Update(func(tx *Tx) {
		tx.Refill()
		if p := tx.AppliedPosition(); p != 0 {
			t.Errorf("applied position: got %d, want 0", p)
		}
	})
	r.applied(inFlight, nil)
	r.writer.Close()
	r.writer = r.tab.NewCursor(0)
	if keys := r.write(); keys != "kl" {
		t.Fatalf("written keys: got %q, want kl", keys)
	}
	r.adopt()
	if keys := r.write(); keys != "u" {
		t.Fatalf("written keys: got %q, want u", keys)
	}
}

func TestRereadsAreQueuedOnce(t *testing.T) {
	r := newRig(t)
	for range 3 {
		for _, k := range []string{"k", "l", "m"} {
			r.local(Accepted, 2*second, "update "+k+" v packet 0")
			r.local(Accepted, 2*second, "delete "+k+" - packet 1")
		}
	}
	if n := r.tab.Stats().PendingRereads; n != 3 {
		t.Fatalf("pending rereads: got %d, want 3", n)
	}
	r.tab.Update(func(tx *Tx) {
		buf := make([]byte, 2*keySize+keySize/2)
		if n := tx.TakeRereads(buf); n != 2 || text(buf[:keySize]) != "k" || text(buf[keySize:2*keySize]) != "l" {
			t.Errorf("TakeRereads: got %d keys: %q, want k and l", n, buf)
		}
		if n := tx.TakeRereads(nil); n != 0 {
			t.Errorf("TakeRereads without a buffer: got %d keys, want 0", n)
		}
	})
	r.wantRereads("m")
}

// TestStaleEventDuringWrite: by the time in its event, a write after the write of the writer may seem
// older than the record. The table rereads the key once the write is reported.
func TestStaleEventDuringWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 5*second, peer, 9_000_000_000, "k", "v")
	rec := r.take()
	r.local(Stale, 5*second-timestampMargin/2, "update k w packet 0")
	r.applied(rec, nil)
	r.wantRereads("k")
}
