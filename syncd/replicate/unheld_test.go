package replicate

import (
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// ownRecord returns a batch with a record of an incarnation of this node, b.
func (x *inboundFixture) ownRecord(incarnation uint64) *mapsyncv1.SubscribeResponse {
	m := stockBatch(x.in.index, 0, 10, 1)
	m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: "b", Number: incarnation}
	return m
}

// TestFullSyncForUnheldRecords: a full sync is repeated for a record of this node that was filtered if it may bring the record,
// also after a resend.
func TestFullSyncForUnheldRecords(t *testing.T) {
	ahead := func(x *inboundFixture, m *mapsyncv1.SubscribeResponse) {
		m.GetBatch().Deltas[0].Version = uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	}
	for name, c := range map[string]struct {
		filter func(x *inboundFixture, m *mapsyncv1.SubscribeResponse)
		resent bool
		repeat bool
	}{
		"too far ahead":               {ahead, false, true},
		"too far ahead, in a resend":  {ahead, true, true},
		"an array without the index":  {func(x *inboundFixture, _ *mapsyncv1.SubscribeResponse) { x.in.m.layout.Elements = 1 }, false, false},
		"a later incarnation of this": {func(_ *inboundFixture, m *mapsyncv1.SubscribeResponse) { m.GetBatch().Owners[0].Number = 77 }, false, false},
	} {
		x := newInboundFixture(t)
		m := x.ownRecord(1)
		if c.resent {
			x.beginResend(nil)
			m = x.resentBatch(1)
			m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: "b", Number: 1}
		}
		c.filter(x, m)
		if err := x.stream.handle(mustMarshal(t, m)); err != nil {
			t.Fatalf("%s: handle a message: got error %v, want nil", name, err)
		}
		if repeat := !x.in.repeatFullSyncAt.IsZero(); !x.in.unheld.Load() || repeat != c.repeat {
			t.Errorf("%s: got unheld %t, a repeated full sync %t, want true and %t", name, x.in.unheld.Load(), repeat, c.repeat)
		}
	}
}

// TestUnheldIsReportedAtOnce: a node reports that it has filtered a delete, and that a full sync has begun that brings it, also
// without another position.
func TestUnheldIsReportedAtOnce(t *testing.T) {
	x := newInboundFixture(t)
	x.in.owners.permit = &permit{peer: "x", orphaned: true}
	x.handle(stockBatch(x.in.index, 0, 10, 1))
	x.writeAll()
	if p := x.newAck(); p != 10 {
		t.Fatalf("acknowledged position: got %d, want 10", p)
	}
	m := stockBatch(x.in.index, 10, 10, 2)
	b := m.GetBatch()
	b.Requested, b.CaughtUp = true, false
	b.Owners[0] = &mapsyncv1.Incarnation{Node: "gone", Number: 1}
	b.Deltas[0].Value, b.Deltas[0].Operation = nil, mapsyncv1.Operation_OPERATION_DELETE
	b.Deltas[0].Version = uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	if err := x.stream.handle(mustMarshal(t, m)); err != nil {
		t.Fatalf("handle a message: got error %v, want nil", err)
	}
	for _, unheld := range []bool{true, false} {
		x.in.unheld.Store(unheld)
		acks := x.stream.appendAcks(nil)
		if len(acks) != 1 || acks[0].GetAck().GetUnheld() != unheld || acks[0].GetAck().GetPosition() != 10 {
			t.Errorf("acknowledgements: got %v, want one of position 10 with unheld %t", acks, unheld)
		}
		if acks := x.stream.appendAcks(nil); len(acks) != 0 {
			t.Errorf("acknowledgements without a change: got %v, want none", acks)
		}
	}
}

// TestUnheldPeersHoldTombstones: the tombstones of a node wait for a peer that lacks deletes, for their lifetime at most, although
// full syncs interrupt the reports of the peer.
func TestUnheldPeersHoldTombstones(t *testing.T) {
	const ttl = 15 * time.Minute
	var u unheldPeers
	now := time.Now()
	for i, step := range []struct {
		after time.Duration
		hold  bool
	}{{0, true}, {ttl - 1, true}, {1, false}, {ttl, false}, {ttl + 1, true}, {ttl, false}} {
		now = now.Add(step.after)
		u.note("x", now, ttl)
		if got := u.hold("x", now, ttl); got != step.hold {
			t.Errorf("report %d: tombstones wait: got %t, want %t", i, got, step.hold)
		}
	}
}

// TestUnheldOverflowIsForgotten: the names of unheld keys are complete again once a full sync of each live peer has ended without
// records of this node that were filtered or named.
func TestUnheldOverflowIsForgotten(t *testing.T) {
	x := newInboundFixture(t)
	overflow := func() (some bool) {
		x.r.acknowledge(time.Now())
		x.tb.View(func(tx *table.Tx) { some = tx.UnheldOverflow() })
		return some
	}
	batch := func(position uint64, op mapsyncv1.Operation) *mapsyncv1.SubscribeResponse {
		m := stockBatch(x.in.index, position, position+10)
		m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: "b", Number: 1}
		for k := range 400 {
			d := wireRecord(int(position)*400+k, value(1), 5, 0)
			if d.Operation = op; op != mapsyncv1.Operation_OPERATION_UPDATE {
				d.Value = nil
			}
			m.GetBatch().Deltas = append(m.GetBatch().Deltas, d)
		}
		return m
	}
	for i := range uint64(3) {
		x.handle(batch(10*i, mapsyncv1.Operation_OPERATION_UNSENT))
	}
	if !overflow() || x.in.repeatFullSyncAt.IsZero() {
		t.Fatalf("1200 named keys: got overflow %t, full sync at %s, want true and a time", overflow(), x.in.repeatFullSyncAt)
	}
	x.in.repeatFullSyncAt = time.Now().Add(-time.Second)
	x.subscribe(1, true)
	m := batch(0, mapsyncv1.Operation_OPERATION_UPDATE)
	m.GetBatch().CaughtUp = false
	if x.handle(m); !overflow() {
		t.Error("during the full sync: got no overflow, want it")
	}
	y := Peer{Node: "y", Incarnation: 1, Addr: "127.0.0.1:2"}
	x.r.SetPeers([]Peer{x.stream.currentPeer(), y})
	if x.handle(stockBatch(x.in.index, 10, 20)); !overflow() {
		t.Error("another live peer has sent nothing: got no overflow, want it")
	}
	x.r.inboundStreams["y"].maps[testMap] = &inboundMap{m: x.in.m, state: StatePending}
	if !overflow() {
		t.Error("the kernel map has yet to be written: got no overflow, want it")
	}
	if x.writeAll(); overflow() {
		t.Error("after the full sync: got overflow, want none")
	}
}
