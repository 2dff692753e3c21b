package replicate

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

func tablesEqual(nodes ...*node) func() bool {
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

// TestThreeNodesConverge has three nodes change, take over and delete keys.
func TestThreeNodesConverge(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil), startNode(t, "c", 3, nil)
	a.put(0, 2000, 1)
	connectNodes(a, b, c)
	b.put(2000, 3000, 2)
	c.put(3000, 3500, 3)
	poll.Within(t, deadline, "all tables are equal", func() bool { return len(live(a.tb)) == 3500 && tablesEqual(a, b, c)() })
	// Ownership moves to the last writer, and deletes are replicated.
	b.put(0, 100, 4)
	c.put(50, 150, 5)
	a.del(1000, 1100)
	poll.Within(t, deadline, "all tables are equal again", func() bool {
		l := live(a.tb)
		return len(l) == 3400 && l[0] == 4 && l[120] == 5 && tablesEqual(a, b, c)()
	})
	for _, n := range []*node{a, b, c} {
		poll.Within(t, deadline, "everything is acknowledged", func() bool {
			ok, waiting := n.r.InitialSyncDone()
			for _, p := range n.r.Status() {
				m := p.Maps[0]
				if !p.Connected || !p.Serving || m.LagEntries != 0 || m.Lag != 0 || m.State != StateCaughtUp {
					return false
				}
			}
			return ok && len(waiting) == 0
		})
	}
	// Each record is sent by its owner only: once to each peer for each change that is still current.
	for _, n := range []*node{a, b, c} {
		// 50 keys were changed by two nodes at once.
		if s := n.tb.Stats(); s.RemoteStale > 50 {
			t.Errorf("node %s: got %d stale records, want at most 50", n.self.Node, s.RemoteStale)
		}
	}
}

// TestResumeSendsNothingTwice cuts streams repeatedly. They resume without sending records again.
func TestResumeSendsNothingTwice(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	a.put(0, 5000, 1)
	connectNodes(a, b)
	poll.Within(t, deadline, "b holds all records", func() bool { return len(live(b.tb)) == 5000 })
	for i := range 5 {
		before := a.r.Stats()
		a.lis.cut()
		a.put(5000+10*i, 5010+10*i, 2)
		poll.Within(t, deadline, "b holds the new records", func() bool { return len(live(b.tb)) == 5010+10*i })
		after := a.r.Stats()
		if n := after.Sent.Deltas - before.Sent.Deltas; n > 20 {
			t.Errorf("cut %d: got %d deltas sent for 10 changes, want at most 20", i, n)
		}
		if after.Resumes == before.Resumes || after.FullSyncs != before.FullSyncs {
			t.Errorf("cut %d: got %d resumes and %d full syncs, want at least 1 and none",
				i, after.Resumes-before.Resumes, after.FullSyncs-before.FullSyncs)
		}
	}
	// A peer that leaves and comes back with the same incarnation resumes, too.
	b.r.SetPeers(nil)
	poll.Within(t, deadline, "b has no stream", func() bool { return b.r.Stats().Connected == 0 && a.r.Stats().Serving == 0 })
	a.put(6000, 6001, 3)
	before := a.r.Stats()
	b.r.SetPeers([]Peer{a.peer()})
	poll.Within(t, deadline, "b is back", func() bool { return live(b.tb)[6000] == 3 })
	if after := a.r.Stats(); after.Sent.Deltas-before.Sent.Deltas != 1 || after.FullSyncs != before.FullSyncs {
		t.Errorf("deltas sent for one change: got %d, want 1", after.Sent.Deltas-before.Sent.Deltas)
	}
}

