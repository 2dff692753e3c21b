package replicate

import (
	"errors"
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// What was received is acknowledged once the writer has been through with it: when the
// kernel map holds it, or has refused it, and not before.
func TestAcknowledgedOnceWritten(t *testing.T) {
	r, tb := newReceiver(t)
	l, _ := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	writer := tb.NewCursor(0)
	defer writer.Close()
	position := func() uint64 {
		acks := l.acks(nil)
		if len(acks) == 0 {
			return 0
		}
		return acks[len(acks)-1].GetAck().GetPosition()
	}
	position() // of the walk's beginning
	for i, refusal := range []error{nil, errors.New("map full")} {
		from := uint64(10 * i)
		if err := l.take(mustMarshal(t, stockBatch(1, from, from+10, 2*i+1, 2*i+2))); err != nil {
			t.Fatal(err)
		}
		var rec table.Record
		tb.View(func(tx *table.Tx) { tx.NextDirty(writer, &rec) })
		tb.Update(func(tx *table.Tx) { tx.Applied(rec.Ref, rec.Version, refusal); tx.SetApplied(writer.Position()) })
		if p := position(); p != 0 {
			t.Errorf("position %d is acknowledged when one of two entries is written", p)
		}
		tb.View(func(tx *table.Tx) { tx.NextDirty(writer, &rec) })
		tb.Update(func(tx *table.Tx) { tx.Applied(rec.Ref, rec.Version, refusal); tx.SetApplied(writer.Position()) })
		if p := position(); p != from+10 {
			t.Errorf("position %d is acknowledged when all is written, expected %d", p, from+10)
		}
	}
}

// TestAcknowledgedPositionNeverDecreases has a peer repeat acknowledgements, and go back.
func TestAcknowledgedPositionNeverDecreases(t *testing.T) {
	r, _ := newReceiver(t)
	s := newSession(r, table.Owner{Node: "x", Incarnation: 1}, nil)
	if err := s.subscribe(subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
		t.Fatal(err)
	}
	f := s.feeds[0]
	f.sent.Store(20)
	for _, step := range []struct{ ack, want uint64 }{{5, 5}, {5, 5}, {3, 5}, {0, 5}, {20, 20}, {19, 20}} {
		if err := s.acknowledge(&mapsyncv1.Ack{Map: 1, Position: step.ack}); err != nil {
			t.Fatal(err)
		}
		if got := f.acked.Load(); got != step.want {
			t.Errorf("acknowledged %d after %d, expected %d", got, step.ack, step.want)
		}
	}
	if err := s.acknowledge(&mapsyncv1.Ack{Map: 1, Position: 21}); !errors.Is(err, errProtocol) {
		t.Errorf("acknowledgement of a position that was not sent: %v", err)
	}
}
