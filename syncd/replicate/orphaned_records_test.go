package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestJoinerReceivesOrphanedRecordsOnce checks that a node that joins receives orphaned records
// once, for any name and any number of nodes, and that no other node receives them again.
func TestJoinerReceivesOrphanedRecordsOnce(t *testing.T) {
	const orphans, others = 1000, 10
	for name, joiner := range map[string]table.Owner{
		"last by name":          {Node: "z", Incarnation: 2},
		"in the middle by name": {Node: "c5", Incarnation: 2},
		"first by name":         {Node: "a0", Incarnation: 2},
		"first to start, so it becomes the fallback sender": {Node: "z", Incarnation: 0},
	} {
		t.Run(name, func(t *testing.T) {
			dead := startNode(t, "b", 1, nil)
			left := []*node{startNode(t, "c", 1, nil), startNode(t, "d", 1, nil), startNode(t, "e", 1, nil)}
			connectNodes(append(left, dead)...)
			dead.put(0, orphans, 1)
			left[1].put(5000, 5000+others, 1)
			poll.Within(t, deadline, "all tables are equal", func() bool {
				return len(live(left[0].tb)) == orphans+others && tablesEqual(append(left, dead)...)()
			})
			dead.stop()
			connectNodes(left...)
			waitIdle(t, left...)
			sent := deltasSentBy(left...)

			j := startNode(t, joiner.Node, joiner.Incarnation, nil)
			all := append(left, j)
			connectNodes(all...)
			poll.Within(t, deadline, "the joiner holds all records", func() bool { return len(live(j.tb)) == orphans+others && tablesEqual(all...)() })
			waitIdle(t, all...)
			got := j.r.Stats().Received.Deltas
			want := uint64(orphans + others)
			if joiner.Incarnation == 0 {
				// Each node sends its records to the fallback sender once: it may hold a record
				// that no other node has received.
				want = uint64(len(left))*orphans + others
			}
			if got != want {
				t.Errorf("deltas received by the joiner: got %d, want %d", got, want)
			}
			if sum := deltasSentBy(left...) - sent; sum != want {
				t.Errorf("deltas sent by the others: got %d, want %d, all of them to the joiner", sum, want)
			}
			// The joiner sends its records to the fallback sender, and as the fallback sender
			// it sends all.
			echo := uint64(orphans)
			if joiner.Incarnation == 0 {
				echo *= uint64(len(left))
			}
			if sum := j.r.Stats().Sent.Deltas; sum != echo {
				t.Errorf("deltas sent by the joiner: got %d, want %d", sum, echo)
			}
		})
	}
}

// waitIdle waits until everything is acknowledged and nothing is in flight.
func waitIdle(t *testing.T, nodes ...*node) {
	t.Helper()
	last, same := uint64(0), 0
	poll.Within(t, deadline, "the nodes are idle", func() bool {
		sum := deltasSentBy(nodes...)
		for _, n := range nodes {
			status := n.r.Status()
			if len(status) != len(nodes)-1 {
				return false
			}
			for _, p := range status {
				if m := p.Maps[0]; m.LagEntries != 0 || m.State != StateCaughtUp || !m.Serving {
					return false
				}
			}
		}
		if same++; sum != last {
			last, same = sum, 0
		}
		return same > 100
	})
}

func deltasSentBy(nodes ...*node) (sum uint64) {
	for _, n := range nodes {
		sum += n.r.Stats().Sent.Deltas
	}
	return sum
}

// TestOrphanedRecordsReturnToOwner checks that all nodes send a restarted, empty node the records
// of its earlier incarnation: each may be the only node with the last of them. Unadopted entries of
// the node change nothing about that.
func TestOrphanedRecordsReturnToOwner(t *testing.T) {
	const orphans = 500
	a := startNode(t, "a", 1, nil)
	left := []*node{startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)}
	connectNodes(append(left, a)...)
	a.put(0, orphans, 1)
	poll.Within(t, deadline, "all tables are equal", func() bool { return len(live(left[0].tb)) == orphans && tablesEqual(append(left, a)...)() })
	a.stop()
	connectNodes(left...)
	waitIdle(t, left...)
	back := startNode(t, "a", 2, newTable(t, table.Owner{Node: "a", Incarnation: 2}, false))
	all := append(left, back)
	connectNodes(all...)
	poll.Within(t, deadline, "the node holds all records again", func() bool { return len(live(back.tb)) == orphans && tablesEqual(all...)() })
	waitIdle(t, all...)
	if got := back.r.Stats().Received.Deltas; got != 2*orphans {
		t.Errorf("received deltas: got %d, want %d from each of two nodes", got, orphans)
	}
}

// TestBrokenStreamKeepsOwnership checks that a node counts as gone by membership only: a broken
// stream does not allow other nodes to delete its records.
func TestBrokenStreamKeepsOwnership(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	connectNodes(a, b)
	b.put(0, 10, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(a.tb)) == 10 && tablesEqual(a, b)() })
	b.stop()
	poll.Within(t, deadline, "the stream is broken", func() bool { _, p := a.status("b", testMap); return p.Node == "b" && !p.Connected })
	expire := func(k int) (o table.Outcome) {
		a.tb.Update(func(tx *table.Tx) {
			o = tx.Local(&table.Change{Key: key(k), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()})
		})
		return o
	}
	if o := expire(1); o != table.Restored || len(live(a.tb)) != 10 {
		t.Errorf("expiry while the owner is unreachable: got %s, %d entries left, want %s and 10", o, len(live(a.tb)), table.Restored)
	}
	a.r.SetPeers(nil)
	if o := expire(1); o != table.Accepted || len(live(a.tb)) != 9 {
		t.Errorf("expiry after the owner has left: got %s, %d entries left, want %s and 9", o, len(live(a.tb)), table.Accepted)
	}
}
