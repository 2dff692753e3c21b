package replicate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestProgressOfBatches checks which batches count as progress of requested records, and which as
// progress of a resend.
func TestProgressOfBatches(t *testing.T) {
	for _, test := range []struct {
		batch          wire.Batch
		owners, resend bool
	}{
		{wire.Batch{}, true, true},
		{wire.Batch{CaughtUp: true}, false, false},
		{wire.Batch{Requested: true}, true, true},
		{wire.Batch{Requested: true, CaughtUp: true}, true, true},
		{wire.Batch{Resent: true}, false, true},
		{wire.Batch{Resent: true, CaughtUp: true}, false, true},
	} {
		x := newInboundFixture(t)
		x.beginResend(nil)
		j, q, now := x.in.comparison.resend, &x.in.owners, time.Now().Add(time.Hour)
		x.in.handleMerged(&test.batch, mergeResult{}, now)
		if got := q.lastProgress.Equal(now); got != test.owners {
			t.Errorf("caught up %t, requested %t, resent %t: progress of requested records: got %t, want %t",
				test.batch.CaughtUp, test.batch.Requested, test.batch.Resent, got, test.owners)
		}
		if got := j.lastProgress.Equal(now); got != test.resend {
			t.Errorf("caught up %t, requested %t, resent %t: progress of a resend: got %t, want %t",
				test.batch.CaughtUp, test.batch.Requested, test.batch.Resent, got, test.resend)
		}
	}
}

// TestResumeAtOtherPosition has a peer resume a map at a position that this node did not request.
func TestResumeAtOtherPosition(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1))
	x.stream.markDown(errors.New("broken"))
	x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now())
	err := x.stream.handle(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
		Map: x.in.index, Generation: 1, Position: 20, Schema: x.in.m.wireSchema,
	}}}))
	if !errors.Is(err, errProtocol) || x.in.position != 10 {
		t.Errorf("resume at position 20: got error %v, position %d, want a protocol error and 10", err, x.in.position)
	}
}

// TestFullSyncEndsExceptions checks that the end of a full sync removes the exceptions that it did not
// contain.
func TestFullSyncEndsExceptions(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1))
	x.in.exceptions.add([]byte("k"), 5, x.stream.peer, errGap)
	x.stream.markDown(errors.New("broken"))
	x.in.repeatFullSyncAt = time.Now().Add(-time.Second)
	x.subscribe(1, true)
	if n := x.in.exceptions.count(); n != 1 {
		t.Errorf("exceptions during the full sync: got %d, want 1", n)
	}
	x.handle(stockBatch(x.in.index, 0, 10, 1))
	if n := x.in.exceptions.count(); n != 0 {
		t.Errorf("exceptions after the full sync: got %d, want 0", n)
	}
}

// TestSweptRecordsDelayAcknowledgement checks that the position at the end of a full sync is acknowledged
// once the deletes of its sweep are in the kernel map.
func TestSweptRecordsDelayAcknowledgement(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	x.stream.markDown(errors.New("broken"))
	x.in.repeatFullSyncAt = time.Now().Add(-time.Second)
	x.subscribe(1, true)
	m := stockBatch(x.in.index, 0, 20, 1)
	m.GetBatch().CaughtUp = false
	x.handle(m)
	x.writeAll()
	if p := x.newAck(); p != 20 {
		t.Fatalf("acknowledged position before the sweep: got %d, want 20", p)
	}
	x.handle(stockBatch(x.in.index, 20, 30)) // ends the full sync, without records
	wantLive(t, x.tb, 1)
	if p := x.newAck(); p != 0 {
		t.Errorf("acknowledged position before the deletes are written: got %d, want none", p)
	}
	x.writeAll()
	if p := x.newAck(); p != 30 {
		t.Errorf("acknowledged position after the deletes are written: got %d, want 30", p)
	}
}

