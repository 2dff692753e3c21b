package replicate

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// The tests of this file cover lines whose change no other test found: make mutate.

// receive has a link take a batch of the keys, at the end of a full sync or amid it.
func receive(t *testing.T, l *link, from, to uint64, end bool, keys ...int) {
	t.Helper()
	m := stockBatch(1, from, to, keys...)
	m.GetBatch().CaughtUp = end
	if err := l.take(mustMarshal(t, m)); err != nil {
		t.Fatal(err)
	}
}

// startAgain asks for the map again, and has the peer begin a full sync of the same map.
func startAgain(t *testing.T, in *intake) {
	t.Helper()
	in.asked = in.m.head() + 1
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Reset_: true, Schema: in.m.wire}); err != nil {
		t.Fatal(err)
	}
}

func wantLive(t *testing.T, tb *table.Table, keys ...int) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(live(tb))); !slices.Equal(got, keys) {
		t.Errorf("live keys %v, want %v", got, keys)
	}
}

// The position is lost in the middle of the first full sync, and meanwhile the peer has
// deleted a key and forgotten that. The next full sync deletes it here.
func TestPositionLostAmidAFullSync(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	receive(t, l, 0, 10, false, 1, 2)
	startAgain(t, in)
	receive(t, l, 0, 20, false, 2)
	wantLive(t, tb, 1, 2)
	receive(t, l, 20, 30, true, 3)
	wantLive(t, tb, 2, 3)
}

// A full sync that deletes what it does not meet starts again before it has received
// anything: it still has to delete.
func TestSweepingSyncThatRestarts(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	receive(t, l, 0, 10, true, 1, 2)
	startAgain(t, in)
	startAgain(t, in)
	receive(t, l, 0, 20, true, 2)
	wantLive(t, tb, 2)
	// Once it is over, it is: what the peer no longer sends is kept.
	receive(t, l, 20, 30, true, 3)
	wantLive(t, tb, 2, 3)
}

// A full sync of another map deletes nothing.
func TestFullSyncOfAnotherMapDeletesNothing(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	receive(t, l, 0, 10, true, 1, 2)
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 2, Reset_: true, Schema: in.m.wire}); err != nil {
		t.Fatal(err)
	}
	receive(t, l, 0, 20, true, 2)
	wantLive(t, tb, 1, 2)
}

// What digests agreed on over one stream proves nothing on the next.
func TestAgreementEndsWithTheStream(t *testing.T) {
	r, _ := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	receive(t, l, 0, 10, true, 1)
	before := time.Now()
	in.agree(10, before.Add(time.Second))
	if in.awaitsAgreement(before) {
		t.Error("digests agreed, and more is awaited")
	}
	if !in.awaitsAgreement(before.Add(2 * time.Second)) {
		t.Error("digests agreed before the time since which they have to")
	}
	in.reset()
	if !in.awaitsAgreement(before) {
		t.Error("the stream ended, and nothing is awaited")
	}
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Position: 10, Schema: in.m.wire}); err != nil {
		t.Fatal(err)
	}
	if !in.awaitsAgreement(before) {
		t.Error("agreement of an earlier stream counts on a resumed one")
	}
	in.agree(10, before.Add(time.Second))
	if in.awaitsAgreement(before) {
		t.Error("digests agreed on the resumed stream, and more is awaited")
	}
	startAgain(t, in)
	if !in.awaitsAgreement(before) {
		t.Error("agreement counts in a full sync that began later")
	}
}

// What a repair deletes is acknowledged once the kernel map lacks it, and not before: also
// with the position that the peer knows already.
func TestRepairIsAcknowledgedOnceWritten(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	receive(t, l, 0, 10, true, 1, 2)
	writer := tb.NewCursor(0)
	defer writer.Close()
	write(tb, writer)
	acked := func() (position uint64) {
		for _, a := range l.acks(nil) {
			position = a.GetAck().GetPosition()
		}
		return position
	}
	if p := acked(); p != 10 {
		t.Fatalf("acknowledged %d, want 10", p)
	}
	all := new(table.BucketSet)
	for i := range table.DigestBuckets {
		all.Add(i)
	}
	j := &job{in: all, before: in.m.head() + 1}
	in.comparing.job = j
	if err := l.takeRetold(&mapsyncv1.Retold{Map: 1}); err != nil {
		t.Fatal(err)
	}
	wantLive(t, tb)
	if j.found != 2 || in.comparing.job != nil || !in.comparing.ask || in.comparing.agreed {
		t.Errorf("%+v, %+v", j, in.comparing)
	}
	receive(t, l, 10, 10, true)
	if n := len(l.acks(nil)); n != 0 {
		t.Errorf("%d acknowledgements before the deletes are written", n)
	}
	if in.head != j.head || j.head == 0 {
		t.Errorf("head %d, want %d", in.head, j.head)
	}
}

// A restart of the walk while the table's writer is behind must not acknowledge too early:
// what was merged before is on its way still.
func TestResumeWaitsForWhatWasMergedBefore(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	receive(t, l, 0, 10, true, 1, 2)
	in.pending.n = 0 // the stream has ended, and its acknowledgements with it
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Position: 10, Schema: in.m.wire}); err != nil {
		t.Fatal(err)
	}
	if acks := l.acks(nil); len(acks) != 0 {
		t.Fatalf("acknowledged %v before anything is written", acks)
	}
	writer := tb.NewCursor(0)
	defer writer.Close()
	write(tb, writer)
	if acks := l.acks(nil); len(acks) != 1 || acks[0].GetAck().GetPosition() != 10 {
		t.Errorf("acknowledged %v, want 10", acks)
	}
}

