package replicate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// digests returns the digests among the messages that the stream sends now.
func (o *outboundFixture) digests() (all []*mapsyncv1.Digest) {
	o.t.Helper()
	for _, m := range o.sendPending() {
		if m.GetDigest() != nil {
			all = append(all, m.GetDigest())
		}
	}
	return all
}

// oneDigest returns the only digest that the stream sends now.
func (o *outboundFixture) oneDigest(what string) *mapsyncv1.Digest {
	o.t.Helper()
	all := o.digests()
	if len(all) != 1 {
		o.t.Fatalf("%s: got %d digests, want 1", what, len(all))
	}
	return all[0]
}

// TestDigestContents checks that digests cover the sender's records, the records that the receiver
// requested and all orphaned records, and with buckets also the receiver's records.
func TestDigestContents(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Nodes = []string{"b", "c", "x"} })
	addAllOwners(o)
	o.addRemote(table.Owner{Node: "w", Incarnation: 1}, 5, 7) // another node that has left
	o.now = o.now.Add(time.Hour)
	check := func(m *mapsyncv1.Digest, parts bool, want string) {
		t.Helper()
		v := o.r.view.Load()
		if m.GetPosition() != o.m.sentPosition.Load() || m.GetKeyFingerprint() != o.tb.DigestID() || m.GetScopeFingerprint() != o.tb.DigestScope() ||
			m.GetMembersFingerprint() != v.members || m.GetUnsent() != 0 || m.GetInconclusiveReason() != "" || m.GetMap() != 1 {
			t.Errorf("digest: got %v, want position %d, the fingerprints of this node, map 1, nothing unsent and no reason",
				m, o.m.sentPosition.Load())
		}
		got := ""
		compare := func(n *mapsyncv1.NodeDigest, of ...string) {
			var want table.Digest
			o.tb.View(func(tx *table.Tx) {
				for _, node := range of {
					g := tx.Digest(node, nil)
					want.Sum, want.VersionSum, want.Live = want.Sum+g.Sum, want.VersionSum+g.VersionSum, want.Live+g.Live
				}
			})
			var sum uint64
			if nd, err := wire.NodeDigestFromProto(n); err != nil || (nd.Buckets != nil) != parts {
				t.Errorf("digest of %v: got error %v, buckets %t, want no error and %t", of, err, nd.Buckets != nil, parts)
			} else if parts {
				for _, p := range nd.Buckets {
					sum += p
				}
			} else {
				sum = n.GetSum()
			}
			if n.GetSum() != want.Sum || n.GetVersionSum() != want.VersionSum || n.GetLive() != uint64(want.Live) || want.Live == 0 || sum != want.Sum {
				t.Errorf("digest of %v: got %d live, want %+v", of, n.GetLive(), want)
			}
		}
		for _, n := range m.GetNodes() {
			got += n.GetNode()
			compare(n, n.GetNode())
		}
		if got != want {
			t.Errorf("digests: got owners %s, want %s", got, want)
		}
		compare(m.GetOrphaned(), "z", "w")
	}
	check(o.oneDigest("first digest"), false, "bc")
	if err := o.s.handleCompareRequest(&mapsyncv1.CompareRequest{Map: 1}); err != nil {
		t.Fatalf("handle compare request: got error %v, want nil", err)
	}
	o.now = o.now.Add(time.Hour)
	check(o.oneDigest("with buckets"), true, "bcx")
	o.now = o.now.Add(time.Hour)
	check(o.oneDigest("next digest"), false, "bc")
}

// TestDigestInterval checks the pause between digests: 1 s after a change, 10 s without changes,
// 250 ms on request. No digest is sent before the end of the stream.
func TestDigestInterval(t *testing.T) {
	o := newOutboundFixture(t)
	putTable(t, o.tb, 1, 3, 1)
	o.step() // sends MapAccepted
	if len(o.digests()) != 1 {
		t.Fatal("end of the stream: got no digest, want one")
	}
	const second = time.Second
	due := func(what string, after time.Duration) {
		t.Helper()
		begun := o.now
		if o.now = begun.Add(after - 1); len(o.digests()) != 0 {
			t.Errorf("%s: got a digest before %s, want none", what, after)
		}
		if o.now = begun.Add(after); len(o.digests()) != 1 {
			t.Errorf("%s: got no digest or several after %s, want one", what, after)
		}
	}
	due("after the first digest", second) // its content has just changed
	due("no change", 10*second)
	due("still no change", 10*second)
	putTable(t, o.tb, 3, 4, 1)
	due("a change", second)
	due("after the change", second)
	due("no change since", 10*second)
	o.m.comparison.bucketsRequested.Store(true)
	due("buckets requested", second/4)
	due("after the buckets", second)
	o.m.comparison.digestNow.Store(true)
	due("digest due now", second/4)
	if o.m.comparison.digestNow.Load() || o.m.comparison.bucketsRequested.Load() {
		t.Error("digest sent: the requests for a digest remain, want none")
	}
	o.tb.Update(func(tx *table.Tx) { // a change of an orphaned record changes the digest, too
		tx.Remote(&table.Delta{Key: key(9), Value: value(9), Version: 9, Owner: tx.Intern(table.Owner{Node: "z", Incarnation: 1})}, 9, table.RemoteOptions{})
	})
	due("an orphaned record", second)
	due("after the orphaned record", second)
	due("no change at the end", 10*second)
}

