package replicate

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestRequestPause checks the pause of 5 ms after requests, and the clock probe every 5 s.
func TestRequestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		x.newAck()
		begun := time.Now()
		var probes, compares []time.Duration
		out := &requestRecorder{fn: func(m *mapsyncv1.SubscribeRequest) error {
			switch {
			case m.GetClockProbe() != nil:
				probes = append(probes, time.Since(begun))
			case m.GetCompare() != nil:
				compares = append(compares, time.Since(begun))
			}
			return nil
		}}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- x.stream.sendRequests(ctx, out) }()
		ask := func(at time.Duration) {
			time.Sleep(time.Until(begun.Add(at)))
			x.stream.mu.Lock()
			x.in.comparison.requestBuckets = true
			x.stream.mu.Unlock()
			poke(x.stream.wake)
			synctest.Wait()
		}
		const ms = time.Millisecond
		ask(1100 * ms) // the stream is idle
		ask(1101 * ms) // within the pause
		time.Sleep(20 * ms)
		ask(1200 * ms)
		time.Sleep(time.Until(begun.Add(11 * time.Second)))
		cancel(errPeerGone)
		if err := <-ended; !errors.Is(err, errPeerGone) {
			t.Errorf("end of the requests: got %v, want errPeerGone", err)
		}
		if len(compares) != 3 || compares[0] != 1100*ms || compares[1] != 1100*ms+requestPause || compares[2] != 1200*ms {
			t.Errorf("digest requests: got %s, want %s", compares, []time.Duration{1100 * ms, 1100*ms + requestPause, 1200 * ms})
		}
		interval := x.r.opt.clockProbeInterval
		if len(probes) != 2 || probes[0] < interval || probes[0] > interval+time.Second || probes[1]-probes[0] < interval || probes[1]-probes[0] > interval+time.Second {
			t.Errorf("clock probes: got %s, want two, each after %s and at most a second later", probes, interval)
		}
	})
}

// TestClockProbeInterval checks the time of the clock probes.
func TestClockProbeInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		x.newAck()
		x.r.opt.clockProbeInterval = 4 * housekeepingInterval
		begun, at := time.Now(), time.Duration(0)
		ctx, cancel := context.WithCancel(t.Context())
		_ = x.stream.sendRequests(ctx, &requestRecorder{fn: func(m *mapsyncv1.SubscribeRequest) error {
			if m.GetClockProbe() != nil {
				at = time.Since(begun)
				cancel()
			}
			return nil
		}})
		if at != 4*housekeepingInterval {
			t.Errorf("clock probe: got after %s, want 1s", at)
		}
	})
}

// TestAckWithoutDelay checks that a position is acknowledged as soon as the table's writer has passed it.
func TestAckWithoutDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		x.newAck()
		x.handle(stockBatch(1, 0, 10, 1))
		begun, at := time.Now(), time.Duration(0)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, x.writeAll)
		_ = x.stream.sendRequests(ctx, &requestRecorder{fn: func(m *mapsyncv1.SubscribeRequest) error {
			if m.GetAck().GetPosition() == 10 {
				at = time.Since(begun)
				cancel()
			}
			return nil
		}})
		if at != 100*time.Millisecond {
			t.Errorf("acknowledgement: got after %s, want 100ms", at)
		}
	})
}

// TestUnrequestedClockReply checks that a clock reply without a probe is an error.
func TestUnrequestedClockReply(t *testing.T) {
	reply := &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: &mapsyncv1.ClockReply{ProbeSent: 7}}}
	x := newInboundFixture(t)
	if err := x.stream.handle(mustMarshal(t, reply)); !errors.Is(err, errProtocol) {
		t.Errorf("unrequested reply on the stream: got %v, want a protocol error", err)
	}
	if err := x.stream.awaitClockReply(&clockStream{answers: []*mapsyncv1.SubscribeResponse{reply}}); !errors.Is(err, errProtocol) {
		t.Errorf("unrequested reply at the start: got %v, want a protocol error", err)
	}
	if err := x.stream.awaitClockReply(&clockStream{err: io.ErrUnexpectedEOF}); !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != "receive clock reply: unexpected EOF" {
		t.Errorf("end of the stream: got %v, want io.ErrUnexpectedEOF of receive clock reply", err)
	}
	x.stream.clock.addSample(100*time.Hour, 0, time.Now())
	if err := x.stream.measureClock(&clockStream{}); err != nil || x.stream.clockOffset() > 2*time.Hour {
		t.Errorf("measure clock: got error %v, offset %s, want nil and at most %s", err, x.stream.clockOffset(), 2*time.Hour)
	}
}

// TestClockOffsets checks that only live peers with a measured clock have an offset, for clockMemory after their last message.
func TestClockOffsets(t *testing.T) {
	x := newInboundFixture(t)
	if list := x.r.ClockOffsets(); len(list) != 0 {
		t.Errorf("offsets without a measurement: got %v, want none", list)
	}
	x.stream.clock.addSample(-time.Second, 0, time.Now())
	if list := x.r.ClockOffsets(); len(list) != 1 || list[0] != (ClockOffset{Node: "x", Offset: -time.Second}) {
		t.Errorf("offsets: got %v, want x with %s only", list, -time.Second)
	}
	x.stream.up = false
	for ago, want := range map[time.Duration]int{clockMemory / 2: 1, clockMemory: 0} {
		x.stream.lastContact.Store(time.Now().Add(-ago).UnixNano())
		if list := x.r.ClockOffsets(); len(list) != want {
			t.Errorf("offsets of a peer that is disconnected for %s: got %v, want %d", ago, list, want)
		}
	}
	if !x.r.mu.TryLock() || !x.stream.mu.TryLock() {
		t.Error("clock offsets: a lock is still held, want both free")
	}
}

