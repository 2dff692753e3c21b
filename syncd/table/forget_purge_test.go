package table

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// remove deletes the selected records, at most limit per call. It returns their number.
func (r *rig) remove(now int64, sel Selection, limit int) (removed int) {
	c := r.tab.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		var n int
		r.tab.Update(func(tx *Tx) { n, more = tx.Remove(&sel, now, c, limit) })
		removed += n
		checkInvariants(r, r.tab) // the digests match the records
	}
	return removed
}

func TestRemoveOwner(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = time.Second })
	reborn := Owner{peer.Node, 200}
	r.remote(Accepted, 1, peer, 5, "k", "v")
	r.remote(Accepted, 1, reborn, Version(90*second), "l", "v") // ahead of this node's clock
	r.remote(Accepted, 1, peer, 5, "m", "-")
	r.remote(Accepted, 1, other, 5, "o", "v")
	r.local(Accepted, 1*second, "update s v packet 0")
	r.remote(Accepted, 1, peer, 5, "d", "v") // still dirty when the removal begins
	r.write()
	r.remote(Accepted, 1, peer, 6, "d", "w")
	taken := r.take()
	before := r.state("s")
	if n := r.remove(2*second, Selection{Owner: peer.Node}, 2); n != 3 {
		t.Errorf("Remove: got %d records, want 3", n)
	}
	r.want("k", fmt.Sprintf("- v%d a100 dirty", r.versionOf("k")))
	r.want("l", fmt.Sprintf("- v%d a100 dirty", r.versionOf("l")))
	if k, l := r.versionOf("k"), r.versionOf("l"); k < Version(2*second) || l <= Version(90*second) {
		t.Errorf("versions: got %d and %d, want higher than records and earlier writes", k, l)
	}
	r.want("m", "- v5 b100")
	r.want("o", "v v5 c100")
	r.want("s", before)
	r.applied(taken, nil) // the value that was being written does not stay in the kernel map
	if keys := r.write(); keys != "kld" && keys != "dkl" {
		t.Errorf("deleted keys: got %q, want k, l and d, with k before l", keys)
	}
	if g := r.digest(peer.Node); g.Live != 0 {
		t.Errorf("digest of the owner: got %d records, want 0", g.Live)
	}
	if n := r.remove(3*second, Selection{Owner: peer.Node}, 2); n != 0 {
		t.Errorf("second Remove: got %d records, want 0", n)
	}
	if n := r.remove(3*second, Selection{Owner: self.Node}, 2); n != 0 {
		t.Errorf("Remove of own records: got %d records, want 0", n)
	}
	// A record that a third node still holds and sends does not return. A key that is used again does.
	r.remote(Stale, 4*second, peer, 5, "k", "v")
	r.local(Accepted, 100*second, "update k w packet 0")
	r.want("k", fmt.Sprintf("w v%d a100", r.versionOf("k")))
	r.takeRereads()
}

func (r *rig) versionOf(key string) (v Version) {
	r.tab.View(func(tx *Tx) {
		var rec Record
		if tx.Get(pad(key, keySize), &rec) {
			v = rec.Version
		}
	})
	return v
}

// A read or an event of a write from before the removal does not undo it.
func TestRemoveIsNotUndoneByOldReads(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 5, "k", "v")
	r.write()
	r.remove(2*second, Selection{Owner: peer.Node}, 9)
	r.local(Stale, 1*second, "update k w packet 0")
	r.local(Ignored, 3*second, "update k v reread 0") // the delete is not written yet
	r.write()
	r.local(Stale, 1*second, "update k v reread 0")
	r.want("k", fmt.Sprintf("- v%d a100", r.versionOf("k")))
	r.takeRereads()
}

// An expired record has released its entry, which the kernel map may still hold.
func TestRemoveReleased(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 1, peer, 5, "k", "v")
	r.write()
	r.expired(Accepted, 2, peer, 5, "k")
	r.wantExpired("k", true)
	if n := r.remove(2*second, Selection{Owner: peer.Node}, 9); n != 1 {
		t.Errorf("Remove: got %d records, want 1", n)
	}
	var rec Record
	r.tab.Update(func(tx *Tx) {
		if !tx.NextDirty(r.writer, &rec) || !rec.Delete || rec.Expired {
			t.Errorf("NextDirty: got %+v, want a record that is deleted and not expired", rec)
		}
	})
	r.applied(rec, nil)
	if n := r.remove(3*second, Selection{Owner: peer.Node}, 9); n != 0 {
		t.Errorf("second Remove: got %d records, want 0", n)
	}
}

func TestRemoveOrphanedAndFailed(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 5, "g", "v")
	r.remote(Accepted, 1, other, 5, "o", "v")
	r.write()
	r.remote(Accepted, 1, other, 5, "f", "v")
	rec := r.take()
	r.applied(rec, errors.New("full"))
	r.setGone(peer.Node, true)
	if n := r.remove(2*second, Selection{Orphaned: true}, 9); n != 1 {
		t.Errorf("Remove of orphaned records: got %d records, want 1", n)
	}
	r.want("f", "v v5 c100 dirty")
	if n := r.remove(2*second, Selection{Failed: true}, 9); n != 1 {
		t.Errorf("Remove of failed records: got %d records, want 1", n)
	}
	r.want("o", "v v5 c100")
	if st := r.tab.Stats(); st.Failed != 0 || st.Live != 1 || st.Tombstones != 2 {
		t.Errorf("stats: got %+v, want Failed 0, Live 1, Tombstones 2", st)
	}
	r.write()
	if n := r.remove(3*second, Selection{Orphaned: true, Failed: true}, 9); n != 0 {
		t.Errorf("second Remove: got %d records, want 0", n)
	}
}

// TestRemoveHasNoCPU: the order of a removal and of events at about the same time is uncertain, also if the last
// event before was of the same CPU. The table rereads the key after each of them.
func TestRemoveHasNoCPU(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.write()
	r.local(Unchanged, 2*second, "update k v packet 0")
	r.remove(3*second, Selection{Owner: peer.Node}, 9)
	r.local(Accepted, 3*second+1, "update k w packet 0")
	r.wantRereads("k")
	r.local(Accepted, 3*second+2, "update k x packet 0")
	r.wantRereads("k")
}

// TestRemoveAll: all records are deleted, this node's included. Tombstones stay as they are.
func TestRemoveAll(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.remote(Accepted, second, peer, 5, "l", "v")
	r.remote(Accepted, second, other, 5, "m", "-")
	r.setGone("b", true)
	r.write()
	if n := r.remove(2*second, Selection{All: true}, 1); n != 2 {
		t.Errorf("Remove: got %d records, want 2", n)
	}
	r.want("k", "- v2000000000 a100 dirty")
	r.want("l", "- v2000000000 a100 dirty")
	r.want("m", "- v5 c100")
}