// Failures double the pause before the next attempt, up to half a minute, until something
// is received.
func TestBackoffOfAFailedMap(t *testing.T) {
	r, _ := newReceiver(t)
	r.opt.MinBackoff = time.Second
	_, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	now := time.Now()
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		in.fail(errGap, now)
		if got := in.retry.Sub(now); got != want*time.Second {
			t.Errorf("pause %s, want %s", got, want*time.Second)
		}
	}
	in.merged(&batch{}, merged{}, now)
	in.fail(errGap, now)
	if got := in.retry.Sub(now); got != time.Second {
		t.Errorf("pause %s after a batch, want 1s", got)
	}
}

// A full queue keeps its oldest positions, and the latest stands for those it replaced.
func TestAckQueueStandsForAllWhenFull(t *testing.T) {
	var q ackQueue
	for i := range uint64(100) {
		q.push(i+1, 10*(i+1))
	}
	if p, ok := q.pop(309); !ok || p != 30 {
		t.Errorf("popped %d, %v, want 30", p, ok)
	}
	if p, ok := q.pop(999); !ok || p != 31 {
		t.Errorf("popped %d, %v, want 31", p, ok)
	}
	if _, ok := q.pop(999); ok {
		t.Error("popped a position whose records are not written")
	}
	if p, ok := q.pop(1000); !ok || p != 100 {
		t.Errorf("popped %d, %v, want 100", p, ok)
	}
}

// Records that are refused make for another full sync, later each time, until one brings
// everything.
func TestRefusedRecordsDelayTheNextFullSync(t *testing.T) {
	r, _ := newReceiver(t)
	r.opt.RewalkDelay = time.Second
	_, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	now := time.Now()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
		in.rewalk = time.Time{} // the full sync that was due has begun
		in.merged(&batch{}, merged{refused: 1}, now)
		if got := in.rewalk.Sub(now); got != want*time.Second || in.err == nil {
			t.Errorf("full sync %d: after %s, want %s; %v", i, got, want*time.Second, in.err)
		}
		in.merged(&batch{caughtUp: true}, merged{ahead: 1}, now.Add(time.Hour))
		if got := in.rewalk.Sub(now); got != want*time.Second {
			t.Errorf("full sync %d: postponed to %s", i, got)
		}
	}
	if in.rewalkDue(now) || !in.rewalkDue(now.Add(17*time.Second)) {
		t.Error("the full sync is due at the wrong time")
	}
	in.rewalk = time.Time{}
	in.merged(&batch{caughtUp: true}, merged{accepted: 1}, now)
	in.merged(&batch{}, merged{refused: 1}, now)
	if got := in.rewalk.Sub(now); got != time.Second {
		t.Errorf("after a full sync that brought everything: %s, want 1s", got)
	}
}

// A sample of the peer's clock counts if it is the better one, or if it contradicts.
func TestSamplesOfAClock(t *testing.T) {
	const ms = time.Millisecond
	begun := time.Now()
	for name, test := range map[string]struct {
		offset, roundTrip time.Duration
		want              time.Duration // the offset after it
	}{
		"better":            {103 * ms, 6 * ms, 103 * ms},
		"as good":           {103 * ms, 10 * ms, 103 * ms},
		"worse":             {103 * ms, 20 * ms, 100 * ms},
		"worse, just apart": {115 * ms, 20 * ms, 100 * ms},
		"contradicts":       {116 * ms, 20 * ms, 116 * ms},
		"contradicts below": {84 * ms, 20 * ms, 84 * ms},
	} {
		var c peerClock
		c.sample(100*ms, 10*ms, begun)
		c.sample(test.offset, test.roundTrip, begun)
		if c.offset != test.want {
			t.Errorf("%s: offset %s, want %s", name, c.offset, test.want)
		}
	}
}

// A message without content, or of a kind that this version does not have, ends the stream.
func TestEmptyMessage(t *testing.T) {
	r, _ := newReceiver(t)
	l, _ := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	if err := l.take(nil); !errors.Is(err, errProtocol) {
		t.Errorf("got %v", err)
	}
	if err := l.take(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}})); err != nil {
		t.Errorf("heartbeat: %v", err)
	}
}

// Repairs that leave something pause ever longer. After one that leaves nothing, what differs next
// is repaired soon.
func TestRepairAfterASuccessfulOne(t *testing.T) {
	r, _ := newReceiver(t)
	r.opt.compare = time.Second
	_, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	now := time.Now()
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		in.endJob(&job{left: 1}, now)
		if got := in.comparing.retry.Sub(now); got != want*time.Second {
			t.Errorf("next repair after %s, want %s", got, want*time.Second)
		}
	}
	in.endJob(&job{found: 7}, now)
	if got := in.comparing.retry.Sub(now); got != time.Second {
		t.Errorf("next repair %s after a successful one, want 1s", got)
	}
	in.endJob(&job{left: 1}, now)
	if got := in.comparing.retry.Sub(now); got != time.Second {
		t.Errorf("next repair %s after the first that left something, want 1s", got)
	}
}
