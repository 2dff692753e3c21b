package replicate

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// quick has digests compared as often as a test has patience for.
func quick(o *Options) { o.compare, o.audit = 20*time.Millisecond, housekeeping }

func keyed(t *testing.T, self table.Owner, secret string) *table.Table {
	t.Helper()
	tb, err := table.New(table.Options{
		Self: self, KeySize: testKeySize, ValueSize: testValueSize, TombstoneTTL: time.Hour, DigestKey: []byte(secret),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

func agreed(nodes ...*node) func() bool {
	return func() bool {
		for _, n := range nodes {
			if ok, _ := n.r.Agreed(); !ok {
				return false
			}
		}
		return true
	}
}

// pair returns two nodes that agree about entries of either.
func pair(t *testing.T, opts ...nodeOption) (a, b *node) {
	t.Helper()
	a = startNode(t, "a", 1, keyed(t, table.Owner{Node: "a", Incarnation: 1}, "k"), append(opts, quick)...)
	b = startNode(t, "b", 1, keyed(t, table.Owner{Node: "b", Incarnation: 1}, "k"), append(opts, quick)...)
	a.put(0, 3000, 1)
	b.put(3000, 4000, 2)
	meet(a, b)
	eventually(t, "equal", equal(a, b))
	eventually(t, "agreed", agreed(a, b))
	return a, b
}

// silently changes the value of a key in a table's memory, and tells nobody.
func silently(t *testing.T, n *node, k int) {
	t.Helper()
	n.tb.View(func(tx *table.Tx) {
		var rec table.Record
		if !tx.Get(key(k), &rec) || rec.Delete {
			t.Errorf("key %d is not there", k)
			return
		}
		rec.Value[7] ^= 0x10 // a record's value is a view
	})
}

// bucketOf returns the set of the bucket that a key is in.
func bucketOf(tb *table.Table, k int) (set table.BucketSet) {
	tb.View(func(tx *table.Tx) { set.Add(tx.Bucket(key(k))) })
	return set
}

// TestCompareRepairs changes what one node holds of the other in ways that no message told
// of. Each is found, counted, and put right.
func TestCompareRepairs(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, a, b *node)
		least  uint64 // entries repaired
	}{
		"nothing": {func(*testing.T, *node, *node) {}, 0},
		"a value in memory": {func(t *testing.T, _, b *node) {
			silently(t, b, 17)
			silently(t, b, 1717)
		}, 2},
		"lost": {func(_ *testing.T, _, b *node) {
			set, c := bucketOf(b.tb, 17), b.tb.NewCursor(0)
			defer c.Close()
			b.tb.Update(func(tx *table.Tx) { tx.SweepBuckets("a", &set, 1<<60, 1, c, 1<<20) })
		}, 1},
		"made up": {func(t *testing.T, a, b *node) {
			b.tb.Update(func(tx *table.Tx) {
				for k := 9000; k < 9005; k++ {
					d := table.Delta{Key: key(k), Value: value(1), Version: table.Version(time.Now().UnixNano()), Owner: tx.Intern(a.self)}
					if o := tx.Remote(&d, time.Now().UnixNano(), table.RemoteOptions{}); o != table.Accepted {
						t.Errorf("made up: %s", o)
					}
				}
			})
		}, 5},
		"a version that there is not": {func(t *testing.T, a, b *node) {
			b.tb.Update(func(tx *table.Tx) {
				d := table.Delta{Key: key(5), Value: value(6), Version: table.Version(time.Now().UnixNano()), Owner: tx.Intern(a.self)}
				if o := tx.Remote(&d, time.Now().UnixNano(), table.RemoteOptions{}); o != table.Accepted {
					t.Errorf("newer: %s", o)
				}
			})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			before := b.r.Stats()
			test.change(t, a, b)
			eventually(t, "repaired", func() bool { return b.r.Stats().Repaired-before.Repaired >= test.least })
			eventually(t, "equal", func() bool { return sameLive(a, b) })
			m, _ := b.status("a", testMap)
			at := m.AgreedAt
			eventually(t, "agreed again", func() bool {
				m, _ := b.status("a", testMap)
				return m.Agreed && m.AgreedAt.After(at) && m.Divergent == 0
			})
			if s := b.r.Stats(); s.Repaired-before.Repaired != test.least && name != "lost" {
				t.Errorf("%d entries repaired, expected %d", s.Repaired-before.Repaired, test.least)
			}
			if s := a.r.Stats(); s.GapsOrErrors()+b.r.Stats().GapsOrErrors() != 0 {
				t.Errorf("errors on the way: %+v, %+v", s, b.r.Stats())
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

// TestCompareCounts has a table that cannot hold all: what is missing is counted for as
// long as it is.
func TestCompareCounts(t *testing.T) {
	small, err := table.New(table.Options{
		Self: table.Owner{Node: "b", Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize, MaxRecords: 90,
	})
	if err != nil {
		t.Fatal(err)
	}
	a, b := startNode(t, "a", 1, nil, quick), startNode(t, "b", 1, small, quick)
	a.put(0, 100, 1)
	meet(a, b)
	eventually(t, "counted", func() bool {
		m, _ := b.status("a", testMap)
		return m.Divergent == 10 && !m.Agreed
	})
	if ok, missing := b.r.Agreed(); ok || len(missing) != 1 || missing[0] != "a/"+testMap {
		t.Errorf("agreed: %t, missing %v", ok, missing)
	}
	eventually(t, "agreed on the other side", agreed(a))
	list, err := b.r.Diff(t.Context(), testMap, "a")
	if err != nil || len(list) != 10 {
		t.Fatalf("%d differences, error %v", len(list), err)
	}
	for _, d := range list {
		if d.Here != nil || d.There == nil || d.There.Owner != a.self || string(d.There.Value) != string(value(1)) {
			t.Errorf("difference %+v", d)
		}
	}
	// Seen from the other side it is the same list.
	list, err = a.r.Diff(t.Context(), testMap, "b")
	if err != nil || len(list) != 10 {
		t.Fatalf("%d differences from the other side, error %v", len(list), err)
	}
	for _, d := range list {
		if d.There != nil || d.Here == nil {
			t.Errorf("difference %+v", d)
		}
	}
	a.del(0, 50)
	eventually(t, "agreed with room", func() bool { return agreed(a, b)() && sameLive(a, b) })
}

// TestCompareNeedsAStream: what agreed before a stream broke says nothing of what the peer has
// become since.
func TestCompareNeedsAStream(t *testing.T) {
	a, b := pair(t)
	b.stop()
	eventually(t, "a waits for b", func() bool { return !agreed(a)() })
	if m, _ := a.status("b", testMap); !m.Agreed {
		t.Error("nobody remembers that they agreed")
	}
	a.r.SetPeers(nil)
	if !agreed(a)() {
		t.Error("a waits for a peer that is gone")
	}
}

// TestCompareSteadyLoad lets three nodes take keys from each other without pause: they
// agree nevertheless, and nothing is repaired that was only under way.
func TestCompareSteadyLoad(t *testing.T) {
	nodes := []*node{startNode(t, "a", 1, nil, quick), startNode(t, "b", 1, nil, quick), startNode(t, "c", 1, nil, quick)}
	meet(nodes...)
	eventually(t, "agreed at first", agreed(nodes...))
	rnd := rand.New(rand.NewPCG(1, 2))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		scribble(nodes[rnd.IntN(3)].tb, rnd)
		if ok, missing := nodes[rnd.IntN(3)].r.Agreed(); !ok {
			t.Fatalf("no longer agreed with %v", missing)
		}
	}
	var differed uint64
	for _, n := range nodes {
		s := n.r.Stats()
		differed += s.DigestsDiffer
		if s.Repaired != 0 || s.GapsOrErrors() != 0 {
			t.Errorf("%s: %+v", n.self.Node, s)
		}
	}
	if differed == 0 {
		t.Error("nothing was under way at any comparison, so nothing was tested")
	}
	eventually(t, "equal", equal(nodes...))
	quiet := time.Now()
	eventually(t, "agreed once it is quiet", func() bool {
		for _, n := range nodes {
			for _, p := range n.r.Status() {
				for _, m := range p.Maps {
					if !m.Agreed || m.AgreedAt.Before(quiet) || m.Divergent != 0 {
						return false
					}
				}
			}
		}
		return true
	})
}

// TestCompareGone compares what a node left behind.
func TestCompareGone(t *testing.T) {
	nodes := []*node{startNode(t, "a", 1, nil, quick), startNode(t, "b", 1, nil, quick), startNode(t, "c", 1, nil, quick)}
	nodes[2].put(0, 500, 3)
	meet(nodes...)
	eventually(t, "equal", equal(nodes...))
	nodes[2].stop()
	meet(nodes[:2]...)
	a, b := nodes[0], nodes[1]
	// The survivor has lost what only the other one knows, and the other way round.
	for i, n := range nodes[:2] {
		set, c := bucketOf(n.tb, 100+i), n.tb.NewCursor(0)
		n.tb.Update(func(tx *table.Tx) { tx.SweepBuckets("c", &set, 1<<60, 1, c, 1<<20) })
		c.Close()
	}
	silently(t, b, 300)
	want := live(a.tb)
	eventually(t, "the value is the survivor's", func() bool { return live(b.tb)[300] == want[300] })
	eventually(t, "agreed", agreed(a, b))
}

// TestCompareOtherKeys has nodes whose digests say nothing to each other.
func TestCompareOtherKeys(t *testing.T) {
	a := startNode(t, "a", 1, keyed(t, table.Owner{Node: "a", Incarnation: 1}, "one"), quick)
	b := startNode(t, "b", 1, keyed(t, table.Owner{Node: "b", Incarnation: 1}, "another"), quick)
	a.put(0, 10, 1)
	meet(a, b)
	eventually(t, "seen to be impossible", func() bool {
		m, _ := b.status("a", testMap)
		return m.Incomparable != "" && !m.Agreed && m.Divergent == 0
	})
	if ok, missing := b.r.Agreed(); ok || len(missing) != 1 || !strings.Contains(missing[0], "a/"+testMap+" (unknown: the peer makes digests with another key") {
		t.Errorf("nodes that cannot compare agree: %t, missing %q", ok, missing)
	}
	if ok, waiting := b.r.SyncedAll(); !ok {
		t.Errorf("the initial sync waits for a comparison: %v", waiting)
	}
	if s := b.r.Stats(); s.Repairs != 0 || s.DigestsDiffer != 0 || s.DigestsImpossible == 0 {
		t.Errorf("%+v", s)
	}
	if _, err := b.r.Diff(t.Context(), testMap, "a"); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("a list without comparing: %v", err)
	}
	if err := b.r.Resync(t.Context(), testMap, nil); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "another key") {
		t.Errorf("resync without comparing: %v", err)
	}
}

// TestCompareOtherLayout has nodes whose entries have another layout: the whole is
// compared, and told again.
func TestCompareOtherLayout(t *testing.T) {
	a := typedNode(t, "a", oldSchema(), &links{names: []string{"lo", "eth0"}}, quick)
	b := typedNode(t, "b", newSchema(), &links{names: []string{"lo", "x", "eth0"}}, quick)
	flow := func(i int) []byte { return []byte{10, 0, 0, byte(i), 1, 0, 0, 0} }
	for i := range 200 {
		putValue(t, a, flow(i), ct{Packets: uint64(i), Ifindex: 2, Backend: "abc"}.old())
	}
	meet(a, b)
	eventually(t, "agreed", agreed(a, b))
	var set table.BucketSet
	c := b.tb.NewCursor(0)
	b.tb.Update(func(tx *table.Tx) {
		set.Add(tx.Bucket(flow(17)))
		tx.SweepBuckets("a", &set, 1<<60, 1, c, 1<<20)
	})
	c.Close()
	if valueOf(b.tb, flow(17)) != nil {
		t.Fatal("not lost")
	}
	eventually(t, "told again", func() bool { return valueOf(b.tb, flow(17)) != nil })
	eventually(t, "agreed again", agreed(a, b))
	if list, err := b.r.Diff(t.Context(), "typed", "a"); err != nil || len(list) != 0 {
		t.Errorf("differences %v, error %v", list, err)
	}
}
