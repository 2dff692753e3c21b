package replicate

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestPaceOfRequests: a link that has sent requests pauses for 5 ms before the next ones, and asks for the
// clock every 5 s.
func TestPaceOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		x.acked()
		begun := time.Now()
		var probes, compares []time.Duration
		out := &requests{fn: func(m *mapsyncv1.SubscribeRequest) error {
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
		go func() { ended <- x.l.request(ctx, out) }()
		ask := func(at time.Duration) {
			time.Sleep(time.Until(begun.Add(at)))
			x.l.mu.Lock()
			x.in.comparing.ask = true
			x.l.mu.Unlock()
			poke(x.l.wake)
			synctest.Wait()
		}
		const ms = time.Millisecond
		ask(1100 * ms) // the link is idle
		ask(1101 * ms) // too soon
		time.Sleep(20 * ms)
		ask(1200 * ms)
		time.Sleep(time.Until(begun.Add(11 * time.Second)))
		cancel(errPeerGone)
		if err := <-ended; !errors.Is(err, errPeerGone) {
			t.Errorf("%v", err)
		}
		if len(compares) != 3 || compares[0] != 1100*ms || compares[1] != 1100*ms+ackPace || compares[2] != 1200*ms {
			t.Errorf("digests are requested after %s", compares)
		}
		if len(probes) < 2 || probes[0] < x.r.opt.probe || probes[0] > x.r.opt.probe+time.Second || probes[1]-probes[0] > x.r.opt.probe+time.Second {
			t.Errorf("the clock is asked for after %s", probes)
		}
	})
}

// TestProbesAreDue exactly when their time has come.
func TestProbesAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		x.acked()
		x.r.opt.probe = 4 * housekeeping
		begun, at := time.Now(), time.Duration(0)
		ctx, cancel := context.WithCancel(t.Context())
		_ = x.l.request(ctx, &requests{fn: func(m *mapsyncv1.SubscribeRequest) error {
			if m.GetClockProbe() != nil {
				at = time.Since(begun)
				cancel()
			}
			return nil
		}})
		if at != 4*housekeeping {
			t.Errorf("the clock is asked for after %s", at)
		}
	})
}

// TestAcknowledgementsAreNotLate: a link acknowledges as soon as the table's writer has been through.
func TestAcknowledgementsAreNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		x.acked()
		x.take(stockBatch(1, 0, 10, 1))
		begun, at := time.Now(), time.Duration(0)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, x.write)
		_ = x.l.request(ctx, &requests{fn: func(m *mapsyncv1.SubscribeRequest) error {
			if m.GetAck().GetPosition() == 10 {
				at = time.Since(begun)
				cancel()
			}
			return nil
		}})
		if at != 100*time.Millisecond {
			t.Errorf("acknowledged after %s", at)
		}
	})
}

// TestAnswersOfTheClock: an answer that was not asked for is an error wherever it comes.
func TestAnswersOfTheClock(t *testing.T) {
	reply := &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: &mapsyncv1.ClockReply{ProbeSent: 7}}}
	x := newStreamless(t)
	if err := x.l.take(mustMarshal(t, reply)); !errors.Is(err, errProtocol) {
		t.Errorf("on the stream: %v", err)
	}
	if err := x.l.awaitClock(&clocked{answers: []*mapsyncv1.SubscribeResponse{reply}}); !errors.Is(err, errProtocol) {
		t.Errorf("at the start: %v", err)
	}
	if err := x.l.awaitClock(&clocked{err: io.ErrUnexpectedEOF}); !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != "receive clock: unexpected EOF" {
		t.Errorf("at the end: %v", err)
	}
	x.l.clock.sample(100*time.Hour, 0, time.Now())
	if err := x.l.synchronise(&clocked{}); err != nil || x.l.clockOffset() > 2*time.Hour {
		t.Errorf("%v, the offset is still %s", err, x.l.clockOffset())
	}
}

// TestOffsetsOfClocks: those of live peers whose stream is up and whose clock is known.
func TestOffsetsOfClocks(t *testing.T) {
	x := newStreamless(t)
	if list := x.r.ClockOffsets(); len(list) != 0 {
		t.Errorf("not measured: %v", list)
	}
	x.l.clock.sample(-time.Second, 0, time.Now())
	if list := x.r.ClockOffsets(); len(list) != 1 || list[0] != (ClockOffset{"x", -time.Second}) {
		t.Errorf("%v", list)
	}
	x.l.up = false
	if list := x.r.ClockOffsets(); len(list) != 0 {
		t.Errorf("disconnected: %v", list)
	}
	if !x.r.mu.TryLock() || !x.l.mu.TryLock() {
		t.Error("a lock is still held")
	}
}

