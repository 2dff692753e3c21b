package replicate

import (
	"slices"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// Orphaned records of an owner that a node has never seen live reach it for the keys that no live
// node holds. The node's own records stay, and all nodes agree on them, although one of them has
// accepted the departed owner's newer records.
func TestStrangersAndLiveOwners(t *testing.T) {
	departed, a, b := startNode(t, "x", 1, nil), startNode(t, "a", 2, nil), startNode(t, "b", 3, nil)
	b.put(5, 15, 1)
	meet(departed, a)
	departed.put(0, 10, 2)
	eventually(t, "a has what x wrote", func() bool { return len(live(a.tb)) == 10 })
	departed.stop()
	meet(a)

	meet(a, b)
	c := startNode(t, "c", 4, nil) // it has never seen x
	meet(a, b, c)
	eventually(t, "all are equal", equal(a, b, c))
	got := live(c.tb)
	for i := range 15 {
		want := 1
		if i < 5 {
			want = 2
		}
		if got[i] != want {
			t.Errorf("key %d has value %d, want %d", i, got[i], want)
		}
	}
	if n := b.r.Rejected()["stranger"]; n != 5 {
		t.Errorf("b refused %d records of x over its own, want 5", n)
	}
	eventually(t, "all have proven it", func() bool {
		return !slices.ContainsFunc([]*node{a, b, c}, func(n *node) bool {
			agreed, _ := n.r.Agreed()
			return !agreed
		})
	})
}

// A node refuses a record because it holds a live node's. That node has accepted the record, so a
// repair replaces the live node's record.
func TestStrangersThatTheOwnerKnows(t *testing.T) {
	fast := func(o *Options) { o.compare = 100 * time.Millisecond }
	departed, a, b := startNode(t, "x", 1, nil, fast), startNode(t, "a", 2, nil, fast), startNode(t, "b", 3, nil, fast)
	meet(a, b)
	a.put(0, 10, 1)
	eventually(t, "b has what a wrote", func() bool { return len(live(b.tb)) == 10 })
	b.r.SetPeers(nil) // b is cut off while x takes over from a
	a.r.SetPeers([]Peer{departed.peer()})
	departed.r.SetPeers([]Peer{a.peer()})
	eventually(t, "x has what a wrote", func() bool { return len(live(departed.tb)) == 10 })
	departed.put(0, 10, 2)
	eventually(t, "a has what x wrote", func() bool { return live(a.tb)[9] == 2 })
	departed.stop()
	meet(a, b)
	eventually(t, "b has what x wrote", func() bool { return live(b.tb)[0] == 2 && equal(a, b)() })
}

// The names of nodes that were live are kept while records name them, and tables know them.
func TestProvenNames(t *testing.T) {
	r, tb := newReceiver(t)
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}, {Node: "c", Incarnation: 1, Addr: "127.0.0.1:1"}})
	take := func(want table.Outcome, owner string, v table.Version) {
		t.Helper()
		tb.Update(func(tx *table.Tx) {
			d := table.Delta{Key: key(1), Value: value(1), Version: v, Owner: tx.Intern(table.Owner{Node: owner, Incarnation: 1})}
			if got := tx.Remote(&d, 1, table.RemoteOptions{}); got != want {
				t.Fatalf("a record of %s is %s, want %s", owner, got, want)
			}
		})
	}
	take(table.Accepted, "c", 1)
	take(table.Defended, "y", 2)
	r.SetPeers([]Peer{{Node: "c", Incarnation: 1, Addr: "127.0.0.1:1"}})
	take(table.Accepted, "x", 3) // it has left, and was live
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
	if len(r.proven) != 1 || !r.proven["c"] {
		t.Errorf("proven are %v", r.proven)
	}
}