// TestNoDigestBeforeEndOfStream checks that no digest is sent while records are left to send, or to
// an observer.
func TestNoDigestBeforeEndOfStream(t *testing.T) {
	o := newOutboundFixture(t)
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, 1, 2, 3)
	o.sendPending()
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	o.now = o.now.Add(time.Hour)
	o.step()
	for _, m := range o.takeSent() {
		if m.GetDigest() != nil {
			t.Error("backfill in progress: got a digest, want none")
		}
	}
	o.sendPending()
	if len(o.digests()) == 0 && !o.m.comparison.madeAt.Equal(o.now) {
		t.Error("backfill complete: got no digest, want one")
	}
	observer := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true })
	observer.sendPending()
	observer.now = observer.now.Add(time.Hour)
	if len(observer.digests()) != 0 {
		t.Error("observer: got a digest, want none")
	}
}

// TestPendingComparisonShortensIdleTime checks that an open request of the peer shortens the sleep
// of the sending goroutine.
func TestPendingComparisonShortensIdleTime(t *testing.T) {
	var w outboundComparison
	if w.pending() {
		t.Error("no request: got pending, want not pending")
	}
	for name, set := range map[string]func(*outboundComparison){
		"buckets": func(w *outboundComparison) { w.bucketsRequested.Store(true) },
		"digest":  func(w *outboundComparison) { w.digestNow.Store(true) },
		"repair":  func(w *outboundComparison) { w.resendRequest.Store(new(table.BucketSet)) },
	} {
		var w outboundComparison
		if set(&w); !w.pending() {
			t.Errorf("%s: got not pending, want pending", name)
		}
	}
}

// TestResendBuckets checks that all records in the requested buckets are sent, of all owners, in
// batches out of turn, followed by their number.
func TestResendBuckets(t *testing.T) {
	o := newOutboundFixture(t)
	const n = 3000
	putTable(t, o.tb, 0, n, 1)
	addAllOwners(&outboundFixture{t: t, tb: newTable(t, o.r.opt.Self, false)}) // no other records here
	o.addRemote(other, 5, n, n+1, n+2)
	o.sendPending()
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
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(set)}); err != nil {
		t.Fatalf("handle resend request: got error %v, want nil", err)
	}
	position, got, batches := o.m.sentPosition.Load(), 0, 0
	for o.m.comparison.resend == nil || o.m.comparison.resend.records == 0 {
		o.step()
	}
	for i := 4000; i < 4000+6*wire.MaxBatchDeltas; i++ { // in turn, at the same time
		var in bool
		o.tb.View(func(tx *table.Tx) { in = set.Has(tx.Bucket(key(i))) })
		if !in {
			putTable(t, o.tb, i, i+1, 1)
		}
	}
	sent := o.sendPending()
	for _, m := range sent {
		b := m.GetBatch()
		if b == nil {
			continue
		}
		if !b.GetResent() {
			position = b.GetPosition()
			continue
		}
		if b.GetPosition() != position || b.GetPreviousPosition() != position {
			t.Errorf("resent batch: got positions %d to %d at %d, want %d and %d",
				b.GetPreviousPosition(), b.GetPosition(), position, position, position)
		}
		got, batches = got+len(b.GetDeltas()), batches+1
	}
	if got != want || batches < 2 {
		t.Errorf("resent records: got %d in %d batches, want %d", got, batches, want)
	}
	end := sent[len(sent)-1].GetResent()
	if end.GetRecords() != uint64(want) || end.GetUnsent() != 0 || o.m.comparison.resendRequest.Load() != nil || o.m.comparison.resend != nil {
		t.Errorf("end of the resend: got %v, want %d records, none unsent, and no request or resend left", end, want)
	}
	if s := o.r.Stats(); s.Resends != 1 || s.ResentRecords != uint64(want) {
		t.Errorf("resends: got %d, %d records, want 1 and %d", s.Resends, s.ResentRecords, uint64(want))
	}
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(set)}); err != nil {
		t.Errorf("second resend request: got %v, want no error", err)
	}
}

// TestCompareRequestValidation sends requests about an unknown subscription and about one that observes.
func TestCompareRequestValidation(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true })
	for _, index := range []uint32{0, 1, 2} {
		if err := o.s.handleCompareRequest(&mapsyncv1.CompareRequest{Map: index}); !errors.Is(err, errProtocol) || o.m.comparison.bucketsRequested.Load() {
			t.Errorf("digest of subscription %d: got %v, want a protocol error", index, err)
		}
		err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: index, Buckets: wire.EncodeBucketSet(new(table.BucketSet))})
		if !errors.Is(err, errProtocol) || o.m.comparison.resendRequest.Load() != nil {
			t.Errorf("resend of subscription %d: got %v, want a protocol error", index, err)
		}
	}
}