// TestRestartKeepsLocalChanges checks that after a restart the map decides about the records of the
// earlier incarnation, not the records of the peers.
func TestRestartKeepsLocalChanges(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 9, nil)
	connectNodes(a, b)
	a.put(0, 300, 1)
	b.put(300, 310, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(a.tb)) == 310 && tablesEqual(a, b)() })
	a.stop()

	// While a is down, keys 100 to 199 are deleted, 200 to 299 are changed, and 1000 is new.
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
	connectNodes(a2, b)
	poll.Within(t, deadline, "the initial sync is done", func() bool { ok, _ := a2.r.InitialSyncDone(); return ok })
	poll.Within(t, deadline, "the initial sync of b does not wait for a", func() bool { ok, _ := b.r.InitialSyncDone(); return ok })
	poll.Within(t, deadline, "a received all records of b", func() bool { ok, _ := a2.r.AllReceived(); return ok })
	if ok, waiting := b.r.AllReceived(); ok || !slices.Equal(waiting, []string{"a/" + testMap}) {
		t.Errorf("all received by b: got waiting for %v, want a", waiting)
	}
	if n := a2.r.Stats().Sent.Deltas; n != 0 {
		t.Errorf("deltas sent before the table was complete: got %d, want 0", n)
	}
	tb.Update(func(tx *table.Tx) {
		for tx.Adopt(16) {
		}
	})
	poll.Within(t, deadline, "the tables are equal after the restart", func() bool {
		l := live(b.tb)
		return len(l) == 211 && l[250] == 2 && l[1000] == 7 && l[305] == 1 && tablesEqual(a2, b)()
	})
	poll.Within(t, deadline, "b received all records of a", func() bool { ok, _ := b.r.AllReceived(); return ok })
	if s := a2.r.Stats(); s.GapsOrErrors() != 0 {
		t.Errorf("errors during the test: got %+v, want none", s)
	}
}

// GapsOrErrors returns the sum of the counters that stay 0 between well-behaved peers.
func (s Stats) GapsOrErrors() uint64 {
	return s.Gaps + s.BadMessages + s.BadRequests + s.DeltasAhead + s.DeltasRefused
}

// TestFallbackSenderSendsOrphanedRecords has an owner leave: its fallback sender sends the orphaned
// records to a node that joins.
func TestFallbackSenderSendsOrphanedRecords(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b, c)
	a.put(0, 1000, 1)
	b.put(1000, 1010, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(c.tb)) == 1010 && tablesEqual(a, b, c)() })
	before := c.r.Stats().Sent.Deltas // c may begin to send at once
	a.stop()
	connectNodes(b, c)
	d := startNode(t, "d", 1, nil)
	connectNodes(b, c, d)
	poll.Within(t, deadline, "the joiner holds all records", func() bool { return len(live(d.tb)) == 1010 && tablesEqual(b, c, d)() })
	mb, _ := b.status("d", testMap)
	mc, _ := c.status("d", testMap)
	if mb.Sent == 0 || mc.Sent == 0 {
		t.Fatalf("positions sent to d: got %d and %d, want both above 0", mb.Sent, mc.Sent)
	}
	// c sends the records of a to b only, perhaps after d has them. b has no need of other records of c.
	poll.Within(t, deadline, "c sends the records of a", func() bool { return c.r.Stats().Sent.Deltas-before >= 1000 })
	if n := c.r.Stats().Sent.Deltas - before; n != 1000 {
		t.Errorf("deltas sent by c: got %d, want the 1000 of a once, to b", n)
	}
	if s := d.tb.Stats(); s.RemoteStale > 0 {
		t.Errorf("stale records received by d: got %d, want 0", s.RemoteStale)
	}
	// Now any node may delete the records of a.
	c.tb.Update(func(tx *table.Tx) {
		o := tx.Local(&table.Change{
			Key: key(5), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano(),
		})
		if o != table.Accepted {
			t.Errorf("delete of a record whose owner has left: got %s, want %s", o, table.Accepted)
		}
	})
	poll.Within(t, deadline, "the records are deleted on all nodes", func() bool { return len(live(b.tb)) == 1009 && tablesEqual(b, c, d)() })
}

