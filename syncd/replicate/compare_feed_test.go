package replicate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// digests returns the digests among what is sent now.
func (o *outStream) digests() (all []*mapsyncv1.Digest) {
	o.t.Helper()
	for _, m := range o.run() {
		if m.GetDigest() != nil {
			all = append(all, m.GetDigest())
		}
	}
	return all
}

// one returns the one digest that is sent now.
func (o *outStream) one(what string) *mapsyncv1.Digest {
	o.t.Helper()
	all := o.digests()
	if len(all) != 1 {
		o.t.Fatalf("%s: %d digests", what, len(all))
	}
	return all[0]
}

// TestContentOfDigests: a digest is of the sender's records, of those that the receiver requested,
// and of all orphaned ones; with the parts also of the receiver's.
func TestContentOfDigests(t *testing.T) {
	o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Nodes = []string{"b", "c", "x"} })
	fillAll(o)
	o.remote(table.Owner{Node: "w", Incarnation: 1}, 5, 7) // another one that has left
	o.now = o.now.Add(time.Hour)
	check := func(m *mapsyncv1.Digest, parts bool, want string) {
		t.Helper()
		v := o.r.view.Load()
		if m.GetPosition() != o.f.sent.Load() || m.GetKey() != o.tb.DigestID() || m.GetScope() != o.tb.DigestScope() ||
			m.GetMembers() != v.members || m.GetUnsent() != 0 || m.GetUnknown() != "" || m.GetMap() != 1 {
			t.Errorf("digest %v", m)
		}
		got := ""
		compare := func(n *mapsyncv1.NodeDigest, of ...string) {
			var want table.Digest
			o.tb.View(func(tx *table.Tx) {
				for _, node := range of {
					g := tx.Digest(node, nil)
					want.Sum, want.Loose, want.Live = want.Sum+g.Sum, want.Loose+g.Loose, want.Live+g.Live
				}
			})
			var sum uint64
			if nd, err := readDigest(n); err != nil || (nd.parts != nil) != parts {
				t.Errorf("of %v: %v, parts %t", of, err, nd.parts != nil)
			} else if parts {
				for _, p := range nd.parts {
					sum += p
				}
			} else {
				sum = n.GetSum()
			}
			if n.GetSum() != want.Sum || n.GetLoose() != want.Loose || n.GetLive() != uint64(want.Live) || want.Live == 0 || sum != want.Sum {
				t.Errorf("of %v: %d live, want %+v", of, n.GetLive(), want)
			}
		}
		for _, n := range m.GetNodes() {
			got += n.GetNode()
			compare(n, n.GetNode())
		}
		if got != want {
			t.Errorf("digests of %s, want %s", got, want)
		}
		compare(m.GetOrphaned(), "z", "w")
	}
	check(o.one("the first"), false, "bc")
	if err := o.s.asked(&mapsyncv1.CompareRequest{Map: 1}); err != nil {
		t.Fatal(err)
	}
	o.now = o.now.Add(time.Hour)
	check(o.one("with parts"), true, "bcx")
	o.now = o.now.Add(time.Hour)
	check(o.one("the next"), false, "bc")
}

// TestPausesBetweenDigests: a second while something changes, ten while nothing does, a quarter when
// the peer asks, and none before the stream has come to its end.
func TestPausesBetweenDigests(t *testing.T) {
	o := newOut(t)
	putTable(t, o.tb, 1, 3, 1)
	o.step() // accepted
	if len(o.digests()) != 1 {
		t.Fatal("no digest at the end of the stream")
	}
	const second = time.Second
	due := func(what string, after time.Duration) {
		t.Helper()
		begun := o.now
		if o.now = begun.Add(after - 1); len(o.digests()) != 0 {
			t.Errorf("%s: a digest before %s", what, after)
		}
		if o.now = begun.Add(after); len(o.digests()) != 1 {
			t.Errorf("%s: no digest after %s", what, after)
		}
	}
	due("after the first", second) // what it said has just changed
	due("nothing changed", 10*second)
	due("still nothing", 10*second)
	putTable(t, o.tb, 3, 4, 1)
	due("a change", second)
	due("after the change", second)
	due("nothing changed since", 10*second)
	o.f.telling.asked.Store(true)
	due("asked for the parts", second/4)
	due("after the parts", second)
	o.f.telling.hurry.Store(true)
	due("in a hurry", second/4)
	if o.f.telling.hurry.Load() || o.f.telling.asked.Load() {
		t.Error("the hurry lasts")
	}
	o.tb.Update(func(tx *table.Tx) { // a change of an orphaned record changes what is said, too
		tx.Remote(&table.Delta{Key: key(9), Value: value(9), Version: 9, Owner: tx.Intern(table.Owner{Node: "z", Incarnation: 1})}, 9, table.RemoteOptions{})
	})
	due("an orphaned record", second)
	due("after the orphaned record", second)
	due("nothing changed at last", 10*second)
}