// TestVersionsAheadOfTheClock: the limit itself is accepted.
func TestVersionsAheadOfTheClock(t *testing.T) {
	x := newStreamless(t)
	x.r.opt.Now = func() time.Time { return at1000 }
	m := stockBatch(x.in.index, 0, 10)
	m.GetBatch().Deltas = []*mapsyncv1.Delta{record(1, value(1), lastStart, 0), record(2, value(2), lastStart+1, 0)}
	if err := x.l.take(mustMarshal(t, m)); err != nil {
		t.Fatal(err)
	}
	if got := live(x.tb); len(got) != 1 || got[1] != 1 || x.r.Stats().DeltasAhead != 1 || x.r.Stats().DeltasAccepted != 1 {
		t.Errorf("entries %v, %d ahead", got, x.r.Stats().DeltasAhead)
	}
}

// TestRefusedRecordsAreAnError of the map, whether the table or the clock refuses them.
func TestRefusedRecordsAreAnError(t *testing.T) {
	for _, c := range []struct {
		res  merged
		want string
	}{
		{merged{refused: 1, ahead: 1}, "1 records refused, 1 too far ahead of the clock"},
		{merged{ahead: 2}, "0 records refused, 2 too far ahead of the clock"},
		{merged{refused: 5, outOfRange: 2, withoutLink: 1}, "2 records refused, 0 too far ahead of the clock"},
		{merged{refused: 3, outOfRange: 2, withoutLink: 1}, ""},
	} {
		x := newStreamless(t)
		if x.in.merged(&batch{}, c.res, time.Now()); text(x.in.err) != c.want {
			t.Errorf("%+v: %v, want %q", c.res, x.in.err, c.want)
		}
	}
}

// TestSchemaIsReadAgain: what a decoder leaves alone is that of the last schema.
func TestSchemaIsReadAgain(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	s := newSchema()
	if err := r.AddMap(testMap, Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s}, newSizedTable(t, r.opt.Self, s.Key.Size, s.Value.Size, false)); err != nil {
		t.Fatal(err)
	}
	l := newLink(r, peerX(5))
	l.requests(nil, r.localMaps(), time.Now())
	in := l.intakes[testMap]
	for range 2 {
		if err := in.compile(toProto(oldSchema())); err != nil {
			t.Fatal(err)
		}
		if n := len(in.decoder.Keep()); n == 0 || len(in.delta.Keep) != n {
			t.Errorf("%d parts of a value are kept, want %d", len(in.delta.Keep), n)
		}
	}
	if err := in.compile(in.m.wire); err != nil || len(in.delta.Keep) != len(in.decoder.Keep()) {
		t.Errorf("%v, %d parts of a value are kept", err, len(in.delta.Keep))
	}
}

// TestRequestsAfterADeparture: records that were withheld are requested again once, if nodes have left since.
func TestRequestsAfterADeparture(t *testing.T) {
	for name, c := range map[string]struct {
		departures uint64 // at the second request
		again      bool
	}{"none since": {1, false}, "another since": {2, true}} {
		x := newStreamless(t)
		q := &x.in.requesting
		q.wanted = &permit{peer: "x"}
		q.permit, q.departures = q.wanted, 0
		x.in.request(&permit{peer: "x"}, 1, time.Now())
		q.withheld = true
		x.in.request(&permit{peer: "x", orphaned: true}, c.departures, time.Now())
		if q.again != c.again || q.departures != c.departures {
			t.Errorf("%s: again %t at departure %d", name, q.again, q.departures)
		}
	}
}

// TestRolesWithoutAStream: a peer that does not serve the map is not waited for, and not requested of.
func TestRolesWithoutAStream(t *testing.T) {
	for _, good := range []bool{false, true} {
		x := newStreamless(t)
		x.l.ownerRequests = true
		serial := x.in.requesting.serial
		wanted := &permit{peer: "x", nodes: []string{"c"}}
		settled := x.l.assign(x.in.m, &inboundMap{good: good}, wanted, 0, time.Now())
		if settled == good || (x.in.requesting.serial != serial) != good {
			t.Errorf("good %t: settled %t, request %d", good, settled, x.in.requesting.serial)
		}
	}
}

// TestDigestsOfAnotherMap are not requested: a map of the same name has come in its place.
func TestDigestsOfAnotherMap(t *testing.T) {
	x := newStreamless(t)
	x.in.comparing.ask = false
	woken(x.l.wake)
	if x.l.compareSoon(&localMap{name: testMap}); x.in.comparing.ask || woken(x.l.wake) {
		t.Error("the digests of another map are requested")
	}
	if x.l.compareSoon(x.in.m); !x.in.comparing.ask || !woken(x.l.wake) {
		t.Error("the digests of the map are not requested")
	}
}
