package replicate

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// flip changes a value in memory, without the table.
func flip(tb *table.Table, k int) {
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		tx.Get(key(k), &rec)
		rec.Value[0] ^= 1
	})
}

// TestRoundsOfAnAudit: the audit looks at every record within its interval, and at none twice in one round.
func TestRoundsOfAnAudit(t *testing.T) {
	for _, c := range []struct {
		records, turns int
		rounds         int
		least, most    uint64 // audits that have ended after the rounds
	}{
		{0, 4, 1, 1, 1},
		{4*touchChunk + 1, 4, 4, 1, 2},
		{2 * touchChunk, 1, 4, 4, 4},
		{3 * touchChunk, 1, 4, 4, 4},
		{100, 1, 3, 3, 3},
	} {
		r, tb := newReceiver(t)
		r.opt.audit = time.Duration(c.turns) * housekeeping
		putTable(t, tb, 0, c.records, 1)
		for range c.rounds {
			r.audit(t.Context())
		}
		if n := tb.Stats().Audits; n < c.least || n > c.most {
			t.Errorf("%d records, %d turns: %d audits after %d rounds, want %d to %d", c.records, c.turns, n, c.rounds, c.least, c.most)
		}
	}
}

// TestFindingsOfAnAudit are logged with the number of buckets, once.
func TestFindingsOfAnAudit(t *testing.T) {
	var out bytes.Buffer
	r, tb := newReceiver(t)
	r.opt.Logger, r.opt.audit = slog.New(slog.NewTextHandler(&out, nil)), 1
	putTable(t, tb, 0, 10, 1)
	if r.audit(t.Context()); out.Len() != 0 {
		t.Errorf("nothing has changed, logged %s", out.String())
	}
	for range 2 {
		out.Reset()
		flip(tb, 3)
		r.audit(t.Context())
		if !strings.Contains(out.String(), "changed in memory") || !strings.Contains(out.String(), "map="+testMap+" buckets=1\n") {
			t.Errorf("logged %q", out.String())
		}
	}
	out.Reset()
	if r.audit(t.Context()); out.Len() != 0 {
		t.Errorf("logged again: %s", out.String())
	}
}

// TestReasonsAreLoggedOnce: why a map cannot be compared.
func TestReasonsAreLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	x := newStreamless(t)
	x.r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	x.in.comparing.divergent = 3
	for _, why := range []string{"one", "one", "two"} {
		x.in.cannotCompare(why)
	}
	// A list whose buckets are on their way goes on.
	l := newListing(x)
	x.in.comparing.list, x.in.comparing.job = l, &job{}
	if x.in.cannotCompare("two"); ended(l) || x.in.comparing.list != l {
		t.Errorf("the list has ended: %v", l.err)
	}
	if n := strings.Count(out.String(), "map cannot be compared"); n != 2 || !strings.Contains(out.String(), "peer=x map="+testMap+" reason=one") {
		t.Errorf("%d lines: %s", n, out.String())
	}
	out.Reset()
	for _, c := range []struct {
		agreed    bool
		divergent int
		lines     int
	}{{false, 1, 1}, {false, 0, 0}, {true, 1, 0}} {
		x.in.comparing.agreed, x.in.comparing.divergent = c.agreed, c.divergent
		x.in.agree(10, time.Now())
		if n := strings.Count(out.String(), "map agrees with peer's again"); n != c.lines {
			t.Errorf("agreed before %t, %d divergent: %d lines", c.agreed, c.divergent, n)
		}
		out.Reset()
	}
}

// TestDigestsThatProveNothingYet: nodes in doubt are forgotten, and the number of unsent records is bounded.
func TestDigestsThatProveNothingYet(t *testing.T) {
	x := newStreamless(t)
	c := &x.in.comparing
	c.suspects = map[string]*suspect{"x": {}}
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Unknown, m.Unsent = "not now", 1<<40 })
	if c.suspects != nil || c.unknowns != 1 || c.impossible != "" || c.unsent != 1<<31 {
		t.Errorf("%+v", *c)
	}
	x = newStreamless(t)
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Key++ })
	if s := x.r.Stats(); s.DigestsImpossible != 1 || s.Digests != 1 || !strings.Contains(x.in.comparing.impossible, "another key") {
		t.Errorf("with another key: %d of %d impossible, %q", s.DigestsImpossible, s.Digests, x.in.comparing.impossible)
	}
}

