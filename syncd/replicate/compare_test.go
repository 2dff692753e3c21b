package replicate

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// shortCompare shortens the interval between digests.
func shortCompare(o *Options) {
	o.digestInterval, o.auditInterval = 20*time.Millisecond, housekeepingInterval
}

func newKeyedTable(t *testing.T, self table.Owner, secret string) *table.Table {
	t.Helper()
	tb, err := table.New(table.Options{
		Self: self, KeySize: testKeySize, ValueSize: testValueSize, TombstoneTTL: time.Hour, DigestKey: []byte(secret),
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	return tb
}

func nodesInSync(nodes ...*node) func() bool {
	return func() bool {
		for _, n := range nodes {
			if ok, _ := n.r.InSync(); !ok {
				return false
			}
		}
		return true
	}
}

// startSyncedPair returns two nodes in sync, each with entries of its own.
func startSyncedPair(t *testing.T, opts ...nodeOption) (a, b *node) {
	t.Helper()
	a = startNode(t, "a", 1, newKeyedTable(t, table.Owner{Node: "a", Incarnation: 1}, "k"), append(opts, shortCompare)...)
	b = startNode(t, "b", 1, newKeyedTable(t, table.Owner{Node: "b", Incarnation: 1}, "k"), append(opts, shortCompare)...)
	a.put(0, 3000, 1)
	b.put(3000, 4000, 2)
	connectNodes(a, b)
	poll.Within(t, deadline, "the tables are equal", tablesEqual(a, b))
	poll.Within(t, deadline, "the nodes are in sync", nodesInSync(a, b))
	return a, b
}

// corruptValue changes the value of a key in a table's memory, without a change in the table.
func corruptValue(t *testing.T, n *node, k int) {
	t.Helper()
	n.tb.View(func(tx *table.Tx) {
		var rec table.Record
		if !tx.Get(key(k), &rec) || rec.Delete {
			t.Errorf("key %d: got no live record, want one", k)
			return
		}
		rec.Value[7] ^= 0x10 // the value points into the table
	})
}

// bucketOf returns the set with the bucket of a key.
func bucketOf(tb *table.Table, k int) (set table.BucketSet) {
	tb.View(func(tx *table.Tx) { set.Add(tx.Bucket(key(k))) })
	return set
}

// TestCompareRepairs changes the records of one node without a message to the other. Each
// difference is detected, counted and repaired.
func TestCompareRepairs(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, a, b *node)
		least  uint64 // minimum number of repaired entries
	}{
		"nothing": {func(*testing.T, *node, *node) {}, 0},
		"a corrupt value in memory": {func(t *testing.T, _, b *node) {
			corruptValue(t, b, 17)
			corruptValue(t, b, 1717)
		}, 2},
		"lost": {func(_ *testing.T, _, b *node) {
			set, c := bucketOf(b.tb, 17), b.tb.NewCursor(0)
			defer c.Close()
			b.tb.Update(func(tx *table.Tx) {
				tx.Sweep(&table.Absence{Peer: table.Owner{Node: "a"}, Acknowledged: 1 << 60, Before: 1 << 60, Buckets: &set, DigestID: b.tb.DigestID()}, 1, c, 1<<20)
			})
		}, 1},
		"a record that the owner does not have": {func(t *testing.T, a, b *node) {
			b.tb.Update(func(tx *table.Tx) {
				for k := 9000; k < 9005; k++ {
					d := table.Delta{Key: key(k), Value: value(1), Version: table.Version(time.Now().UnixNano()), Owner: tx.Intern(a.self)}
					if o := tx.Remote(&d, time.Now().UnixNano(), table.RemoteOptions{}); o != table.Accepted {
						t.Errorf("enter the record: got %s, want %s", o, table.Accepted)
					}
				}
			})
		}, 5},
		"a version that the owner does not have": {func(t *testing.T, a, b *node) {
			b.tb.Update(func(tx *table.Tx) {
				d := table.Delta{Key: key(5), Value: value(6), Version: table.Version(time.Now().UnixNano()), Owner: tx.Intern(a.self)}
				if o := tx.Remote(&d, time.Now().UnixNano(), table.RemoteOptions{}); o != table.Accepted {
					t.Errorf("enter the version: got %s, want %s", o, table.Accepted)
				}
			})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := startSyncedPair(t)
			before := b.r.Stats()
			test.change(t, a, b)
			poll.Within(t, deadline, "the difference is repaired", func() bool { return b.r.Stats().Repaired-before.Repaired >= test.least })
			poll.Within(t, deadline, "the tables are equal", func() bool { return sameLive(a, b) })
			m, _ := b.status("a", testMap)
			at := m.InSyncAt
			poll.Within(t, deadline, "the nodes are in sync again", func() bool {
				m, _ := b.status("a", testMap)
				return m.InSync && m.InSyncAt.After(at) && m.Divergent == 0
			})
			if s := b.r.Stats(); s.Repaired-before.Repaired != test.least && name != "lost" {
				t.Errorf("repaired entries: got %d, want %d", s.Repaired-before.Repaired, test.least)
			}
			if s := a.r.Stats(); s.GapsOrErrors()+b.r.Stats().GapsOrErrors() != 0 {
				t.Errorf("errors during the test: got %+v, %+v, want none", s, b.r.Stats())
			}
		})
	}
}

