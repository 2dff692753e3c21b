package replicate

import (
	"errors"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

var other = table.Owner{Node: "c", Incarnation: 9}

// TestCaughtUpIsSentOnce checks that the peer receives one batch marked as caught up. Positions
// without records for the peer are sent after a pause.
func TestCaughtUpIsSentOnce(t *testing.T) {
	o := newOutboundFixture(t)
	o.expectSent("empty table", "from 0, [] end, owners sent 1")
	if !o.m.upToDate.Load() || o.m.hasUnsentPosition() {
		t.Error("nothing left to send: got an unsent position, want none")
	}
	o.expectSent("no change", "")
	o.addRemote(other, 5, 1)
	o.expectSent("record of another node, before the pause", "")
	if !o.m.hasUnsentPosition() {
		t.Error("change of another owner: got no unsent position, want one")
	}
	o.now = o.now.Add(o.r.opt.positionInterval)
	o.expectSent("after the pause", "[] end")
	if o.m.hasUnsentPosition() || o.m.sentPosition.Load() != 1 {
		t.Errorf("sent position: got %d, want 1", o.m.sentPosition.Load())
	}
	o.expectSent("once", "")
	o.now = o.now.Add(time.Hour)
	o.expectSent("no change for long", "")
	o.tb.Update(func(tx *table.Tx) { // a record of the receiver: only the position advances
		tx.Remote(&table.Delta{Key: key(1), Value: value(2), Version: 9, Owner: tx.Intern(target)}, 9, table.RemoteOptions{})
	})
	o.expectSent("long after the last batch", "[] end")
	o.addRemote(other, 5, 2)
	o.expectSent("within the pause after the last batch", "")
}

// TestFullSyncInSeveralBatches sends more records than fit into a batch: each batch advances the
// position, only the last one is the end, and all are counted.
func TestFullSyncInSeveralBatches(t *testing.T) {
	for n, batches := range map[int]int{wire.MaxBatchDeltas: 1, wire.MaxBatchDeltas + 1: 2, 3 * wire.MaxBatchDeltas: 3} {
		o := newOutboundFixture(t)
		putTable(t, o.tb, 0, n, 1)
		o.s.lastSent = time.Time{}
		var position uint64
		count := 0
		for _, m := range o.sendPending() {
			b := m.GetBatch()
			if b == nil {
				continue
			}
			count++
			if b.GetPreviousPosition() != position || b.GetPosition() != position+uint64(len(b.GetDeltas())) {
				t.Errorf("batch: got positions %d to %d at %d, want %d to %d",
					b.GetPreviousPosition(), b.GetPosition(), position, position, position+uint64(len(b.GetDeltas())))
			}
			if position = b.GetPosition(); b.GetCaughtUp() != (position == uint64(n)) {
				t.Errorf("batch up to %d of %d: caught up: got %t, want %t", position, n, b.GetCaughtUp(), position == uint64(n))
			}
		}
		if count != batches {
			t.Errorf("%d records: got %d batches, want %d", n, count, batches)
		}
		mine, all := o.s.count.load(), o.r.Stats().Sent
		if mine != all || mine.Batches != uint64(batches) || mine.Deltas != uint64(n) || mine.Bytes < uint64(10*n) {
			t.Errorf("traffic: got %+v for the stream, %+v in total, want the same: %d batches, %d deltas, at least %d bytes",
				mine, all, batches, n, 10*n)
		}
		if o.s.lastSent.IsZero() {
			t.Error("lastSent: got zero, want the time of the last batch")
		}
	}
}

// TestSendAllUntilCaughtUp checks that a receiver with unadopted entries receives the records of
// all owners except its own, until the caught-up batch.
func TestSendAllUntilCaughtUp(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.SendAll = true })
	addAllOwners(o)
	o.expectSent("all", "from 0, [1 2 3 4 5] end, owners sent 1")
	o.addRemote(other, 7, 40)
	putTable(t, o.tb, 10, 11, 1)
	o.expectSent("after the end", "[10] end")
}