// newPaddedFixture returns a node with entries that cannot be sent: the padding of their keys
// is not zero.
func newPaddedFixture(t *testing.T, s *schema.Schema, bad, good int) (o *outboundFixture) {
	t.Helper()
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	tb := newSizedTable(t, r.opt.Self, s.Key.Size, s.Value.Size, false)
	if err := r.AddMap(testMap, Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s}, tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	o = &outboundFixture{t: t, r: r, tb: tb, now: time.Now()}
	o.subscribe(func(m *mapsyncv1.MapSubscription) { m.Layout, m.Schema = nil, wire.SchemaToProto(s) })
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

// TestUnsentRecords checks that records which cannot be sent are counted, listed, left out of
// digests and reported at the end of a repair.
func TestUnsentRecords(t *testing.T) {
	o := newPaddedFixture(t, schematest.OldVersion(), 3, 2)
	o.now = o.now.Add(time.Hour)
	sent := o.sendPending()
	var m *mapsyncv1.Digest
	deltas := 0
	for _, s := range sent {
		for _, d := range s.GetBatch().GetDeltas() {
			if d.GetOperation() != mapsyncv1.Operation_OPERATION_UNSENT {
				deltas++
			}
		}
		if s.GetDigest() != nil {
			m = s.GetDigest()
		}
	}
	count, list := o.r.Unsent(testMap)
	if deltas != 2 || count != 3 || len(list) != 3 || o.r.Stats().DeltasUnencodable != 3 {
		t.Errorf("unencodable records: got %d sent, %d unsent, list %v, counted %d, want 2, 3, a list of 3, and 3",
			deltas, count, list, o.r.Stats().DeltasUnencodable)
	}
	for _, e := range list {
		if e.Key == "" || e.Reason == "" {
			t.Errorf("listed exception: got %+v, want key and reason", e)
		}
	}
	if n, l := o.r.Unsent("none"); n != 0 || l != nil {
		t.Errorf("unsent records of an unknown map: got %d, %v, want 0 and nil", n, l)
	}
	without := newPaddedFixture(t, schematest.OldVersion(), 0, 5)
	var all table.Digest
	without.tb.View(func(tx *table.Tx) { all = tx.Digest("b", nil) })
	if d := m.GetNodes()[0]; d.GetLive() != 2 || m.GetUnsent() != 3 || all.Live != 5 {
		t.Errorf("digest: got %d live, %d unsent, of a table with %d records, want 2, 3, 5", d.GetLive(), m.GetUnsent(), all.Live)
	}
	// The sum of the buckets is the total.
	o.m.comparison.bucketsRequested.Store(true)
	o.now = o.now.Add(time.Hour)
	nd, err := wire.NodeDigestFromProto(o.oneDigest("with buckets").GetNodes()[0])
	if err != nil {
		t.Fatalf("read node digest: got error %v, want nil", err)
	}
	var sum uint64
	for _, p := range nd.Buckets {
		sum += p
	}
	if sum != nd.Digest.Sum || sum == 0 {
		t.Error("buckets: got a sum that differs from the total or is 0, want the total")
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
			mine.VersionSum -= g.VersionSum
		}
	})
	if nd.Digest.Sum != mine.Sum-lacks || nd.Digest.VersionSum != mine.VersionSum {
		t.Error("digest: got another sum than that of the sent records, want equal sums")
	}
	all2 := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all2.Add(b)
	}
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(all2)}); err != nil {
		t.Fatalf("handle resend request: got error %v, want nil", err)
	}
	sent = o.sendPending()
	if end := sent[len(sent)-1].GetResent(); end.GetRecords() != 5 || end.GetUnsent() != 3 {
		t.Errorf("end of the resend: got %v, want 5 records, 3 of which are only named", end)
	}
	// Deleted entries do not count as unsent.
	o.tb.Update(func(tx *table.Tx) {
		for i := range 2 {
			k := flow(byte(i))
			k[7] = 1
			tx.Local(&table.Change{Key: k, Op: table.OpDelete, Time: time.Now().UnixNano()})
		}
	})
	o.now = o.now.Add(time.Hour)
	if o.sendPending(); fmt.Sprint(o.r.Unsent(testMap))[:1] != "1" {
		count, _ := o.r.Unsent(testMap)
		t.Errorf("unsent after two deletes: got %d, want 1", count)
	}
}

// requestResend has the peer request the records in some buckets.
func (o *outboundFixture) requestResend(set *table.BucketSet) {
	o.t.Helper()
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(set)}); err != nil {
		o.t.Fatalf("handle resend request: got error %v, want nil", err)
	}
}
