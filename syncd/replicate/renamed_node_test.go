package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestRenamedNodeDeletesAfterGrace: a node has another name after a restart, and a peer sends it the records of its former
// name. For UnknownGrace, its collector's deletes of them are undone, because the owner may be a live node. Deletes by the
// data plane replicate at once, and those of the collector afterwards.
func TestRenamedNodeDeletesAfterGrace(t *testing.T) {
	peer := startNode(t, "peer", 1, nil)
	renamed := startNode(t, "renamed", 2, nil, func(o *Options) { o.UnknownGrace = time.Hour })
	peer.tb.Update(func(tx *table.Tx) {
		former := tx.Intern(table.Owner{Node: "former", Incarnation: 1})
		for i := range 3 {
			tx.Remote(&table.Delta{Key: key(i), Value: value(1), Version: 5, Owner: former}, 5, table.RemoteOptions{})
		}
	})
	connectNodes(peer, renamed)
	poll.Within(t, deadline, "the node has the records of its former name", func() bool { return len(live(renamed.tb)) == 3 })
	remove := func(i int, by table.Context) (o table.Outcome) {
		renamed.tb.Update(func(tx *table.Tx) {
			o = tx.Local(&table.Change{Key: key(i), Op: table.OpDelete, Context: by, Time: time.Now().UnixNano()})
		})
		return o
	}
	if o := remove(0, table.ContextSyscall); o != table.Restored {
		t.Errorf("delete by the collector in the first minute: got %s, want %s", o, table.Restored)
	}
	if o := remove(1, table.ContextPacket); o != table.Accepted {
		t.Errorf("delete by the data plane in the first minute: got %s, want %s", o, table.Accepted)
	}
	poll.Within(t, deadline, "the peer has received the delete by the data plane alone", func() bool { return len(live(peer.tb)) == 2 })
	renamed.r.mu.Lock()
	renamed.r.opt.UnknownGrace = time.Millisecond
	renamed.r.ownersReviewedAt = time.Time{}
	renamed.r.mu.Unlock()
	poll.Within(t, deadline, "the former name counts as gone", func() bool { return remove(0, table.ContextSyscall) == table.Accepted })
	poll.Within(t, deadline, "the peer has received the delete by the collector", func() bool { return len(live(peer.tb)) == 1 })
}