// TestOnlyOwnRecordsAreSent checks that a stream in several batches has only this node's records.
func TestOnlyOwnRecordsAreSent(t *testing.T) {
	o := newOutboundFixture(t)
	putTable(t, o.tb, 0, wire.MaxBatchDeltas+10, 1)
	o.addRemote(other, 5, 4000)
	ordinary, requested := keysIn(o.sendPending())
	if len(ordinary) != wire.MaxBatchDeltas+10 || len(requested) != 0 || slices.Contains(ordinary, 4000) {
		t.Errorf("records: got %d in turn, %d requested, want %d without key 4000, and none",
			len(ordinary), len(requested), wire.MaxBatchDeltas+10)
	}
}

// TestExpiryOperations checks that replicas receive expiries, and observers a delete.
func TestExpiryOperations(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*mapsyncv1.MapSubscription)
		want   mapsyncv1.Operation
	}{
		"replica":  {func(*mapsyncv1.MapSubscription) {}, mapsyncv1.Operation_OPERATION_EXPIRE},
		"observer": {func(m *mapsyncv1.MapSubscription) { m.Observe = true }, mapsyncv1.Operation_OPERATION_DELETE},
	} {
		o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true }, c.change)
		z := table.Owner{Node: "z", Incarnation: 1}
		o.addRemote(z, 5, 1)
		o.tb.Update(func(tx *table.Tx) {
			tx.Remote(&table.Delta{Key: key(1), Version: 5, Owner: tx.Intern(z), Delete: true, Expired: true}, 6, table.RemoteOptions{})
		})
		check := func(what string, sent []*mapsyncv1.SubscribeResponse) {
			t.Helper()
			var got mapsyncv1.Operation
			for _, m := range sent {
				for _, d := range m.GetBatch().GetDeltas() {
					got = d.GetOperation()
				}
			}
			if got != c.want {
				t.Errorf("%s: %s: sent %v, want %v", name, what, got, c.want)
			}
		}
		check("the stream", o.sendPending())
		if o.m.observe {
			continue
		}
		set := new(table.BucketSet)
		o.tb.View(func(tx *table.Tx) { set.Add(tx.Bucket(key(1))) })
		if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(set)}); err != nil {
			t.Fatalf("handle resend request: got error %v, want nil", err)
		}
		check("a repair", o.sendPending())
		o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true, Resend: true})
		check("a batch out of turn", o.sendPending())
	}
}

// TestClosedOutboundMap checks that a map stream that has ended does not wake the stream, is not
// served, and releases its cursors.
func TestClosedOutboundMap(t *testing.T) {
	o := newOutboundFixture(t)
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, 1, 2)
	o.sendPending()
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(new(table.BucketSet))}); err != nil {
		t.Fatalf("handle resend request: got error %v, want nil", err)
	}
	for o.m.owners.backfill == nil || o.m.comparison.resend == nil {
		o.step()
	}
	wasWoken(o.s.wake)
	o.s.closeMaps()
	putTable(t, o.tb, 50, 51, 1)
	if wasWoken(o.s.wake) {
		t.Error("change after the end: got woken, want not woken")
	}
	if o.m.serving.Load() || o.m.cursor != nil || o.m.owners.backfill != nil || o.m.comparison.resend != nil || len(o.s.maps) != 0 {
		t.Errorf("closed map: got serving %t, cursor %v, backfill and resend %v, %v, want false and none, and no maps of the stream",
			o.m.serving.Load(), o.m.cursor, o.m.owners.backfill, o.m.comparison.resend)
	}
	o.m.close()
}