// TestNextFallbackSenderTakesOver has the fallback sender leave, too: the next one sends records
// that its streams have already passed.
func TestNextFallbackSenderTakesOver(t *testing.T) {
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(b, c)
	// Only c has received the records of a, long ago.
	a := table.Owner{Node: "a", Incarnation: 1}
	c.tb.Update(func(tx *table.Tx) {
		id := tx.Intern(a)
		for i := range 100 {
			tx.Remote(&table.Delta{Key: key(i), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
		}
	})
	d := startNode(t, "d", 1, nil)
	e := startNode(t, "e", 1, nil)
	connectNodes(b, c, d, e)
	poll.Within(t, deadline, "b, which started first, has received the records from c", func() bool { return len(live(b.tb)) == 100 })
	// c also sends new changes, as without b.
	poll.Within(t, deadline, "d and e hold the records", func() bool { return len(live(d.tb)) == 100 && len(live(e.tb)) == 100 })
	sent := c.r.Stats().Sent.Deltas
	b.stop()
	connectNodes(c, d, e)
	poll.Within(t, deadline, "c resends the records", func() bool { return c.r.Stats().Sent.Deltas >= sent+200 })
	poll.Within(t, deadline, "the tables are equal", tablesEqual(c, d, e))
}

// TestUnknownOwnerCountsAsGone checks that an owner that was never live counts as gone after
// UnknownGrace.
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
		t.Errorf("expiry of a record whose owner may be live: got %s, want %s", o, table.Restored)
	}
	a.r.SetPeers(nil)
	poll.Within(t, deadline, "the owner counts as gone", func() bool { return expire() == table.Accepted })
}

// TestPositionBelowFloorSweeps has the table forget tombstones while the peer is away.
func TestPositionBelowFloorSweeps(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	connectNodes(a, b)
	a.put(0, 3000, 1)
	b.put(5000, 5010, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(b.tb)) == 3010 && tablesEqual(a, b)() })
	b.r.SetPeers(nil)
	poll.Within(t, deadline, "b has no stream", func() bool { return b.r.Stats().Connected == 0 })
	a.del(1000, 2000)
	a.tb.Update(func(tx *table.Tx) {
		for tx.Expire(time.Now().Add(2*time.Hour).UnixNano(), 100) {
		}
	})
	if s := a.tb.Stats(); s.Tombstones != 0 || s.Floor == 0 {
		t.Fatalf("tombstones: got %+v, want none and a floor", s)
	}
	before := a.r.Stats()
	b.r.SetPeers([]Peer{a.peer()})
	poll.Within(t, deadline, "b has deleted the records that a does not have", func() bool { return len(live(b.tb)) == 2010 })
	if after := a.r.Stats(); after.FullSyncs != before.FullSyncs+1 {
		t.Errorf("full syncs: got %d, want 1", after.FullSyncs-before.FullSyncs)
	}
	if s := b.tb.Stats(); s.Swept != 1000 {
		t.Errorf("swept records: got %d, want 1000", s.Swept)
	}
}

// TestRefusedRecordsAreResent sets a wrong clock and corrects it.
func TestRefusedRecordsAreResent(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	var late time.Time
	b := startNode(t, "b", 2, nil, func(o *Options) {
		late = time.Now()
		o.Now = func() time.Time { return late }
		o.MaxClockAhead = time.Hour
		o.RepeatFullSyncDelay = 300 * time.Millisecond
	})
	a.put(0, 10, 1)
	a.tb.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: key(77), Value: value(7), Time: late.Add(61 * time.Minute).UnixNano()})
	})
	a.put(10, 20, 1)
	connectNodes(a, b)
	poll.Within(t, deadline, "b holds all other records", func() bool { return len(live(b.tb)) == 20 })
	poll.Within(t, deadline, "the status shows the refused record", func() bool {
		m, _ := b.status("a", testMap)
		return m.DeltasRefused > 0 && m.Error != "" && b.r.Stats().DeltasAhead > 0
	})
	if _, ok := live(b.tb)[77]; ok {
		t.Error("record with a version in the future: got accepted, want refused")
	}
	poll.Within(t, deadline, "the full sync is repeated", func() bool { return a.r.Stats().FullSyncs >= 3 })
}
