package table

import "testing"

// TestOwnerLacksARecord: this node has a record in the name of a live node, which another member has forged. The live node itself
// has the entry as one of an earlier incarnation of this node, and sends that. The entry must not be deleted on all nodes.
func TestOwnerLacksARecord(t *testing.T) {
	for name, c := range map[string]struct {
		sender Owner
		opt    RemoteOptions
		want   string
		out    Outcome
	}{
		"answer of the owner":  {peer, RemoteOptions{Touch: true}, "true v5001 a100 dirty", Accepted},
		"stream of the owner":  {peer, RemoteOptions{}, "forged v5000 b100", Stale},
		"answer of a third":    {other, RemoteOptions{Touch: true}, "forged v5000 b100", Stale},
		"an incarnation later": {Owner{peer.Node, peer.Incarnation + 1}, RemoteOptions{Touch: true}, "forged v5000 b100", Stale},
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
			r.merge(Accepted, 2000, older, 1000, "k", "true", RemoteOptions{Touch: true, Sender: sender})
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
	r.tab.Update(func(tx *Tx) { tx.NoteUnheld(pad("k", keySize)) })
	r.tab.View(func(tx *Tx) {
		if u := tx.Unheld(); len(u.Hashes) != 0 {
			t.Errorf("unheld keys: got %d bytes, want none", len(u.Hashes))
		}
	})
	r.remote(Accepted, second, older, 10, "k", "v")
	r.want("k", "- v11 a100")
}
