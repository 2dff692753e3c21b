package replicate

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// The tests of this file cover lines that no other test covers: see make mutate.

// receiveBatch has a stream receive a batch of keys, in the middle or at the end of a full sync.
func receiveBatch(t *testing.T, s *inboundStream, from, to uint64, end bool, keys ...int) {
	t.Helper()
	m := stockBatch(1, from, to, keys...)
	m.GetBatch().CaughtUp = end
	if err := s.handle(mustMarshal(t, m)); err != nil {
		t.Fatalf("handle message: got error %v, want nil", err)
	}
}

// restartFullSync subscribes to the map again, and has the peer begin a full sync of the same map.
func restartFullSync(t *testing.T, in *inboundMap) {
	t.Helper()
	in.nextSweepBefore = in.m.head() + 1
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Reset_: true, Schema: in.m.wireSchema}); err != nil {
		t.Fatalf("accept map: got error %v, want nil", err)
	}
}

func wantLive(t *testing.T, tb *table.Table, keys ...int) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(live(tb))); !slices.Equal(got, keys) {
		t.Errorf("live keys: got %v, want %v", got, keys)
	}
}

// TestSweepAfterPositionLost loses the position in the middle of the first full sync, while the
// peer has deleted a key and forgotten its tombstone. The next full sync deletes the key.
func TestSweepAfterPositionLost(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	receiveBatch(t, s, 0, 10, false, 1, 2)
	restartFullSync(t, in)
	receiveBatch(t, s, 0, 20, false, 2)
	wantLive(t, tb, 1, 2)
	receiveBatch(t, s, 20, 30, true, 3)
	wantLive(t, tb, 2, 3)
}

// TestRestartedFullSyncSweeps restarts a full sync with a sweep before it has received a batch. The
// restarted full sync sweeps, too.
func TestRestartedFullSyncSweeps(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	receiveBatch(t, s, 0, 10, true, 1, 2)
	restartFullSync(t, in)
	restartFullSync(t, in)
	receiveBatch(t, s, 0, 20, true, 2)
	wantLive(t, tb, 2)
	// After the full sync, records that the peer does not resend are kept.
	receiveBatch(t, s, 20, 30, true, 3)
	wantLive(t, tb, 2, 3)
}

// TestFullSyncOfReplacedMapSweepsNothing checks that a full sync of another map deletes nothing.
func TestFullSyncOfReplacedMapSweepsNothing(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	receiveBatch(t, s, 0, 10, true, 1, 2)
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 2, Reset_: true, Schema: in.m.wireSchema}); err != nil {
		t.Fatalf("accept map: got error %v, want nil", err)
	}
	receiveBatch(t, s, 0, 20, true, 2)
	wantLive(t, tb, 1, 2)
}

// TestInSyncEndsWithStream checks that an agreement of one stream does not count for the next.
func TestInSyncEndsWithStream(t *testing.T) {
	r, _ := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	receiveBatch(t, s, 0, 10, true, 1)
	before := time.Now()
	in.noteInSync(10, before.Add(time.Second))
	if in.awaitsInSync(before) {
		t.Error("digests agreed: got awaited, want in sync")
	}
	if !in.awaitsInSync(before.Add(2 * time.Second)) {
		t.Error("digests agreed before the required time: got in sync, want awaited")
	}
	in.reset()
	if !in.awaitsInSync(before) {
		t.Error("stream ended: got in sync, want awaited")
	}
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Position: 10, Schema: in.m.wireSchema}); err != nil {
		t.Fatalf("accept map: got error %v, want nil", err)
	}
	if !in.awaitsInSync(before) {
		t.Error("stream resumed: got in sync by an earlier agreement, want awaited")
	}
	in.noteInSync(10, before.Add(time.Second))
	if in.awaitsInSync(before) {
		t.Error("digests agreed on the resumed stream: got awaited, want in sync")
	}
	restartFullSync(t, in)
	if !in.awaitsInSync(before) {
		t.Error("full sync after the agreement: got in sync, want awaited")
	}
}