// TestExceptionsInComparisons: records that this node cannot hold are taken out of the comparison of another
// layout, those of the peer and orphaned ones.
func TestExceptionsInComparisons(t *testing.T) {
	z, x1 := table.Owner{Node: "z", Incarnation: 1}, table.Owner{Node: "x", Incarnation: 1}
	for name, c := range map[string]struct {
		excepted, peers, orphaned table.Owner // of the exception here, and of the records there
		agreed                    bool
	}{
		"none":               {agreed: true},
		"orphaned":           {excepted: z, orphaned: z, agreed: true},
		"of the peer":        {excepted: x1, peers: x1, agreed: true},
		"of another":         {excepted: x1, orphaned: z},
		"no exception":       {peers: x1},
		"no orphaned record": {excepted: z},
	} {
		x := newStreamless(t)
		x.l.ownerRequests = true
		x.in.requesting.confirmed = x.in.requesting.serial
		x.in.m.settled.Store(true)
		if c.excepted.Node != "" {
			x.in.excepted.add([]byte{0xff}, 9, c.excepted, errGap)
		}
		m := x.digest(false).GetDigest()
		m.Scope++
		m.Members, m.Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{}
		x.tb.View(func(tx *table.Tx) {
			if c.orphaned.Node != "" {
				m.Orphaned.Loose += tx.LooseOf(c.orphaned, 9)
			}
			if c.peers.Node != "" {
				m.Nodes[0].Loose += tx.LooseOf(c.peers, 9)
			}
		})
		if err := x.in.compare(m, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := x.in.comparing.agreed; got != c.agreed {
			t.Errorf("%s: agreed %t, %+v", name, got, x.in.comparing)
		}
	}
}

// TestNumberOfNodesInDoubt is bounded.
func TestNumberOfNodesInDoubt(t *testing.T) {
	for _, before := range []int{maxDigests - 1, maxDigests} {
		x := newStreamless(t)
		c := &x.in.comparing
		c.suspects = make(map[string]*suspect)
		for i := range before {
			c.suspects[fmt.Sprint(i)] = &suspect{}
		}
		x.in.suspectNodes([]compared{{nodeDigest: nodeDigest{node: "new"}}}, time.Now())
		if len(c.suspects) != maxDigests || (c.suspects["new"] != nil) != (before < maxDigests) {
			t.Errorf("%d nodes in doubt after %d", len(c.suspects), before)
		}
	}
}

// TestDifferencesOfBuckets are the peer's sum less this node's.
func TestDifferencesOfBuckets(t *testing.T) {
	var theirs, ours table.Buckets
	theirs[1], ours[1], theirs[2], ours[2] = 7, 5, 3, 3
	var s suspect
	s.round(&compared{nodeDigest: nodeDigest{node: "x", parts: &theirs}, parts: &ours}, new(table.BucketSet), time.Now())
	if s.delta[1] != 2 || s.delta[2] != 0 || s.proven.Has(1) || !s.proven.Has(2) || s.rounds != 1 {
		t.Errorf("differences %d and %d", s.delta[1], s.delta[2])
	}
	// A bucket whose difference was explained, and that agrees now, is proven.
	s = suspect{explained: map[int]uint64{2: 5}, until: at1000}
	s.round(&compared{nodeDigest: nodeDigest{node: "x", parts: &theirs}, parts: &ours}, new(table.BucketSet), at1000)
	if !s.proven.Has(2) || s.explained[2] != 5 {
		t.Errorf("explained: %v", s.explained)
	}
}

// TestListsThatCannotBeMade fail after five seconds with the reason.
func TestListsThatCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		begun := time.Now()
		time.AfterFunc(listPatience+1, func() {
			x.l.mu.Lock()
			x.in.comparing.unknown = "other live nodes"
			x.l.mu.Unlock()
		})
		list, err := x.r.Diff(t.Context(), testMap, "x")
		if !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), `"ct" with x`) || !strings.Contains(err.Error(), "other live nodes") {
			t.Errorf("%v, %v", list, err)
		}
		if time.Since(begun) != 2*listPatience || x.in.comparing.list != nil {
			t.Errorf("after %s, list %v", time.Since(begun), x.in.comparing.list)
		}
		x.in.comparing.unknown = ""
		time.AfterFunc(time.Second, func() {
			x.l.mu.Lock()
			x.in.comparing.list.end(errTooBig)
			x.l.mu.Unlock()
		})
		if _, err := x.r.Diff(t.Context(), testMap, "x"); !errors.Is(err, errTooBig) || !strings.Contains(err.Error(), `"ct" with x`) {
			t.Errorf("%v", err)
		}
	})
}

// TestPauseBetweenLooks at what differs is that between digests.
func TestPauseBetweenLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		begun := time.Now()
		differences := []Difference{{Key: []byte("k")}}
		answerLists(x, differences, differences)
		c, err := x.r.Compare(t.Context(), testMap, "x")
		if d := time.Since(begun); err != nil || len(c.Differences) != 1 || c.Passing != 0 || d < x.r.opt.compare || d > 2*x.r.opt.compare {
			t.Errorf("%+v, %v after %s", c, err, d)
		}
	})
}

