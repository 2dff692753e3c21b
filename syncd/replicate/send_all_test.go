package replicate

import (
	"testing"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestNodeWithUnadoptedEntriesIsSentAll checks that a node that starts with a full map does not
// adopt entries of an unreachable owner: b still has a as live, and only c can send its records.
func TestNodeWithUnadoptedEntriesIsSentAll(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b, c)
	a.put(0, 500, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(b.tb)) == 500 && tablesEqual(a, b, c)() })
	b.stop()
	a.put(0, 100, 2) // the map of b does not have these
	poll.Within(t, deadline, "c holds the changes of a", tablesEqual(a, c))
	a.stop()

	self := table.Owner{Node: "b", Incarnation: 2}
	tb := newTable(t, self, true)
	tb.Update(func(tx *table.Tx) {
		for i := range 500 {
			tx.Load(key(i), value(1))
		}
	})
	b2 := startNode(t, "b", 2, tb)
	b2.r.SetPeers([]Peer{a.peer(), c.peer()})
	c.r.SetPeers([]Peer{a.peer(), b2.peer()})
	poll.Within(t, deadline, "all entries are adopted", func() bool { return tb.Stats().Unversioned == 0 })
	poll.Within(t, deadline, "b has received the records of a from c", tablesEqual(b2, c))
}

// TestEntriesOfRestartingOwnerAreNotAdopted checks that a node does not adopt entries of an owner that restarts at the same
// time: b starts with a full map, a sends nothing yet, and only c has the records and tombstones of a. b rejects those, because
// a is live. They show whose entries they are.
func TestEntriesOfRestartingOwnerAreNotAdopted(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b, c)
	a.put(0, 90, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(b.tb)) == 90 && tablesEqual(a, b, c)() })
	b.stop()
	a.put(0, 30, 2)
	a.del(30, 60)
	poll.Within(t, deadline, "c holds the changes of a", tablesEqual(a, c))
	a.stop()

	// Both have an entry that no peer has, so that neither is complete before it adopts its entries.
	tables := map[string]*table.Table{"a": newTable(t, table.Owner{Node: "a", Incarnation: 2}, true), "b": newTable(t, table.Owner{Node: "b", Incarnation: 2}, true)}
	load := func(node string, from, to, v int) {
		tables[node].Update(func(tx *table.Tx) {
			for i := from; i < to; i++ {
				tx.Load(key(i), value(v))
			}
		})
	}
	load("a", 0, 30, 2)
	load("a", 60, 91, 1)
	load("b", 0, 90, 1)
	load("b", 91, 92, 1)
	a2, b2 := startNode(t, "a", 2, tables["a"]), startNode(t, "b", 2, tables["b"])
	connectNodes(a2, b2, c)
	poll.Within(t, deadline, "b has received everything", func() bool { done, _ := b2.r.InitialSyncDone(); return done })
	adopt(b2.tb)
	b2.wantOwner("b", 91, 92)
	b2.wantOwner("a", 0, 90)

	poll.Within(t, deadline, "a has received everything", func() bool { done, _ := a2.r.InitialSyncDone(); return done })
	adopt(a2.tb)
	poll.Within(t, deadline, "the tables are equal", tablesEqual(a2, b2, c))
	b2.wantOwner("a", 0, 30)
	b2.wantOwner("a", 60, 91)
	if got := live(b2.tb); len(got) != 62 || got[0] != 2 || got[60] != 1 {
		t.Errorf("live records of b: got %d, key 0 with %d, key 60 with %d, want 62, 2 and 1", len(got), got[0], got[60])
	}
}

// TestComparisonAdoptsNamedEntries: a third node names a as the owner of entries of b. a has started with a new map and
// never receives its former records. Its first full sync deletes nothing, so the comparison shows that it lacks the keys. b
// then adopts the entries and sends them.
func TestComparisonAdoptsNamedEntries(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b, c)
	a.put(0, 30, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(b.tb)) == 30 && tablesEqual(a, b, c)() })
	a.stop()
	b.stop()

	empty, tb := newTable(t, table.Owner{Node: "a", Incarnation: 2}, false), newTable(t, table.Owner{Node: "b", Incarnation: 2}, true)
	empty.Update(func(tx *table.Tx) { tx.Load(key(30), value(1)) }) // a sends nothing until it adopts this entry
	tb.Update(func(tx *table.Tx) {
		for i := range 30 {
			tx.Load(key(i), value(1))
		}
	})
	a2, b2 := startNode(t, "a", 2, empty), startNode(t, "b", 2, tb)
	a2.r.SetPeers([]Peer{b2.peer()})
	c.r.SetPeers([]Peer{b2.peer()})
	b2.r.SetPeers([]Peer{a2.peer(), c.peer()})
	poll.Within(t, deadline, "b has received everything", func() bool { done, _ := b2.r.InitialSyncDone(); return done })
	b2.wantOwner("a", 0, 30)
	c.stop()
	b2.r.SetPeers([]Peer{a2.peer()})
	adopt(tb)
	adopt(empty)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(a2.tb)) == 31 && tablesEqual(a2, b2)() })
	b2.wantOwner("b", 0, 30)
}

// TestRejectedRecordsNameOwners checks that records and tombstones of a live node in an answer of another peer are not merged,
// and that unadopted entries with their keys become records of that node: in the full sync of a node with unadopted
// entries, and in a resend.
func TestRejectedRecordsNameOwners(t *testing.T) {
	for _, resent := range []bool{false, true} {
		x := newInboundFixture(t)
		x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
		loadUnadopted(x.in) // key 99
		x.tb.Update(func(tx *table.Tx) {
			for i := range 3 {
				tx.Load(key(i), value(1))
			}
		})
		m := stockBatch(1, 0, 10, 0, 1)
		if resent {
			x.in.comparison.resend = &inboundResend{buckets: new(table.BucketSet), firstPosition: 1}
			m = x.resentBatch(0, 1)
		}
		m.GetBatch().Owners = []*mapsyncv1.Incarnation{{Node: "c", Number: 9}}
		m.GetBatch().Deltas[0] = wireRecord(0, value(7), 6, 0)
		m.GetBatch().Deltas[1] = wireRecord(1, nil, 6, 0)
		m.GetBatch().Deltas[1].Operation = mapsyncv1.Operation_OPERATION_DELETE
		x.handle(m)
		adopt(x.tb)
		n := &node{t: t, tb: x.tb}
		n.wantOwner("c", 0, 2)
		n.wantOwner("b", 2, 3)
		if got := live(x.tb); len(got) != 4 || got[0] != 1 {
			t.Errorf("live records, resent %t: got %v, want 4, with the value 1 of the kernel map for key 0", resent, got)
		}
	}
}

// adopt adopts all entries that are not adopted yet.
func adopt(tb *table.Table) {
	tb.Update(func(tx *table.Tx) {
		for tx.Adopt(1000) {
		}
	})
}

// wantOwner checks that a node owns the records of the keys from from to to, in any incarnation.
func (n *node) wantOwner(owner string, from, to int) {
	n.t.Helper()
	others := make(map[string]int)
	n.tb.View(func(tx *table.Tx) {
		for i := from; i < to; i++ {
			var rec table.Record
			if !tx.Get(key(i), &rec) {
				others["no node"]++
			} else if o := tx.Owner(rec.Owner).Node; o != owner {
				others[o]++
			}
		}
	})
	if len(others) > 0 {
		n.t.Errorf("owners of keys %d to %d: got %v, want %s for all", from, to-1, others, owner)
	}
}