func sameLive(a, b *node) bool {
	x, y := live(a.tb), live(b.tb)
	for k, v := range x {
		if y[k] != v {
			return false
		}
	}
	return len(x) == len(y)
}

// TestCompareCountsMissingRecords has a table that cannot hold all records. The missing records are
// counted for as long as they are missing.
func TestCompareCountsMissingRecords(t *testing.T) {
	small, err := table.New(table.Options{
		Self: table.Owner{Node: "b", Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize, MaxRecords: 90,
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	a, b := startNode(t, "a", 1, nil, shortCompare), startNode(t, "b", 1, small, shortCompare)
	a.put(0, 100, 1)
	connectNodes(a, b)
	poll.Within(t, deadline, "the count is reached", func() bool {
		m, _ := b.status("a", testMap)
		return m.Divergent == 10 && !m.InSync
	})
	if ok, missing := b.r.InSync(); ok || len(missing) != 1 || missing[0] != "a/"+testMap {
		t.Errorf("in sync: got %t, missing %v, want false and a/%s only", ok, missing, testMap)
	}
	poll.Within(t, deadline, "the other side is in sync", nodesInSync(a))
	list, err := b.r.Diff(t.Context(), testMap, "a")
	if err != nil || len(list) != 10 {
		t.Fatalf("differences: got %d, want 10, error %v", len(list), err)
	}
	for _, d := range list {
		if d.Here != nil || d.There == nil || d.There.Owner != a.self || string(d.There.Value) != string(value(1)) {
			t.Errorf("difference: got %+v, want a record of %v with the value %x there only", d, a.self, value(1))
		}
	}
	// The list of the other side has the same differences.
	list, err = a.r.Diff(t.Context(), testMap, "b")
	if err != nil || len(list) != 10 {
		t.Fatalf("differences from the other side: got %d, want 10, error %v", len(list), err)
	}
	for _, d := range list {
		if d.There != nil || d.Here == nil {
			t.Errorf("difference from the other side: got %+v, want a record here only", d)
		}
	}
	a.del(0, 50)
	poll.Within(t, deadline, "the nodes are in sync after the map has room", func() bool { return nodesInSync(a, b)() && sameLive(a, b) })
}

// TestCompareAfterReconnect checks that an agreement from before a stream broke does not count for
// the new stream.
func TestCompareAfterReconnect(t *testing.T) {
	a, b := startSyncedPair(t)
	b.stop()
	poll.Within(t, deadline, "a waits for b", func() bool { return !nodesInSync(a)() })
	if m, _ := a.status("b", testMap); !m.InSync {
		t.Error("status after the stream broke: got not in sync, want the earlier result")
	}
	a.r.SetPeers(nil)
	if !nodesInSync(a)() {
		t.Error("in sync after the peer has left: got false, want true")
	}
}

// TestCompareSteadyLoad has three nodes take over keys from each other continuously. They stay in
// sync, and changes in flight are not repaired.
func TestCompareSteadyLoad(t *testing.T) {
	// A delete by a third node that is under way for more than two comparisons is a difference.
	patient := func(o *Options) {
		o.digestInterval, o.auditInterval = poll.Lengthened(100*time.Millisecond), housekeepingInterval
	}
	nodes := []*node{startNode(t, "a", 1, nil, patient), startNode(t, "b", 1, nil, patient), startNode(t, "c", 1, nil, patient)}
	connectNodes(nodes...)
	poll.Within(t, deadline, "the nodes are in sync before the load", nodesInSync(nodes...))
	divergent := func() (sum uint64) {
		for _, n := range nodes {
			sum += n.r.Stats().DigestsDivergent
		}
		return sum
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	const shortest = 3 * time.Second
	// The pause is the rate of the changes.
	for began := time.Now(); time.Since(began) < shortest || divergent() == 0 && time.Since(began) < poll.Lengthened(poll.Limit); time.Sleep(time.Millisecond) {
		applyRandomChanges(nodes[rnd.IntN(3)].tb, rnd)
		n := nodes[rnd.IntN(3)]
		if ok, missing := n.r.InSync(); !ok {
			t.Fatalf("%s in sync under load: got missing %v, want none; peers %+v, stats %+v", n.self.Node, missing, n.r.Status(), n.r.Stats())
		}
	}
	for _, n := range nodes {
		if s := n.r.Stats(); s.Repaired != 0 || s.GapsOrErrors() != 0 {
			t.Errorf("%s: got %+v, want no repairs and no errors", n.self.Node, s)
		}
	}
	if divergent() == 0 {
		t.Error("comparisons with changes in flight: got 0, want some")
	}
	poll.Within(t, deadline, "the tables are equal", tablesEqual(nodes...))
	loadEnd := time.Now()
	poll.Within(t, deadline, "the nodes are in sync after the load", func() bool {
		for _, n := range nodes {
			for _, p := range n.r.Status() {
				for _, m := range p.Maps {
					if !m.InSync || m.InSyncAt.Before(loadEnd) || m.Divergent != 0 {
						return false
					}
				}
			}
		}
		return true
	})
}

// TestCompareOrphanedRecords compares orphaned records.
func TestCompareOrphanedRecords(t *testing.T) {
	nodes := []*node{startNode(t, "a", 1, nil, shortCompare), startNode(t, "b", 1, nil, shortCompare), startNode(t, "c", 1, nil, shortCompare)}
	nodes[2].put(0, 500, 3)
	connectNodes(nodes...)
	poll.Within(t, deadline, "the tables are equal", tablesEqual(nodes...))
	nodes[2].stop()
	connectNodes(nodes[:2]...)
	a, b := nodes[0], nodes[1]
	// Each of the two remaining nodes has lost a record that the other one still holds.
	for i, n := range nodes[:2] {
		set, c := bucketOf(n.tb, 100+i), n.tb.NewCursor(0)
		n.tb.Update(func(tx *table.Tx) {
			tx.Sweep(&table.Absence{Peer: table.Owner{Node: "c"}, Acknowledged: 1 << 60, Before: 1 << 60, Buckets: &set, DigestID: n.tb.DigestID()}, 1, c, 1<<20)
		})
		c.Close()
	}
	corruptValue(t, b, 300)
	want := live(a.tb)
	poll.Within(t, deadline, "the value is that of the fallback sender", func() bool { return live(b.tb)[300] == want[300] })
	poll.Within(t, deadline, "the nodes are in sync", nodesInSync(a, b))
}

// TestCompareWithDifferentDigestKeys has nodes with different digest keys.
func TestCompareWithDifferentDigestKeys(t *testing.T) {
	a := startNode(t, "a", 1, newKeyedTable(t, table.Owner{Node: "a", Incarnation: 1}, "one"), shortCompare)
	b := startNode(t, "b", 1, newKeyedTable(t, table.Owner{Node: "b", Incarnation: 1}, "another"), shortCompare)
	a.put(0, 10, 1)
	connectNodes(a, b)
	poll.Within(t, deadline, "the comparison is impossible", func() bool {
		m, _ := b.status("a", testMap)
		return m.Incomparable != "" && !m.InSync && m.Divergent == 0
	})
	if ok, missing := b.r.InSync(); ok || len(missing) != 1 || !strings.Contains(missing[0], "a/"+testMap+" (unknown: the peer's digests use another key") {
		t.Errorf("in sync with different digest keys: got %t, missing %q, want false and a/%s only, unknown because of another digest key",
			ok, missing, testMap)
	}
	poll.Within(t, deadline, "the initial sync is done", func() bool { ok, _ := b.r.InitialSyncDone(); return ok },
		func() any { _, waiting := b.r.InitialSyncDone(); return waiting })
	if s := b.r.Stats(); s.Repairs != 0 || s.DigestsDivergent != 0 || s.DigestsImpossible == 0 {
		t.Errorf("counters with different digest keys: got %+v, want no repairs, no divergent digests and at least one impossible digest",
			s)
	}
	if _, err := b.r.Diff(t.Context(), testMap, "a"); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("diff with different digest keys: got %v, want an error with \"another key\"", err)
	}
	if err := b.r.Resync(t.Context(), testMap, nil); !errors.Is(err, ErrInconclusive) || !strings.Contains(err.Error(), "another key") {
		t.Errorf("resync with different digest keys: got %v, want ErrInconclusive", err)
	}
}

// TestCompareWithDifferentLayouts has nodes with different layouts: the digests are compared as a
// whole, and a full sync repairs differences.
func TestCompareWithDifferentLayouts(t *testing.T) {
	a := typedNode(t, "a", schematest.OldVersion(), &testInterfaces{names: []string{"lo", "eth0"}}, shortCompare)
	b := typedNode(t, "b", schematest.NewVersion(), &testInterfaces{names: []string{"lo", "x", "eth0"}}, shortCompare)
	flow := func(i int) []byte { return []byte{10, 0, 0, byte(i), 1, 0, 0, 0} }
	for i := range 200 {
		putValue(t, a, flow(i), ct{Packets: uint64(i), Ifindex: 2, Backend: "abc"}.old())
	}
	connectNodes(a, b)
	poll.Within(t, deadline, "the nodes are in sync", nodesInSync(a, b))
	var set table.BucketSet
	c := b.tb.NewCursor(0)
	b.tb.Update(func(tx *table.Tx) {
		set.Add(tx.Bucket(flow(17)))
		tx.Sweep(&table.Absence{Peer: table.Owner{Node: "a"}, Acknowledged: 1 << 60, Before: 1 << 60, Buckets: &set, DigestID: b.tb.DigestID()}, 1, c, 1<<20)
	})
	c.Close()
	if valueOf(b.tb, flow(17)) != nil {
		t.Fatal("record: got a value, want none")
	}
	poll.Within(t, deadline, "the missing record is resent", func() bool { return valueOf(b.tb, flow(17)) != nil })
	poll.Within(t, deadline, "the nodes are in sync again", nodesInSync(a, b))
	if list, err := b.r.Diff(t.Context(), "typed", "a"); err != nil || len(list) != 0 {
		t.Errorf("differences: got %v, error %v, want none and no error", list, err)
	}
}
