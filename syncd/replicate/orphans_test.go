package replicate

import (
	"testing"
	"time"

	"mapsync/syncd/table"
)

// What a dead node left behind reaches a joiner once, whatever the joiner is called and
// however many nodes hold it, and those that hold it already are told nothing again.
func TestOrphansAreGivenToAJoinerOnce(t *testing.T) {
	const orphans, others = 1000, 10
	for name, joiner := range map[string]table.Owner{
		"the last by name":                      {Node: "z", Incarnation: 2},
		"among the others":                      {Node: "c5", Incarnation: 2},
		"the first by name":                     {Node: "a0", Incarnation: 2},
		"the first by its clock, so a survivor": {Node: "z", Incarnation: 0},
	} {
		t.Run(name, func(t *testing.T) {
			dead := startNode(t, "b", 1, nil)
			left := []*node{startNode(t, "c", 1, nil), startNode(t, "d", 1, nil), startNode(t, "e", 1, nil)}
			meet(append(left, dead)...)
			dead.put(0, orphans, 1)
			left[1].put(5000, 5000+others, 1)
			eventually(t, "all equal", func() bool {
				return len(live(left[0].tb)) == orphans+others && equal(append(left, dead)...)()
			})
			dead.stop()
			meet(left...)
			quiet(t, left...)
			sent := sentBy(left...)

			j := startNode(t, joiner.Node, joiner.Incarnation, nil)
			all := append(left, j)
			meet(all...)
			eventually(t, "the joiner has all", func() bool { return len(live(j.tb)) == orphans+others && equal(all...)() })
			quiet(t, all...)
			got := j.r.Stats().Received.Deltas
			want := uint64(orphans + others)
			if joiner.Incarnation == 0 {
				// Everyone tells the survivor what it has: each may have received something that
				// no other has. Once from each, and no more.
				want = uint64(len(left))*orphans + others
			}
			if got != want {
				t.Errorf("the joiner received %d deltas, expected %d", got, want)
			}
			if sum := sentBy(left...) - sent; sum != want {
				t.Errorf("the others sent %d deltas, expected %d: all of them to the joiner", sum, want)
			}
			// It tells the survivor what it has, like everyone, and as survivor all.
			echo := uint64(orphans)
			if joiner.Incarnation == 0 {
				echo *= uint64(len(left))
			}
			if sum := j.r.Stats().Sent.Deltas; sum != echo {
				t.Errorf("the joiner sent %d deltas, expected %d", sum, echo)
			}
		})
	}
}

// quiet waits until everything is acknowledged and nothing is under way.
func quiet(t *testing.T, nodes ...*node) {
	t.Helper()
	last, same := uint64(0), 0
	eventually(t, "quiet", func() bool {
		sum := sentBy(nodes...)
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

func sentBy(nodes ...*node) (sum uint64) {
	for _, n := range nodes {
		sum += n.r.Stats().Sent.Deltas
	}
	return sum
}

// A node that died and comes back empty is told what it left behind by everyone: any one
// of them may be the only one that received the last of it. A map that it still has,
// unclaimed, changes nothing of that.
func TestOrphansGoBackToTheirOwner(t *testing.T) {
	const orphans = 500
	a := startNode(t, "a", 1, nil)
	left := []*node{startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)}
	meet(append(left, a)...)
	a.put(0, orphans, 1)
	eventually(t, "all equal", func() bool { return len(live(left[0].tb)) == orphans && equal(append(left, a)...)() })
	a.stop()
	meet(left...)
	quiet(t, left...)
	back := startNode(t, "a", 2, newTable(t, table.Owner{Node: "a", Incarnation: 2}, false))
	all := append(left, back)
	meet(all...)
	eventually(t, "it has all again", func() bool { return len(live(back.tb)) == orphans && equal(all...)() })
	quiet(t, all...)
	if got := back.r.Stats().Received.Deltas; got != 2*orphans {
		t.Errorf("received %d deltas, expected %d from each of two", got, orphans)
	}
}

// A stream that breaks is no death: only membership says who is gone, and until it does
// nobody deletes what the owner owns.
func TestBrokenStreamIsNoDeath(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	meet(a, b)
	b.put(0, 10, 1)
	eventually(t, "equal", func() bool { return len(live(a.tb)) == 10 && equal(a, b)() })
	b.stop()
	eventually(t, "the stream is broken", func() bool { _, p := a.status("b", testMap); return p.Node == "b" && !p.Connected })
	expire := func(k int) (o table.Outcome) {
		a.tb.Update(func(tx *table.Tx) {
			o = tx.Local(&table.Change{Key: key(k), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()})
		})
		return o
	}
	if o := expire(1); o != table.Restored || len(live(a.tb)) != 10 {
		t.Errorf("a collector's delete while the owner cannot be reached: %s, %d entries left", o, len(live(a.tb)))
	}
	a.r.SetPeers(nil)
	if o := expire(1); o != table.Accepted || len(live(a.tb)) != 9 {
		t.Errorf("a collector's delete when the owner is gone: %s, %d entries left", o, len(live(a.tb)))
	}
}