// TestRepairIsAcknowledgedAfterWrite checks that the deletes of a repair are acknowledged once they
// are written, also if the position was acknowledged before.
func TestRepairIsAcknowledgedAfterWrite(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	receiveBatch(t, s, 0, 10, true, 1, 2)
	writer := tb.NewCursor(0)
	defer writer.Close()
	write(tb, writer)
	acked := func() (position uint64) {
		for _, a := range s.appendAcks(nil) {
			position = a.GetAck().GetPosition()
		}
		return position
	}
	if p := acked(); p != 10 {
		t.Fatalf("acknowledged position: got %d, want 10", p)
	}
	all := new(table.BucketSet)
	for i := range table.DigestBuckets {
		all.Add(i)
	}
	j := &inboundResend{buckets: all, digestKey: tb.DigestID(), firstPosition: in.m.head() + 1}
	in.comparison.resend = j
	if err := s.handleResent(&mapsyncv1.Resent{Map: 1}); err != nil {
		t.Fatalf("handle end of the resend: got error %v, want nil", err)
	}
	wantLive(t, tb)
	if j.repaired != 2 || in.comparison.resend != nil || !in.comparison.requestBuckets || in.comparison.inSync {
		t.Errorf("end of the repair: got %+v, %+v, want 2 repaired, no resend, buckets requested, not in sync", j, in.comparison)
	}
	receiveBatch(t, s, 10, 10, true)
	if n := len(s.appendAcks(nil)); n != 0 {
		t.Errorf("acknowledgements before the deletes are written: got %d, want 0", n)
	}
	if in.tableHead != j.tableHead || j.tableHead == 0 {
		t.Errorf("table head: got %d, want %d", in.tableHead, j.tableHead)
	}
}

// TestAckAfterResumeWaitsForWriter resumes a stream before the table's writer has written the
// merged changes. They are acknowledged once written.
func TestAckAfterResumeWaitsForWriter(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	receiveBatch(t, s, 0, 10, true, 1, 2)
	in.pendingAcks.n = 0 // the stream has ended with its acknowledgements
	if err := in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Position: 10, Schema: in.m.wireSchema}); err != nil {
		t.Fatalf("accept map: got error %v, want nil", err)
	}
	if acks := s.appendAcks(nil); len(acks) != 0 {
		t.Fatalf("acknowledgements before the write: got %v, want none", acks)
	}
	writer := tb.NewCursor(0)
	defer writer.Close()
	write(tb, writer)
	if acks := s.appendAcks(nil); len(acks) != 1 || acks[0].GetAck().GetPosition() != 10 {
		t.Errorf("acknowledgements after the write: got %v, want 10", acks)
	}
}

// TestBackoffOfAFailedMap checks that failures double the pause before the next attempt, up to 30
// s, until a batch is received from a peer that has served the map for longer.
func TestBackoffOfAFailedMap(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.opt.MinBackoff = time.Second
	_, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	now := time.Now()
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		in.fail(errGap, now)
		if got := in.retryAt.Sub(now); got != want*time.Second {
			t.Errorf("pause: got %s, want %s", got, want*time.Second)
		}
	}
	for served, want := range map[time.Duration]time.Duration{maxSubscribePause: maxSubscribePause, maxSubscribePause + 1: time.Second} {
		in.acceptedAt, in.backoff = now.Add(-served), maxSubscribePause
		in.handleMerged(&wire.Batch{}, mergeResult{}, now)
		in.fail(errGap, now)
		if got := in.retryAt.Sub(now); got != want {
			t.Errorf("pause after a batch, served for %s: got %s, want %s", served, got, want)
		}
	}
}

// TestFullAckQueue checks that a full queue keeps its oldest positions, and that the newest one
// replaces the one before.
func TestFullAckQueue(t *testing.T) {
	var q ackQueue
	for i := range uint64(100) {
		q.push(i+1, 10*(i+1))
	}
	if p, ok := q.pop(309); !ok || p != 30 {
		t.Errorf("pop: got %d, %v, want 30", p, ok)
	}
	if p, ok := q.pop(999); !ok || p != 31 {
		t.Errorf("pop: got %d, %v, want 31", p, ok)
	}
	if _, ok := q.pop(999); ok {
		t.Error("pop before the records are written: got a position, want none")
	}
	if p, ok := q.pop(1000); !ok || p != 100 {
		t.Errorf("pop: got %d, %v, want 100", p, ok)
	}
}

// TestRepeatedFullSyncBackoff checks that refused records schedule another full sync after a
// growing delay, until a full sync has no refused records.
func TestRepeatedFullSyncBackoff(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.opt.RepeatFullSyncDelay = time.Second
	_, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	now := time.Now()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
		in.repeatFullSyncAt = time.Time{} // the scheduled full sync has begun
		in.handleMerged(&wire.Batch{}, mergeResult{refused: 1}, now)
		if got := in.repeatFullSyncAt.Sub(now); got != want*time.Second || in.err == nil {
			t.Errorf("full sync %d: got after %s, want %s; error %v", i, got, want*time.Second, in.err)
		}
		in.handleMerged(&wire.Batch{CaughtUp: true}, mergeResult{ahead: 1}, now.Add(time.Hour))
		if got := in.repeatFullSyncAt.Sub(now); got != want*time.Second {
			t.Errorf("full sync %d: got postponed to %s, want %s", i, got, want*time.Second)
		}
	}
	if in.repeatFullSyncDue(now) || !in.repeatFullSyncDue(now.Add(17*time.Second)) {
		t.Error("full sync: got due at another time, want after 16s")
	}
	in.repeatFullSyncAt = time.Time{}
	in.handleMerged(&wire.Batch{CaughtUp: true}, mergeResult{accepted: 1}, now)
	in.handleMerged(&wire.Batch{}, mergeResult{refused: 1}, now)
	if got := in.repeatFullSyncAt.Sub(now); got != time.Second {
		t.Errorf("full sync after one without refusals: got after %s, want 1s", got)
	}
}

