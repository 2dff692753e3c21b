package replicate

import (
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestAckAfterTableWriter checks that a position is acknowledged once the writer has passed it: the
// kernel map holds the entries, or has refused them.
func TestAckAfterTableWriter(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, _ := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	writer := tb.NewCursor(0)
	defer writer.Close()
	position := func() uint64 {
		acks := s.appendAcks(nil)
		if len(acks) == 0 {
			return 0
		}
		return acks[len(acks)-1].GetAck().GetPosition()
	}
	position() // of the start of the full sync
	for i, refusal := range []error{nil, errors.New("map full")} {
		from := uint64(10 * i)
		if err := s.handle(mustMarshal(t, stockBatch(1, from, from+10, 2*i+1, 2*i+2))); err != nil {
			t.Fatalf("handle message: got error %v, want nil", err)
		}
		var rec table.Record
		tb.View(func(tx *table.Tx) { tx.NextDirty(writer, &rec) })
		tb.Update(func(tx *table.Tx) { tx.Applied(rec.Ref, rec.Version, refusal); tx.SetApplied(writer.Position()) })
		if p := position(); p != 0 {
			t.Errorf("one of two entries written: got acknowledged position %d, want 0", p)
		}
		tb.View(func(tx *table.Tx) { tx.NextDirty(writer, &rec) })
		tb.Update(func(tx *table.Tx) { tx.Applied(rec.Ref, rec.Version, refusal); tx.SetApplied(writer.Position()) })
		if p := position(); p != from+10 {
			t.Errorf("all entries written: got acknowledged position %d, want %d", p, from+10)
		}
	}
}

// TestAcknowledgedPositionNeverDecreases has a peer repeat acknowledgements and acknowledge
// lower positions.
func TestAcknowledgedPositionNeverDecreases(t *testing.T) {
	r, _ := newTestReplicator(t)
	s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, nil)
	if err := s.subscribe(subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
		t.Fatalf("subscribe: got error %v, want nil", err)
	}
	out := s.maps[0]
	out.sentPosition.Store(20)
	for _, step := range []struct{ ack, want uint64 }{{5, 5}, {5, 5}, {3, 5}, {0, 5}, {20, 20}, {19, 20}} {
		if err := s.handleAck(&mapsyncv1.Ack{Map: 1, Position: step.ack}); err != nil {
			t.Fatalf("handle acknowledgement: got error %v, want nil", err)
		}
		if got := out.ackedPosition.Load(); got != step.want {
			t.Errorf("acknowledged position: got %d after acknowledgement of %d, want %d", got, step.ack, step.want)
		}
	}
	// The position of a peer that has not merged all deletes does not count for tombstones.
	out.serving.Store(true)
	out.peerReport.Store(readyReport)
	for unheld, want := range map[bool]uint64{true: 0, false: 20} {
		if err := s.handleAck(&mapsyncv1.Ack{Map: 1, Position: 20, Unheld: unheld}); err != nil {
			t.Fatalf("handle acknowledgement: got error %v, want nil", err)
		}
		if got, state := s.ackedPosition(r.localMaps()[testMap], time.Now()); got != want || state != ackServed {
			t.Errorf("acknowledged position, unheld %t: got %d, want %d", unheld, got, want)
		}
	}
	if err := s.handleAck(&mapsyncv1.Ack{Map: 1, Position: 21}); !errors.Is(err, errProtocol) {
		t.Errorf("acknowledge a position that was not sent: got %v, want a protocol error", err)
	}
}

// TestAckQueue pushes more positions than the queue holds, and removes them in steps.
func TestAckQueue(t *testing.T) {
	var q ackQueue
	for i := uint64(1); i <= 100; i++ {
		q.push(i, 10*i)
	}
	for _, step := range []struct {
		applied, position uint64
		ok                bool
	}{{5, 0, false}, {10, 1, true}, {10, 0, false}, {319, 31, true}, {999, 0, false}, {1000, 100, true}} {
		position, ok := q.pop(step.applied)
		if position != step.position || ok != step.ok {
			t.Errorf("applied %d: got position %d, %v, want %d and %v", step.applied, position, ok, step.position, step.ok)
		}
	}
	if q.n != 0 {
		t.Errorf("points left in the queue: got %d, want 0", q.n)
	}
}

// TestFilteredDeletesAreNotAcknowledged checks that a node reports that it has not merged a delete, until a full sync begins
// again, and that the sender keeps its tombstones until then. A record that was not merged needs no tombstone.
func TestFilteredDeletesAreNotAcknowledged(t *testing.T) {
	for op, unheld := range map[mapsyncv1.Operation]bool{
		mapsyncv1.Operation_OPERATION_DELETE: true,
		mapsyncv1.Operation_OPERATION_UPDATE: false,
	} {
		x := newInboundFixture(t)
		m := stockBatch(x.in.index, 0, 10, 1)
		d := m.GetBatch().Deltas[0]
		d.Version, d.Operation = uint64(time.Now().Add(2*x.r.opt.MaxClockAhead).UnixNano()), op
		if op == mapsyncv1.Operation_OPERATION_DELETE {
			d.Value = nil
		}
		if err := x.stream.handle(mustMarshal(t, m)); err != nil {
			t.Fatalf("handle a message: got error %v, want nil", err)
		}
		x.writeAll()
		acks := x.stream.appendAcks(nil)
		if len(acks) != 1 || acks[0].GetAck().GetUnheld() != unheld {
			t.Errorf("%v too far ahead: got acknowledgements %v, want one with unheld %t", op, acks, unheld)
		}
		if x.in.repeatFullSyncAt.IsZero() {
			t.Errorf("%v too far ahead: got no full sync that brings it again, want one", op)
		}
		x.in.beginFullSync(true, 0)
		if x.in.unheld.Load() {
			t.Errorf("%v too far ahead: got unheld after the begin of a full sync, want none", op)
		}
	}
}