// TestOwnRecordAboveLimitIsRequestedAgain checks that a full sync is repeated for a record of an earlier incarnation of this
// node that was above the limit of the table. A comparison brings those of other owners.
func TestOwnRecordAboveLimitIsRequestedAgain(t *testing.T) {
	for _, own := range []bool{true, false} {
		x := newInboundFixture(t)
		limitTable(x, table.Options{MaxLive: 2, MaxRecords: 100})
		m := stockBatch(x.in.index, 0, 10, 1, 2, 3)
		if own {
			m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: x.r.opt.Self.Node, Number: x.r.opt.Self.Incarnation - 1}
		}
		if err := x.stream.handle(mustMarshal(t, m)); err != nil {
			t.Fatalf("handle message: got error %v, want nil", err)
		}
		if limit := x.r.Rejected()["limit"]; limit != 1 {
			t.Errorf("own records %t: got %d above the limit, want 1", own, limit)
		}
		if again := !x.in.repeatFullSyncAt.IsZero(); again != own {
			t.Errorf("own records %t: full sync is repeated: got %t, want %t", own, again, own)
		}
	}
}

// TestRecordsOfFutureIncarnationsAreRequestedAgain checks that a full sync is repeated, at once after a step of the clock, for
// records whose owner has started in the future by the clock of this node.
func TestRecordsOfFutureIncarnationsAreRequestedAgain(t *testing.T) {
	// The incarnations of this node, b, and of the peer, x, do not depend on the clock any more.
	for node, again := range map[string]bool{"z": true, "x": false, "b": false} {
		x := newInboundFixture(t)
		now := time.Now()
		x.r.opt.Now = func() time.Time { return now }
		m := stockBatch(x.in.index, 0, 10, 1)
		m.GetBatch().Owners[0] = &mapsyncv1.Incarnation{Node: node, Number: uint64(now.Add(2 * x.r.opt.MaxClockAhead).UnixNano())}
		x.handle(m)
		if n := x.r.Rejected()["incarnation"]; n != 1 || x.in.repeatFullSyncAt.IsZero() == again {
			t.Errorf("record of an incarnation of %s in the future: got %d rejected, next full sync at %s, want one, and a time: %t",
				node, n, x.in.repeatFullSyncAt, again)
		}
		if x.stream.clockStepped(now); again && x.in.repeatFullSyncAt.After(now) {
			t.Errorf("after a step of the clock: got the next full sync at %s, want it due", x.in.repeatFullSyncAt)
		}
	}
}

// limitTable replaces the table by one with limits.
func limitTable(x *inboundFixture, o table.Options) {
	x.t.Helper()
	x.r.RemoveMap(testMap)
	o.Self, o.KeySize, o.ValueSize = x.r.opt.Self, testKeySize, testValueSize
	tb, err := table.New(o)
	if err != nil {
		x.t.Fatalf("new table: got error %v, want nil", err)
	}
	if err := x.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		x.t.Fatalf("add map: got error %v, want nil", err)
	}
	x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now())
	x.in = x.stream.maps[testMap]
	if err := x.in.accept(&mapsyncv1.MapAccepted{Map: x.in.index, Generation: 1, Reset_: true, Schema: x.in.m.wireSchema}); err != nil {
		x.t.Fatalf("accept map: got error %v, want nil", err)
	}
}

// TestRefusalsAfterRecordLimit checks that a record above the limit of the table is listed, and that a
// delete that finds no room in the same batch counts as refused.
func TestRefusalsAfterRecordLimit(t *testing.T) {
	x := newInboundFixture(t)
	limitTable(x, table.Options{MaxLive: 2, MaxRecords: 2})
	m := stockBatch(x.in.index, 0, 10, 1, 2, 3)
	m.GetBatch().Deltas = append(m.GetBatch().Deltas, wireRecord(4, nil, 5, 0))
	if err := x.stream.handle(mustMarshal(t, m)); err != nil {
		t.Fatalf("handle message: got error %v, want nil", err)
	}
	if limit, refused := x.r.Rejected()["limit"], x.r.Stats().DeltasRefused; limit != 1 || refused != 1 {
		t.Errorf("records: got %d above the limit, %d refused, want 1 and 1", limit, refused)
	}
	if got := fmt.Sprint(x.r.PeersAboveLimit(testMap)); got != "map[x:1]" {
		t.Errorf("peers above the limit: got %s, want map[x:1]", got)
	}
}
