package table

import (
	"errors"
	"testing"
)

var errWrite = errors.New("write failed")

// deletesAny sets Options.DeletesAny.
func deletesAny(o *Options) { o.DeletesAny = true }

// TestDeletesAny checks who may delete a record of a live peer: without the option only the data plane of this
// node, with it also a call of bpf(2), whether an event or a reread shows the delete.
func TestDeletesAny(t *testing.T) {
	for _, how := range []string{"syscall", "reread"} {
		t.Run(how, func(t *testing.T) {
			for name, options := range map[string][]func(*Options){"owner": nil, "any": {deletesAny}} {
				r := newRig(t, options...)
				r.remote(Accepted, second, peer, 10, "k", "v")
				r.write()
				if how == "reread" {
					// The read may be from before the write of syncd.
					r.local(Stale, second, "delete k - reread 0")
					r.wantRereads("k")
				}
				if name == "owner" {
					r.local(Restored, 2*second, "delete k - "+how+" 0")
					r.want("k", "v v10 b100 dirty")
					continue
				}
				r.local(Accepted, 2*second, "delete k - "+how+" 0")
				r.want("k", "- v2000000000 a100")
				// A record that was sent before the delete does not bring the key back.
				r.remote(Stale, 3*second, peer, 1_500_000_000, "k", "v")
				r.remote(Accepted, 3*second, peer, 2_500_000_000, "k", "w")
				r.want("k", "w v2500000000 b100 dirty")
			}
		})
	}
}

// TestDeletesAnyOfPendingWrites: a reread that does not find a key deletes nothing while the map does not have
// the record yet, or has refused it.
func TestDeletesAnyOfPendingWrites(t *testing.T) {
	r := newRig(t, deletesAny)
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.local(Ignored, 2*second, "delete k - reread 0")
	r.want("k", "v v10 b100 dirty")

	rec := r.take()
	r.applied(rec, errWrite)
	r.local(Ignored, 3*second, "delete k - reread 0")
	r.want("k", "v v10 b100 dirty")

	// The entry was written after the read.
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	rec = r.take()
	var reading Reading
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&reading) })
	r.applied(rec, nil)
	r.tab.Update(func(tx *Tx) {
		c := parseChange(t, "delete k - reread 0", 4*second)
		c.Read = &reading
		if o := tx.Local(c); o != Stale {
			t.Errorf("reread from before the write: got %s, want stale", o)
		}
	})
	r.want("k", "v v10 b100")
}

// TestDeletesAnyDuringStart: the delete of an entry that was found at start replicates, although its owner's
// record has not arrived yet.
func TestDeletesAnyDuringStart(t *testing.T) {
	r := newRig(t, deletesAny, sameMap)
	r.load(Accepted, "k", "v")
	r.local(Accepted, 2*second, "delete k - syscall 0")
	r.remote(Stale, 3*second, peer, 10, "k", "v")
	r.want("k", "- v2000000000 a100")
}

// TestDeletesAnyOfEvictedEntry: in an LRU map without hooks on evictions, an absent entry counts as evicted.
func TestDeletesAnyOfEvictedEntry(t *testing.T) {
	r := newRig(t, deletesAny, lru(8, 8), func(o *Options) { o.LRU = true })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.local(Stale, second, "delete k - reread 0")
	r.wantRereads("k")
	r.local(Ignored, 2*second, "delete k - reread 0")
	r.want("k", "v v10 b100")
}

// TestHeldDeletes: while deletes are held, only the data plane of this node deletes a record of a live peer. Records of
// departed owners and of this node are deleted as before.
func TestHeldDeletes(t *testing.T) {
	r := newRig(t, deletesAny)
	r.tab.Update(func(tx *Tx) { tx.HoldDeletes(true) })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.remote(Accepted, second, other, 10, "l", "v")
	r.setGone("c", true)
	r.write()
	r.local(Restored, 2*second, "delete k - syscall 0")
	r.want("k", "v v10 b100 dirty")
	r.write()
	r.local(Accepted, 2*second, "delete l - syscall 0")
	r.local(Accepted, 3*second, "delete k - packet 0")
	r.remote(Accepted, 4*second, peer, 4_000_000_000, "k", "w")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.HoldDeletes(false) })
	r.local(Accepted, 5*second, "delete k - syscall 0")
	r.want("k", "- v5000000000 a100")
}
