package replicate

import (
	"testing"

	"mapsync/syncd/table"
)

// What a dead node left behind reaches a joiner once, whatever the joiner is called and
// however many nodes hold it, and those that hold it already are told nothing again.
func TestOrphansAreGivenToAJoinerOnce(t *testing.T) {
	const orphans, others = 1000, 10
	for name, joiner := range map[string]string{
		"the last by name":       "z",
		"among the others":       "c5",
		"the first, so survivor": "a0",
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

			j := startNode(t, joiner, 1, nil)
			all := append(left, j)
			meet(all...)
			eventually(t, "the joiner has all", func() bool { return len(live(j.tb)) == orphans+others && equal(all...)() })
			quiet(t, all...)
			got := j.r.Stats().Received.Deltas
			want := uint64(orphans + others)
			if joiner == "a0" {
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
			if joiner == "a0" {
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