// TestNobodyComparesEarly: no digest while records are to come, or for an observer.
func TestNobodyComparesEarly(t *testing.T) {
	o := newOut(t)
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 5, 1, 2, 3)
	o.run()
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	o.now = o.now.Add(time.Hour)
	o.step()
	for _, m := range o.took() {
		if m.GetDigest() != nil {
			t.Error("a digest before the requested records")
		}
	}
	o.run()
	if len(o.digests()) == 0 && !o.f.telling.made.Equal(o.now) {
		t.Error("no digest after them")
	}
	observer := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true })
	observer.run()
	observer.now = observer.now.Add(time.Hour)
	if len(observer.digests()) != 0 {
		t.Error("a digest for an observer")
	}
}

// TestWhatThePeerWaitsFor keeps the session from sleeping.
func TestWhatThePeerWaitsFor(t *testing.T) {
	var w telling
	if w.wanted() {
		t.Error("the peer waits for nothing")
	}
	for name, set := range map[string]func(*telling){
		"parts":  func(w *telling) { w.asked.Store(true) },
		"hurry":  func(w *telling) { w.hurry.Store(true) },
		"repair": func(w *telling) { w.retell.Store(new(table.BucketSet)) },
	} {
		var w telling
		if set(&w); !w.wanted() {
			t.Errorf("%s: the peer waits, and it does not show", name)
		}
	}
}

// TestRepairSendsTheBuckets: all records in the buckets are sent, those of all owners, in batches out of
// turn, then their number.
func TestRepairSendsTheBuckets(t *testing.T) {
	o := newOut(t)
	const n = 3000
	putTable(t, o.tb, 0, n, 1)
	fillAll(&outStream{t: t, tb: newTable(t, o.r.opt.Self, false)}) // no other records here
	o.remote(other, 5, n, n+1, n+2)
	o.run()
	set, want := new(table.BucketSet), 0
	for b := range table.DigestBuckets / 2 {
		set.Add(b)
	}
	o.tb.View(func(tx *table.Tx) {
		for i := range n + 3 {
			if set.Has(tx.Bucket(key(i))) {
				want++
			}
		}
	})
	if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(set)}); err != nil {
		t.Fatal(err)
	}
	position, got, batches := o.f.sent.Load(), 0, 0
	for o.f.telling.tale == nil || o.f.telling.tale.records == 0 {
		o.step()
	}
	for i := 4000; i < 4000+6*maxBatchDeltas; i++ { // in turn, meanwhile
		var in bool
		o.tb.View(func(tx *table.Tx) { in = set.Has(tx.Bucket(key(i))) })
		if !in {
			putTable(t, o.tb, i, i+1, 1)
		}
	}
	sent := o.run()
	for _, m := range sent {
		b := m.GetBatch()
		if b == nil {
			continue
		}
		if !b.GetRetold() {
			position = b.GetPosition()
			continue
		}
		if b.GetPosition() != position || b.GetPreviousPosition() != position {
			t.Errorf("batch of the repair from %d to %d at %d", b.GetPreviousPosition(), b.GetPosition(), position)
		}
		got, batches = got+len(b.GetDeltas()), batches+1
	}
	if got != want || batches < 2 {
		t.Errorf("%d records in %d batches, want %d", got, batches, want)
	}
	end := sent[len(sent)-1].GetRetold()
	if end.GetRecords() != uint64(want) || end.GetUntold() != 0 || o.f.telling.retell.Load() != nil || o.f.telling.tale != nil {
		t.Errorf("the end: %v", end)
	}
	if s := o.r.Stats(); s.Retellings != 1 || s.Retold != uint64(want) {
		t.Errorf("%d repairs, %d records", s.Retellings, s.Retold)
	}
	if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(set)}); err != nil {
		t.Errorf("a second repair: %v", err)
	}
}

// TestRequestsToCompareAreChecked: about a subscription that there never was, or of an observer.
func TestRequestsToCompareAreChecked(t *testing.T) {
	o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true })
	for _, index := range []uint32{0, 1, 2} {
		if err := o.s.asked(&mapsyncv1.CompareRequest{Map: index}); !errors.Is(err, errProtocol) || o.f.telling.asked.Load() {
			t.Errorf("digests of subscription %d: %v", index, err)
		}
		err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: index, Buckets: setBytes(new(table.BucketSet))})
		if !errors.Is(err, errProtocol) || o.f.telling.retell.Load() != nil {
			t.Errorf("repair of subscription %d: %v", index, err)
		}
	}
}

