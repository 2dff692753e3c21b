package replicate

import (
	"slices"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestUnverifiedAndLiveOwners has orphaned records of an owner arrive at a node that has never seen the
// owner live. The node accepts them for keys without a record of a live node, and keeps its own
// records. All nodes agree, although one of them has accepted the newer records of the departed owner.
func TestUnverifiedAndLiveOwners(t *testing.T) {
	departed, a, b := startNode(t, "x", 1, nil), startNode(t, "a", 2, nil), startNode(t, "b", 3, nil)
	b.put(5, 15, 1)
	connectNodes(departed, a)
	departed.put(0, 10, 2)
	poll.Within(t, deadline, "a holds the records of x", func() bool { return len(live(a.tb)) == 10 })
	departed.stop()
	connectNodes(a)

	connectNodes(a, b)
	c := startNode(t, "c", 4, nil) // it has never seen x live
	connectNodes(a, b, c)
	poll.Within(t, deadline, "all tables are equal", tablesEqual(a, b, c))
	got := live(c.tb)
	for i := range 15 {
		want := 1
		if i < 5 {
			want = 2
		}
		if got[i] != want {
			t.Errorf("key %d: got value %d, want %d", i, got[i], want)
		}
	}
	if n := b.r.Rejected()["unverified_owner"]; n != 5 {
		t.Errorf("records of x rejected by b: got %d, want 5", n)
	}
	poll.Within(t, deadline, "all nodes are in sync", func() bool {
		return !slices.ContainsFunc([]*node{a, b, c}, func(n *node) bool {
			agreed, _ := n.r.InSync()
			return !agreed
		})
	})
}

// TestUnverifiedOwnerAcceptedByOwner has a node reject a record because it holds the record of a live
// node. That live node has accepted the record, so a repair replaces it on the first node.
func TestUnverifiedOwnerAcceptedByOwner(t *testing.T) {
	fast := func(o *Options) { o.digestInterval = 100 * time.Millisecond }
	departed, a, b := startNode(t, "x", 1, nil, fast), startNode(t, "a", 2, nil, fast), startNode(t, "b", 3, nil, fast)
	connectNodes(a, b)
	a.put(0, 10, 1)
	poll.Within(t, deadline, "b holds the records of a", func() bool { return len(live(b.tb)) == 10 })
	b.r.SetPeers(nil) // b is isolated while x takes over from a
	a.r.SetPeers([]Peer{departed.peer()})
	departed.r.SetPeers([]Peer{a.peer()})
	poll.Within(t, deadline, "x holds the records of a", func() bool { return len(live(departed.tb)) == 10 })
	departed.put(0, 10, 2)
	poll.Within(t, deadline, "a holds the records of x", func() bool { return live(a.tb)[9] == 2 })
	departed.stop()
	connectNodes(a, b)
	poll.Within(t, deadline, "b holds the records of x", func() bool { return live(b.tb)[0] == 2 && tablesEqual(a, b)() })
}

// TestNamesOfFormerPeers checks that the names of nodes that were live are kept while records name
// them, and that tables have them.
func TestNamesOfFormerPeers(t *testing.T) {
	r, tb := newTestReplicator(t)
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}, {Node: "c", Incarnation: 1, Addr: "127.0.0.1:1"}})
	take := func(want table.Outcome, owner string, v table.Version) {
		t.Helper()
		tb.Update(func(tx *table.Tx) {
			d := table.Delta{Key: key(1), Value: value(1), Version: v, Owner: tx.Intern(table.Owner{Node: owner, Incarnation: 1})}
			if got := tx.Remote(&d, 1, table.RemoteOptions{}); got != want {
				t.Fatalf("record of %s: got %s, want %s", owner, got, want)
			}
		})
	}
	take(table.Accepted, "c", 1)
	take(table.Defended, "y", 2)
	r.SetPeers([]Peer{{Node: "c", Incarnation: 1, Addr: "127.0.0.1:1"}})
	take(table.Accepted, "x", 3) // it has left and was live
	take(table.Accepted, "c", 4)
	review := func() {
		tb.View((*table.Tx).ReclaimOwners)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reviewOwners()
	}
	review()
	take(table.Accepted, "x", 5)
	take(table.Accepted, "c", 6)
	clear(r.goneAt) // as if it had left long ago
	review()
	take(table.Defended, "x", 7)
	if len(r.everLive) != 1 || !r.everLive["c"] {
		t.Errorf("everLive: got %v, want c", r.everLive)
	}
}