// TestSecondLookThatFails is an error.
func TestSecondLookThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		answerLists(x, []Difference{{Key: []byte("k")}})
		time.AfterFunc(x.r.opt.compare/2, func() {
			x.l.mu.Lock()
			x.in.state = StateFailed
			x.l.mu.Unlock()
		})
		if c, err := x.r.Compare(t.Context(), testMap, "x"); !errors.Is(err, ErrNoPeer) || len(c.Differences) != 0 {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// TestListOfThisNodesRecords is requested at once.
func TestListOfThisNodesRecords(t *testing.T) {
	x, l := listed(t)
	putTable(t, x.tb, 50, 51, 1)
	woken(x.l.wake)
	if x.mustCompare(time.Now(), true); x.in.comparing.want == nil || !l.chosen || !woken(x.l.wake) {
		t.Errorf("buckets %v, chosen %t", x.in.comparing.want, l.chosen)
	}
}

// TestEndOfAList leaves alone what is known of the map.
func TestEndOfAList(t *testing.T) {
	x := newStreamless(t)
	c := &x.in.comparing
	c.divergent, c.agreed, c.pause, c.retry = 5, true, time.Minute, at1000
	j := &job{list: newListing(x), left: 3, found: 2}
	c.job, c.ask = j, false
	woken(x.l.wake)
	x.in.endJob(j, time.Now())
	if !ended(j.list) || c.job != nil || !c.ask || !woken(x.l.wake) {
		t.Errorf("the list has not ended: %+v", *c)
	}
	if c.divergent != 5 || !c.agreed || c.pause != time.Minute || c.retry != at1000 || x.r.Stats().Repaired != 0 {
		t.Errorf("a list counts as a repair: %+v", *c)
	}
}

// TestWhatCountsAsAgreement: an agreement on this stream, under the same membership, that is late enough.
func TestWhatCountsAsAgreement(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *intake)
		awaits bool
	}{
		"agreed":         {func(*intake) {}, false},
		"not agreed":     {func(in *intake) { in.comparing.agreed = false }, true},
		"impossible":     {func(in *intake) { in.comparing.impossible = "why" }, true},
		"another stream": {func(in *intake) { in.comparing.current = false }, true},
		"at the time":    {func(in *intake) { in.comparing.at = at1000 }, false},
		"too early":      {func(in *intake) { in.comparing.at = at1000.Add(-1) }, true},
		"another view":   {func(in *intake) { in.comparing.departures++ }, true},
		"pending":        {func(in *intake) { in.comparing.agreed, in.state = false, StatePending }, false},
		"waiting":        {func(in *intake) { in.state = StateWaiting }, true},
		"failed":         {func(in *intake) { in.state = StateFailed }, true},
	} {
		x := newStreamless(t)
		x.in.agree(10, at1000.Add(time.Second))
		c.change(x.in)
		if got := x.in.awaitsAgreement(at1000); got != c.awaits {
			t.Errorf("%s: awaited %t", name, got)
		}
	}
}

// TestForcedResync: what was agreed on before counts no longer.
func TestForcedResync(t *testing.T) {
	x := newStreamless(t)
	x.in.agree(10, at1000)
	x.in.told = 7
	woken(x.l.wake)
	x.l.forceWalk("none", at1000)
	if !x.in.rewalk.IsZero() || woken(x.l.wake) {
		t.Error("a map that there is not is resynced")
	}
	x.l.forceWalk(testMap, at1000)
	if c := &x.in.comparing; !x.in.rewalk.Equal(at1000) || !c.forced.Equal(at1000) || c.agreed || x.in.told != 0 || !woken(x.l.wake) {
		t.Errorf("full sync at %s, %+v", x.in.rewalk, *c)
	}
}

// TestAgreementOnAnotherMap of the same name does not count.
func TestAgreementOnAnotherMap(t *testing.T) {
	x := newStreamless(t)
	x.in.agree(10, time.Now())
	if ok, missing := x.r.Agreed(); !ok {
		t.Fatalf("missing %q", missing)
	}
	x.in.m = &localMap{}
	if ok, missing := x.r.Agreed(); ok || len(missing) != 1 || missing[0] != "x/"+testMap {
		t.Errorf("%t, missing %q", ok, missing)
	}
}

// TestResyncWithRecordsAboveTheLimit: it ends with an error if digests cannot agree, and without if they do.
func TestResyncWithRecordsAboveTheLimit(t *testing.T) {
	for _, agreed := range []bool{false, true} {
		x := newStreamless(t)
		x.in.synced, x.in.state = true, StateCaughtUp
		x.in.excepted.addLimited([]byte("k"), 1, target)
		x.in.agree(10, at1000.Add(time.Second))
		x.in.comparing.agreed = agreed
		peers, _, _, unknown := x.r.resyncing(testMap, at1000)
		if len(peers) != 0 || (unknown == nil) != agreed || !agreed && !strings.Contains(unknown.Error(), "1 records rejected") {
			t.Errorf("agreed %t: waits for %q, %v", agreed, peers, unknown)
		}
	}
}