// TestVersionsAheadOfTheClock checks that a version at the limit is accepted, and one above is not.
func TestVersionsAheadOfTheClock(t *testing.T) {
	x := newInboundFixture(t)
	x.r.opt.Now = func() time.Time { return at1000 }
	m := stockBatch(x.in.index, 0, 10)
	m.GetBatch().Deltas = []*mapsyncv1.Delta{wireRecord(1, value(1), lastStart, 0), wireRecord(2, value(2), lastStart+1, 0)}
	if err := x.stream.handle(mustMarshal(t, m)); err != nil {
		t.Fatalf("handle message: got error %v, want nil", err)
	}
	if got := live(x.tb); len(got) != 1 || got[1] != 1 || x.r.Stats().DeltasAhead != 1 || x.r.Stats().DeltasAccepted != 1 {
		t.Errorf("entries: got %v, %d ahead, want key 1 with value 1 only, 1 ahead, and 1 accepted", got, x.r.Stats().DeltasAhead)
	}
}

// TestRefusedRecordsSetMapError checks the error of the map after refused records.
func TestRefusedRecordsSetMapError(t *testing.T) {
	for _, c := range []struct {
		res  mergeResult
		want string
	}{
		{mergeResult{refused: 1, ahead: 1}, "1 records refused, 1 too far ahead of the clock"},
		{mergeResult{ahead: 2}, "0 records refused, 2 too far ahead of the clock"},
		{mergeResult{refused: 5, outOfRange: 2, withoutInterface: 1}, "2 records refused, 0 too far ahead of the clock"},
		{mergeResult{refused: 3, outOfRange: 2, withoutInterface: 1}, ""},
	} {
		x := newInboundFixture(t)
		if x.in.handleMerged(&wire.Batch{}, c.res, time.Now()); errorText(x.in.err) != c.want {
			t.Errorf("%+v: error of the map: got %v, want %q", c.res, x.in.err, c.want)
		}
	}
}

// TestKeptRangesFollowSchema checks that the kept ranges are those of the last schema.
func TestKeptRangesFollowSchema(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	s := schematest.NewVersion()
	if err := r.AddMap(testMap, Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s}, newSizedTable(t, r.opt.Self, s.Key.Size, s.Value.Size, false)); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	inbound := newInboundStream(r, peerX(5))
	inbound.appendSubscriptions(nil, r.localMaps(), time.Now())
	in := inbound.maps[testMap]
	for range 2 {
		if err := in.compile(wire.SchemaToProto(schematest.OldVersion())); err != nil {
			t.Fatalf("compile schema: got error %v, want nil", err)
		}
		if n := len(in.decoder.Keep()); n == 0 || len(in.delta.Keep) != n {
			t.Errorf("kept ranges: got %d, want %d", len(in.delta.Keep), n)
		}
	}
	if err := in.compile(in.m.wireSchema); err != nil || len(in.delta.Keep) != len(in.decoder.Keep()) {
		t.Errorf("compile: got error %v, %d kept ranges, want no error and %d", err, len(in.delta.Keep), len(in.decoder.Keep()))
	}
}

// TestRejectedRecordsAreRequestedAfterDeparture checks that rejected records are requested again
// once if nodes have left since.
func TestRejectedRecordsAreRequestedAfterDeparture(t *testing.T) {
	for name, c := range map[string]struct {
		departures uint64 // at the second request
		again      bool
	}{"none since": {1, false}, "another since": {2, true}} {
		x := newInboundFixture(t)
		q := &x.in.owners
		q.requested = &permit{peer: "x"}
		q.permit, q.departures = q.requested, 0
		x.in.setRequest(&permit{peer: "x"}, 1, time.Now())
		q.rejectedUnrequested = true
		x.in.setRequest(&permit{peer: "x", orphaned: true}, c.departures, time.Now())
		if q.resend != c.again || q.departures != c.departures {
			t.Errorf("%s: got resend %t at departure %d, want %t and %d", name, q.resend, q.departures, c.again, c.departures)
		}
	}
}

// TestRolesOfDisconnectedPeer checks that a peer without the map gets no request and is not waited for.
func TestRolesOfDisconnectedPeer(t *testing.T) {
	for _, good := range []bool{false, true} {
		x := newInboundFixture(t)
		x.stream.supportsOwnerRequests = true
		serial := x.in.owners.serial
		wanted := &permit{peer: "x", nodes: []string{"c"}}
		settled := x.stream.assignRole(x.in.m, &mapSource{serving: good}, wanted, 0, time.Now())
		if settled == good || (x.in.owners.serial != serial) != good {
			t.Errorf("connected %t: got settled %t, serial %d, want %t, a new serial: %t",
				good, settled, x.in.owners.serial, !good, good)
		}
	}
}

// TestNoDigestRequestForReplacedMap checks that no digest is requested for a map that was replaced.
func TestNoDigestRequestForReplacedMap(t *testing.T) {
	x := newInboundFixture(t)
	x.in.comparison.requestBuckets = false
	wasWoken(x.stream.wake)
	if x.stream.requestDigest(&localMap{name: testMap}); x.in.comparison.requestBuckets || wasWoken(x.stream.wake) {
		t.Error("replaced map: got a digest request, want none")
	}
	if x.stream.requestDigest(x.in.m); !x.in.comparison.requestBuckets || !wasWoken(x.stream.wake) {
		t.Error("map: got no digest request, want one")
	}
}