// TestSendErrorEndsStream checks that an error of each kind of message ends the stream.
func TestSendErrorEndsStream(t *testing.T) {
	broken := errors.New("broken")
	z := table.Owner{Node: "z", Incarnation: 1}
	for name, until := range map[string]func(o *outboundFixture){
		"accepted": func(*outboundFixture) {},
		"batch":    func(o *outboundFixture) { o.step() },
		"another batch": func(o *outboundFixture) {
			o.sendPending()
			putTable(t, o.tb, 5, 6, 1)
		},
		"answer to a request": func(o *outboundFixture) { o.sendPending(); o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2}) },
		"batch out of turn": func(o *outboundFixture) {
			o.addRemote(z, 5, 1)
			o.sendPending()
			o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
			o.step()
		},
		"sources":  func(o *outboundFixture) { o.sendPending(); o.r.localMaps()[testMap].sources.Store(&[]string{"c"}) },
		"digest":   func(o *outboundFixture) { o.sendPending(); o.now = o.now.Add(time.Hour) },
		"end":      func(o *outboundFixture) { o.sendPending(); o.r.RemoveMap(testMap) },
		"repair":   func(o *outboundFixture) { repairAll(t, o); o.step() },
		"repaired": func(o *outboundFixture) { repairNone(t, o); o.step() },
	} {
		o := newOutboundFixture(t)
		until(o)
		o.err = broken
		if _, err := o.m.step(o.r.localMaps()[testMap], o.now); !errors.Is(err, broken) {
			t.Errorf("%s: step: got %v, want the error of Send", name, err)
		}
	}
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Schema = wire.SchemaToProto(schematest.OldVersion()) })
	o.err = broken
	if _, err := o.m.step(o.r.localMaps()[testMap], o.now); !errors.Is(err, broken) {
		t.Errorf("send a refusal: got %v, want the error of Send", err)
	}
}

// repairAll requests a resend of all buckets, and repairNone a resend of an empty set.
func repairAll(t *testing.T, o *outboundFixture) {
	t.Helper()
	putTable(t, o.tb, 1, 2, 1)
	o.sendPending()
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(all)}); err != nil {
		t.Fatalf("handle resend request: got error %v, want nil", err)
	}
}

func repairNone(t *testing.T, o *outboundFixture) {
	t.Helper()
	o.sendPending()
	if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(new(table.BucketSet))}); err != nil {
		t.Fatalf("handle resend request: got error %v, want nil", err)
	}
}

// TestReadFromRefusal checks that a node that read-from does not list is refused once.
func TestReadFromRefusal(t *testing.T) {
	o := newOutboundFixture(t)
	o.r.RemoveMap(testMap)
	o.r.opt.Access = func(string) Access { return Access{Read: matchOnly("y")} }
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	if err := o.r.AddMap(testMap, layout, o.tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	o.expectSent("refused", "Refused")
	o.expectSent("once", "")
}

// TestBatchOwners checks that a batch has each owner once, in the order of their first records.
func TestBatchOwners(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true; m.Owners = nil })
	y, z := table.Owner{Node: "y", Incarnation: 1}, table.Owner{Node: "z", Incarnation: 1}
	for k := range 6 {
		o.addRemote([]table.Owner{y, z}[k%2], 5, k)
	}
	for round := range 2 {
		b := &mapsyncv1.Batch{}
		for _, m := range o.sendPending() {
			if len(m.GetBatch().GetDeltas()) > 0 {
				b = m.GetBatch()
			}
		}
		if len(b.GetOwners()) != 2 || b.GetOwners()[0].GetNode() != "y" || b.GetOwners()[1].GetNode() != "z" || len(b.GetDeltas()) != 6 {
			t.Fatalf("round %d: got owners %v of %d records, want y and z of 6 records", round, b.GetOwners(), len(b.GetDeltas()))
		}
		for i, d := range b.GetDeltas() {
			if d.GetOwner() != uint32(i%2) {
				t.Errorf("round %d: record %d: got owner %d, want %d", round, i, d.GetOwner(), uint32(i%2))
			}
		}
		for k := range 6 {
			o.addRemote([]table.Owner{y, z}[k%2], 6, k)
		}
	}
}
