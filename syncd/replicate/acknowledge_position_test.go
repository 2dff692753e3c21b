package replicate

import (
	"errors"
	"testing"

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
