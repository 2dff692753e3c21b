package replicate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mapsync/syncd/table"
)

func equal(nodes ...*node) func() bool {
	return func() bool {
		first := dump(nodes[0].tb)
		for _, n := range nodes[1:] {
			if !cmp.Equal(first, dump(n.tb)) {
				return false
			}
		}
		return true
	}
}

func TestThreeNodesConverge(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil), startNode(t, "c", 3, nil)
	a.put(0, 2000, 1)
	meet(a, b, c)
	b.put(2000, 3000, 2)
	c.put(3000, 3500, 3)
	eventually(t, "all equal", func() bool { return len(live(a.tb)) == 3500 && equal(a, b, c)() })
	// Ownership moves to the last toucher, deletes travel.
	b.put(0, 100, 4)
	c.put(50, 150, 5)
	a.del(1000, 1100)
	eventually(t, "all equal again", func() bool {
		l := live(a.tb)
		return len(l) == 3400 && l[0] == 4 && l[120] == 5 && equal(a, b, c)()
	})
	for _, n := range []*node{a, b, c} {
		eventually(t, "everything acknowledged", func() bool {
			ok, waiting := n.r.SyncedAll()
			for _, p := range n.r.Status() {
				m := p.Maps[0]
				if !p.Connected || !p.Serving || m.LagEntries != 0 || m.Lag != 0 || m.State != StateCaughtUp {
					return false
				}
			}
			return ok && len(waiting) == 0
		})
	}
	// Nothing is streamed but by its owner: each record once to each peer, for
	// each time that it changed and was met.
	for _, n := range []*node{a, b, c} {
		// 50 keys were changed by two at once.
		if s := n.tb.Stats(); s.RemoteStale > 50 {
			t.Errorf("node %s received %d records that were not new", n.self.Node, s.RemoteStale)
		}
	}
}

func TestResumeSendsNothingTwice(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	a.put(0, 5000, 1)
	meet(a, b)
	eventually(t, "b has all", func() bool { return len(live(b.tb)) == 5000 })
	for i := range 5 {
		before := a.r.Stats()
		a.lis.cut()
		a.put(5000+10*i, 5010+10*i, 2)
		eventually(t, "b has the rest", func() bool { return len(live(b.tb)) == 5010+10*i })
		after := a.r.Stats()
		if n := after.Sent.Deltas - before.Sent.Deltas; n > 20 {
			t.Errorf("cut %d: %d deltas sent for 10 changes", i, n)
		}
		if after.Resumes == before.Resumes || after.Walks != before.Walks {
			t.Errorf("cut %d: %d resumes and %d walks", i, after.Resumes-before.Resumes, after.Walks-before.Walks)
		}
	}
	// A peer that leaves and comes back in the same life resumes as well.
	b.r.SetPeers(nil)
	eventually(t, "b has no stream", func() bool { return b.r.Stats().Connected == 0 && a.r.Stats().Serving == 0 })
	a.put(6000, 6001, 3)
	before := a.r.Stats()
	b.r.SetPeers([]Peer{a.peer()})
	eventually(t, "b is back", func() bool { return live(b.tb)[6000] == 3 })
	if after := a.r.Stats(); after.Sent.Deltas-before.Sent.Deltas != 1 || after.Walks != before.Walks {
		t.Errorf("%d deltas sent for one change", after.Sent.Deltas-before.Sent.Deltas)
	}
}

// TestRestart is rule 11: what the map says of an earlier life's records wins
// over what peers remember of them.
func TestRestart(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 9, nil)
	meet(a, b)
	a.put(0, 300, 1)
	b.put(300, 310, 1)
	eventually(t, "equal", func() bool { return len(live(a.tb)) == 310 && equal(a, b)() })
	a.stop()

	// While a is down: 100 to 199 deleted, 200 to 299 changed, 1000 new.
	self := table.Owner{Node: "a", Incarnation: 2}
	tb := newTable(t, self, true)
	tb.Update(func(tx *table.Tx) {
		for i := range 310 {
			v := 1
			if i >= 200 && i < 300 {
				v = 2
			}
			if i < 100 || i >= 200 {
				tx.Load(key(i), value(v))
			}
		}
		tx.Load(key(1000), value(7))
	})
	a2 := startNode(t, "a", 2, tb)
	meet(a2, b)
	eventually(t, "synced", func() bool { ok, _ := a2.r.SyncedAll(); return ok })
	eventually(t, "b not waiting for a node that waits for it", func() bool { ok, _ := b.r.SyncedAll(); return ok })
	if n := a2.r.Stats().Sent.Deltas; n != 0 {
		t.Errorf("%d deltas sent before the table was complete", n)
	}
	tb.Update(func(tx *table.Tx) {
		for tx.Claim(16) {
		}
	})
	eventually(t, "equal after the restart", func() bool {
		l := live(b.tb)
		return len(l) == 211 && l[250] == 2 && l[1000] == 7 && l[305] == 1 && equal(a2, b)()
	})
	if s := a2.r.Stats(); s.GapsOrErrors() != 0 {
		t.Errorf("errors on the way: %+v", s)
	}
}

// GapsOrErrors sums what must not happen between honest peers.
func (s Stats) GapsOrErrors() uint64 {
	return s.Gaps + s.BadMessages + s.BadRequests + s.DeltasAhead + s.DeltasRefused
}

