package table

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// remove deletes the selected records, so many at a time.
func (r *rig) remove(now int64, sel Selection, limit int) (removed int) {
	c := r.tab.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		var n int
		r.tab.Update(func(tx *Tx) { n, more = tx.Remove(&sel, now, c, limit) })
		removed += n
		checkInvariants(r, r.tab) // digests are those of the records
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
	r.remote(Accepted, 1, peer, 5, "d", "v") // still to be written, and on its way
	r.write()
	r.remote(Accepted, 1, peer, 6, "d", "w")
	taken := r.take()
	before := r.state("s")
	if n := r.remove(2*second, Selection{Owner: peer.Node}, 2); n != 3 {
		t.Errorf("%d records removed, want 3", n)
	}
	r.want("k", fmt.Sprintf("- v%d a100 dirty", r.versionOf("k")))
	r.want("l", fmt.Sprintf("- v%d a100 dirty", r.versionOf("l")))
	if k, l := r.versionOf("k"), r.versionOf("l"); k < Version(2*second) || l <= Version(90*second) {
		t.Errorf("versions %d and %d do not win over the records, or over writes before the removal", k, l)
	}
	r.want("m", "- v5 b100")
	r.want("o", "v v5 c100")
	r.want("s", before)
	r.applied(taken, nil) // what was on its way does not stay in the kernel map
	if keys := r.write(); keys != "kld" && keys != "dkl" {
		t.Errorf("the writer deletes %q", keys)
	}
	if g := r.digest(peer.Node); g.Live != 0 {
		t.Errorf("the digest of the owner has %d records", g.Live)
	}
	if n := r.remove(3*second, Selection{Owner: peer.Node}, 2); n != 0 {
		t.Errorf("%d records removed again", n)
	}
	if n := r.remove(3*second, Selection{Owner: self.Node}, 2); n != 0 {
		t.Errorf("%d own records removed", n)
	}
	// What a third node still holds and sends does not come back; what is used again does.
	r.remote(Stale, 4*second, peer, 5, "k", "v")
	r.local(Accepted, 100*second, "update k w packet 0")
	r.want("k", fmt.Sprintf("w v%d a100", r.versionOf("k")))
	r.rechecks()
}

func (r *rig) versionOf(key string) (v Version) {
	r.tab.View(func(tx *Tx) {
		var rec Record
		if tx.Get(pad(key, simKey), &rec) {
			v = rec.Version
		}
	})
	return v
}

// A read from before the removal, and an event of a write before it, do not undo it.
func TestRemoveIsNotUndoneByOldReads(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 5, "k", "v")
	r.write()
	r.remove(2*second, Selection{Owner: peer.Node}, 9)
	r.local(Stale, 1*second, "update k w packet 0")
	r.local(Ignored, 3*second, "update k v reread 0") // its delete is on the way
	r.write()
	r.local(Stale, 1*second, "update k v reread 0")
	r.want("k", fmt.Sprintf("- v%d a100", r.versionOf("k")))
	r.rechecks()
}

// An expired record has released its entry, which may still lie in the kernel map.
func TestRemoveReleased(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 1, peer, 5, "k", "v")
	r.write()
	r.expired(Accepted, 2, peer, 5, "k")
	r.isExpired("k", true)
	if n := r.remove(2*second, Selection{Owner: peer.Node}, 9); n != 1 {
		t.Errorf("%d records removed", n)
	}
	var rec Record
	r.tab.Update(func(tx *Tx) {
		if !tx.NextDirty(r.writer, &rec) || !rec.Delete || rec.Expired {
			t.Errorf("the writer gets %+v", rec)
		}
	})
	r.applied(rec, nil)
	if n := r.remove(3*second, Selection{Owner: peer.Node}, 9); n != 0 {
		t.Errorf("%d records removed again", n)
	}
}

func TestRemoveOrphanedAndUnfit(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 5, "g", "v")
	r.remote(Accepted, 1, other, 5, "o", "v")
	r.write()
	r.remote(Accepted, 1, other, 5, "f", "v")
	rec := r.take()
	r.applied(rec, errors.New("full"))
	r.setGone(peer.Node, true)
	if n := r.remove(2*second, Selection{Orphaned: true}, 9); n != 1 {
		t.Errorf("%d orphaned records removed", n)
	}
	r.want("f", "v v5 c100 dirty")
	if n := r.remove(2*second, Selection{Unfit: true}, 9); n != 1 {
		t.Errorf("%d records that do not fit removed", n)
	}
	r.want("o", "v v5 c100")
	if st := r.tab.Stats(); st.Failed != 0 || st.Live != 1 || st.Tombstones != 2 {
		t.Errorf("%+v", st)
	}
	r.write()
	if n := r.remove(3*second, Selection{Orphaned: true, Unfit: true}, 9); n != 0 {
		t.Errorf("%d records removed again", n)
	}
}