// TestClockSampleSelection checks that a clock sample is stored if it is better or contradicts the
// current one.
func TestClockSampleSelection(t *testing.T) {
	const ms = time.Millisecond
	begun := time.Now()
	for name, test := range map[string]struct {
		offset, roundTrip time.Duration
		want              time.Duration // offset after the sample
	}{
		"better":              {103 * ms, 6 * ms, 103 * ms},
		"equally good":        {103 * ms, 10 * ms, 103 * ms},
		"worse":               {103 * ms, 20 * ms, 100 * ms},
		"worse, at the bound": {115 * ms, 20 * ms, 100 * ms},
		"contradicts":         {116 * ms, 20 * ms, 116 * ms},
		"contradicts, below":  {84 * ms, 20 * ms, 84 * ms},
	} {
		var c peerClock
		c.addSample(100*ms, 10*ms, begun)
		c.addSample(test.offset, test.roundTrip, begun)
		if c.offset != test.want {
			t.Errorf("%s: offset: got %s, want %s", name, c.offset, test.want)
		}
	}
}

// TestEmptyMessage checks that a message without content, or of an unknown kind, ends the stream.
func TestEmptyMessage(t *testing.T) {
	r, _ := newTestReplicator(t)
	s, _ := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	if err := s.handle(nil); !errors.Is(err, errProtocol) {
		t.Errorf("handle an empty message: got %v, want a protocol error", err)
	}
	if err := s.handle(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}})); err != nil {
		t.Errorf("handle a heartbeat: got %v, want no error", err)
	}
}

// TestRepairBackoffReset checks that repairs with remaining differences are followed by growing
// pauses, and that a successful repair resets the pause.
func TestRepairBackoffReset(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.opt.digestInterval = time.Second
	_, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	now := time.Now()
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		in.endResend(&inboundResend{unrepaired: 1}, now)
		if got := in.comparison.repairAfter.Sub(now); got != want*time.Second {
			t.Errorf("next repair: got after %s, want %s", got, want*time.Second)
		}
	}
	in.endResend(&inboundResend{repaired: 7}, now)
	if got := in.comparison.repairAfter.Sub(now); got != time.Second {
		t.Errorf("next repair after a successful one: got after %s, want 1s", got)
	}
	in.endResend(&inboundResend{unrepaired: 1}, now)
	if got := in.comparison.repairAfter.Sub(now); got != time.Second {
		t.Errorf("next repair after the first with remaining differences: got after %s, want 1s", got)
	}
}

// TestSweepKeepsRecordsThatThePeerMayLack repeats a full sync that broke. The peer has restarted, and holds
// the record of its earlier incarnation only if it has acknowledged it.
func TestSweepKeepsRecordsThatThePeerMayLack(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *outboundStream, out *outboundMap)
		swept  bool
	}{
		"acknowledged":                           {func(*outboundStream, *outboundMap) {}, true},
		"not acknowledged":                       {func(_ *outboundStream, out *outboundMap) { out.ackedPosition.Store(0) }, false},
		"acknowledged by an earlier incarnation": {func(s *outboundStream, _ *outboundMap) { s.target.Incarnation-- }, false},
		"sent to an observer":                    {func(_ *outboundStream, out *outboundMap) { out.observe = true }, false},
	} {
		x := newInboundFixture(t)
		earlier := x.stream.peer
		earlier.Incarnation--
		x.tb.Update(func(tx *table.Tx) {
			tx.Remote(&table.Delta{Key: key(7), Value: value(7), Version: 5, Owner: tx.Intern(earlier)}, 5, table.RemoteOptions{})
		})
		s := newOutboundStream(x.r, x.stream.peer, nil)
		out := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
		out.serving.Store(true)
		out.sentPosition.Store(x.tb.Stats().Head)
		out.ackedPosition.Store(x.tb.Stats().Head)
		c.change(s, out)
		s.maps = []*outboundMap{out}
		x.r.outboundStreams[s] = struct{}{}
		x.handle(stockBatch(x.in.index, 0, 10, 1))
		x.in.repeatFullSyncAt = time.Now().Add(-time.Second)
		x.stream.noteAcknowledged()
		out.ackedPosition.Store(x.tb.Stats().Head) // an answer proves nothing about what the peer merges later
		x.subscribe(1, true)
		x.handle(stockBatch(x.in.index, 0, 10, 1))
		if _, found := live(x.tb)[7]; found == c.swept {
			t.Errorf("record of the earlier incarnation, %s: got present %t, want %t", name, found, !c.swept)
		}
	}
}