func TestSurvivorStreamsForOneThatIsGone(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	meet(a, b, c)
	a.put(0, 1000, 1)
	b.put(1000, 1010, 1)
	eventually(t, "equal", func() bool { return len(live(c.tb)) == 1010 && equal(a, b, c)() })
	a.stop()
	meet(b, c)
	before := c.r.Stats().Sent.Deltas
	d := startNode(t, "d", 1, nil)
	meet(b, c, d)
	eventually(t, "the joiner has all", func() bool { return len(live(d.tb)) == 1010 && equal(b, c, d)() })
	mb, _ := b.status("d", testMap)
	mc, _ := c.status("d", testMap)
	if mb.Sent == 0 || mc.Sent == 0 {
		t.Fatalf("positions sent to d: %d and %d", mb.Sent, mc.Sent)
	}
	// c covers a for b only, which needs nothing that c has.
	if n := c.r.Stats().Sent.Deltas - before; n != 1000 {
		t.Errorf("c sent %d deltas, expected the 1000 of a once, to b", n)
	}
	if s := d.tb.Stats(); s.RemoteStale > 0 {
		t.Errorf("d received %d records twice", s.RemoteStale)
	}
	// Now anyone may delete what was a's.
	c.tb.Update(func(tx *table.Tx) {
		o := tx.Local(&table.Change{
			Key: key(5), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano(),
		})
		if o != table.Accepted {
			t.Errorf("delete of a record whose owner is gone: %s", o)
		}
	})
	eventually(t, "deleted everywhere", func() bool { return len(live(b.tb)) == 1009 && equal(b, c, d)() })
}

// TestSurvivorTakesOver lets the survivor die too: the next one begins to
// stream what an old stream of its own has already passed.
func TestSurvivorTakesOver(t *testing.T) {
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	meet(b, c)
	// a's records came to c alone, long ago.
	a := table.Owner{Node: "a", Incarnation: 1}
	c.tb.Update(func(tx *table.Tx) {
		id := tx.Intern(a)
		for i := range 100 {
			tx.Remote(&table.Delta{Key: key(i), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
		}
	})
	d := startNode(t, "d", 1, nil)
	e := startNode(t, "e", 1, nil)
	meet(b, c, d, e)
	eventually(t, "b, lowest, has them of c", func() bool { return len(live(b.tb)) == 100 })
	// And streams them on, as c would if b were not there.
	eventually(t, "d and e have them", func() bool { return len(live(d.tb)) == 100 && len(live(e.tb)) == 100 })
	sent := c.r.Stats().Sent.Deltas
	b.stop()
	meet(c, d, e)
	eventually(t, "c streams them again", func() bool { return c.r.Stats().Sent.Deltas >= sent+200 })
	eventually(t, "equal", equal(c, d, e))
}

func TestUnknownOwnerCountsAsGone(t *testing.T) {
	a := startNode(t, "a", 1, nil, func(o *Options) { o.UnknownGrace = time.Millisecond })
	a.tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "z", Incarnation: 1})
		tx.Remote(&table.Delta{Key: key(1), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
	})
	expire := func() (o table.Outcome) {
		a.tb.Update(func(tx *table.Tx) {
			o = tx.Local(&table.Change{
				Key: key(1), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano(),
			})
		})
		return o
	}
	if o := expire(); o != table.Restored {
		t.Errorf("delete of a record whose owner may live: %s", o)
	}
	a.r.SetPeers(nil)
	eventually(t, "the owner counts as gone", func() bool { return expire() == table.Accepted })
}

// TestLostPositionSweeps lets deletions be forgotten while the peer is away.
func TestLostPositionSweeps(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	meet(a, b)
	a.put(0, 3000, 1)
	b.put(5000, 5010, 1)
	eventually(t, "equal", func() bool { return len(live(b.tb)) == 3010 && equal(a, b)() })
	b.r.SetPeers(nil)
	eventually(t, "b has no stream", func() bool { return b.r.Stats().Connected == 0 })
	a.del(1000, 2000)
	a.tb.Update(func(tx *table.Tx) {
		for tx.Expire(time.Now().Add(2*time.Hour).UnixNano(), 100) {
		}
	})
	if s := a.tb.Stats(); s.Tombstones != 0 || s.Floor == 0 {
		t.Fatalf("tombstones are still there: %+v", s)
	}
	before := a.r.Stats()
	b.r.SetPeers([]Peer{a.peer()})
	eventually(t, "b has deleted what a has not", func() bool { return len(live(b.tb)) == 2010 })
	if after := a.r.Stats(); after.Walks != before.Walks+1 {
		t.Errorf("%d walks, expected one", after.Walks-before.Walks)
	}
	if s := b.tb.Stats(); s.Swept != 1000 {
		t.Errorf("%d records swept, expected 1000", s.Swept)
	}
}

// TestRefusedRecordsAreFetchedAgain lets a clock be wrong, and then right.
func TestRefusedRecordsAreFetchedAgain(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	var late time.Time
	b := startNode(t, "b", 2, nil, func(o *Options) {
		late = time.Now()
		o.Now = func() time.Time { return late }
		o.MaxClockAhead = time.Hour
		o.RewalkDelay = 300 * time.Millisecond
	})
	a.put(0, 10, 1)
	a.tb.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: key(77), Value: value(7), Time: late.Add(61 * time.Minute).UnixNano()})
	})
	a.put(10, 20, 1)
	meet(a, b)
	eventually(t, "b has all others", func() bool { return len(live(b.tb)) == 20 })
	eventually(t, "the refused record is shown", func() bool {
		m, _ := b.status("a", testMap)
		return m.DeltasRefused > 0 && m.Error != "" && b.r.Stats().DeltasAhead > 0
	})
	if _, ok := live(b.tb)[77]; ok {
		t.Error("a record from the future was accepted")
	}
	eventually(t, "walked again", func() bool { return a.r.Stats().Walks >= 3 })
}