// padded is a node whose map has entries that cannot be sent: bytes in the padding of their keys.
func padded(t *testing.T, s *schema.Schema, bad, good int) (o *outStream) {
	t.Helper()
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	tb := newSizedTable(t, r.opt.Self, s.Key.Size, s.Value.Size, false)
	if err := r.AddMap(testMap, Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s}, tb); err != nil {
		t.Fatal(err)
	}
	o = &outStream{t: t, r: r, tb: tb, now: time.Now()}
	o.subscribe(func(m *mapsyncv1.MapSubscription) { m.Layout, m.Schema = nil, toProto(s) })
	tb.Update(func(tx *table.Tx) {
		for i := range bad + good {
			k := flow(byte(i))
			if i < bad {
				k[7] = 1
			}
			tx.Local(&table.Change{Key: k, Value: ct{Packets: 1}.old(), Time: time.Now().UnixNano()})
		}
	})
	return o
}

// TestUnsentRecords: records that cannot be sent are counted and listed, left out of digests, and
// reported at the end of a repair.
func TestUnsentRecords(t *testing.T) {
	o := padded(t, oldSchema(), 3, 2)
	o.now = o.now.Add(time.Hour)
	sent := o.run()
	var m *mapsyncv1.Digest
	deltas := 0
	for _, s := range sent {
		deltas += len(s.GetBatch().GetDeltas())
		if s.GetDigest() != nil {
			m = s.GetDigest()
		}
	}
	count, list := o.r.Unsent(testMap)
	if deltas != 2 || count != 3 || len(list) != 3 || o.r.Stats().DeltasUnencodable != 3 {
		t.Errorf("%d sent, %d unsent, %v, %d counted", deltas, count, list, o.r.Stats().DeltasUnencodable)
	}
	for _, e := range list {
		if e.Key == "" || e.Reason == "" {
			t.Errorf("listed as %+v", e)
		}
	}
	if n, l := o.r.Unsent("none"); n != 0 || l != nil {
		t.Errorf("of no map: %d, %v", n, l)
	}
	without := padded(t, oldSchema(), 0, 5)
	var all table.Digest
	without.tb.View(func(tx *table.Tx) { all = tx.Digest("b", nil) })
	if d := m.GetNodes()[0]; d.GetLive() != 2 || m.GetUnsent() != 3 || all.Live != 5 {
		t.Errorf("digest of %d records, %d unsent, of a table with %d", d.GetLive(), m.GetUnsent(), all.Live)
	}
	// With parts, their sum is the whole.
	o.f.telling.asked.Store(true)
	o.now = o.now.Add(time.Hour)
	nd, err := readDigest(o.one("with parts").GetNodes()[0])
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, p := range nd.parts {
		sum += p
	}
	if sum != nd.sums.Sum || sum == 0 {
		t.Error("the parts do not add up to the whole")
	}
	var mine table.Digest
	var lacks uint64
	o.tb.View(func(tx *table.Tx) {
		mine = tx.Digest("b", nil)
		for i := range 3 {
			k := flow(byte(i))
			k[7] = 1
			_, g, _, _ := tx.DigestOf(k)
			lacks += g.Sum
			mine.Loose -= g.Loose
		}
	})
	if nd.sums.Sum != mine.Sum-lacks || nd.sums.Loose != mine.Loose {
		t.Error("the digest is not that of what was sent")
	}
	all2 := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all2.Add(b)
	}
	if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(all2)}); err != nil {
		t.Fatal(err)
	}
	sent = o.run()
	if end := sent[len(sent)-1].GetRetold(); end.GetRecords() != 2 || end.GetUntold() != 3 {
		t.Errorf("end of the repair: %v", end)
	}
	// Entries that are gone are none that cannot be sent.
	o.tb.Update(func(tx *table.Tx) {
		for i := range 2 {
			k := flow(byte(i))
			k[7] = 1
			tx.Local(&table.Change{Key: k, Op: table.OpDelete, Time: time.Now().UnixNano()})
		}
	})
	o.now = o.now.Add(time.Hour)
	if o.run(); fmt.Sprint(o.r.Unsent(testMap))[:1] != "1" {
		count, _ := o.r.Unsent(testMap)
		t.Errorf("%d unsent after two deletes", count)
	}
}
