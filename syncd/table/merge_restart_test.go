package table

import (
	"fmt"
	"math"
	"testing"
)

// TestOwnerLacksARecord: this node has a record in the name of a live node, which another member has forged. The live node itself
// has the entry as one of an earlier incarnation of this node, and sends that. The entry must not be deleted on all nodes.
func TestOwnerLacksARecord(t *testing.T) {
	for name, c := range map[string]struct {
		sender Owner
		opt    RemoteOptions
		want   string
		out    Outcome
	}{
		"answer of the owner":  {peer, RemoteOptions{Touch: true, Before: math.MaxUint64}, "true v5001 a100 dirty", Accepted},
		"stream of the owner":  {peer, RemoteOptions{}, "forged v5000 b100", Stale},
		"answer of a third":    {other, RemoteOptions{Touch: true, Before: math.MaxUint64}, "forged v5000 b100", Stale},
		"an incarnation later": {Owner{peer.Node, peer.Incarnation + 1}, RemoteOptions{Touch: true, Before: math.MaxUint64}, "forged v5000 b100", Stale},
	} {
		t.Run(name, func(t *testing.T) {
			r := withMembers(t)
			r.remote(Accepted, 1, peer, 5000, "k", "forged")
			r.write()
			r.tab.Update(func(tx *Tx) { c.opt.Sender = tx.Intern(c.sender) })
			r.merge(c.out, 2, older, 1000, "k", "true", c.opt)
			r.want("k", c.want)
		})
	}
}

// TestRecordAfterTheRequestIsNotTakenBack: a relay sends the present record of a live node while an answer of that node is under
// way, which has the older record. The present one stays.
func TestRecordAfterTheRequestIsNotTakenBack(t *testing.T) {
	r := withMembers(t)
	r.remote(Accepted, 1, older, 1000, "k", "old")
	r.write()
	opt := RemoteOptions{Touch: true, Before: r.tab.Stats().Head + 1}
	r.remote(Accepted, 2, peer, 5000, "k", "new")
	r.write()
	r.tab.Update(func(tx *Tx) { opt.Sender = tx.Intern(peer) })
	r.merge(Stale, 3, older, 1000, "k", "old", opt)
	r.want("k", "new v5000 b100")
}

// TestTakenBackEntriesKeepBytes: a record that is taken back keeps the bytes that peers do not send.
func TestTakenBackEntriesKeepBytes(t *testing.T) {
	r := withMembers(t)
	r.remote(Accepted, 1, peer, 5000, "k", "forgedXY")
	r.write()
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", keySize), Value: pad("true..", valueSize), Version: 1000, Owner: tx.Intern(older), Keep: []Range{{6, 2}}}
		return tx.Remote(d, 3, RemoteOptions{Touch: true, Sender: tx.Intern(peer), Before: math.MaxUint64})
	})
	r.want("k", "true..XY v5001 a100 dirty")
}

// TestRefusedRecordsAreNotTakenBack: in place of its record, a live node sends one of the present incarnation of this node, or one
// above the limit of the table. The record stays.
func TestRefusedRecordsAreNotTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		owner Owner
		limit int
	}{"present incarnation": {self, 0}, "above the limit": {older, 24}} {
		t.Run(name, func(t *testing.T) {
			r := withMembers(t, func(o *Options) { o.MaxLive = c.limit })
			r.flood(Owner{"d", 1}, "d", c.limit/2)
			for i := range c.limit / 6 {
				r.local(Accepted, second, fmt.Sprint("update a", i, " v packet 0"))
			}
			r.remote(Accepted, second, peer, 5000, "k", "v")
			opt := RemoteOptions{Touch: true, Before: math.MaxUint64}
			r.tab.Update(func(tx *Tx) { opt.Sender = tx.Intern(peer) })
			r.merge(Refused, second, c.owner, 1000, "k", "w", opt)
			r.want("k", "v v5000 b100 dirty")
		})
	}
}

// TestTakenBackEntries: the entry is written again, also if an LRU map has evicted it, a full map has refused it, or this node is
// drained.
func TestTakenBackEntries(t *testing.T) {
	for name, begin := range map[string]func(*rig){
		"written": func(r *rig) { r.write() },
		"evicted": func(r *rig) {
			r.write()
			r.local(Ignored, 1000, "evict k - packet 0")
			r.local(Unchanged, 1001, "delete k - reread 0")
		},
		"refused": func(r *rig) { r.applied(r.take(), errFull) },
		"drained": func(r *rig) {
			r.write()
			r.beginHandover()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := withMembers(t)
			r.remote(Accepted, 1, peer, 5000, "k", "forged")
			begin(r)
			var sender OwnerID
			r.tab.Update(func(tx *Tx) { sender = tx.Intern(peer) })
			r.merge(Accepted, 2000, older, 1000, "k", "true", RemoteOptions{Touch: true, Sender: sender, Before: math.MaxUint64})
			r.want("k", "true v5001 a100 dirty")
			if got := r.write(); got != "k" {
				t.Errorf("written keys: got %q, want k", got)
			}
			r.local(Accepted, 3000, "delete k - packet 0")
			r.want("k", "- v7999 a100") // the versions continue 4,999 ns ahead
		})
	}
}

// TestFilteredRecordOfDeletedKey: the map of an earlier incarnation has held an entry that it lacks at start. A peer first names
// the key of its record, or sends the record while this node filters it. The absence is still a delete, also at the next start.
func TestFilteredRecordOfDeletedKey(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update(func(tx *Tx) { tx.NoteUnheld(pad("k", keySize), 10) })
	r.tab.View(func(tx *Tx) {
		if u := tx.Unheld(); len(u.Hashes) != 0 {
			t.Errorf("unheld keys: got %d bytes, want none", len(u.Hashes))
		}
	})
	r.remote(Accepted, second, older, 10, "k", "v")
	r.want("k", "- v11 a100")
}
