package replicate

import (
	"errors"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema/schematest"
)

// TestAcceptedResume checks that a peer resumes at the requested position of the same map, or
// begins at 0.
func TestAcceptedResume(t *testing.T) {
	for name, c := range map[string]struct {
		generation, position uint64
		reset, ok            bool
	}{
		"there":                 {1, 10, false, true},
		"before":                {1, 9, false, false},
		"after":                 {1, 11, false, false},
		"resumes another map":   {2, 10, false, false},
		"anew":                  {1, 0, true, true},
		"another map from 0":    {2, 0, true, true},
		"resumes without a map": {0, 10, false, false},
		"reset in the middle":   {1, 5, true, true},
	} {
		x := newInboundFixture(t)
		x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
		x.in.owners.token = 7
		wasWoken(x.r.wake)
		err := x.in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: c.generation, Position: c.position, Reset_: c.reset, Schema: x.in.m.wireSchema})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errProtocol) {
			t.Errorf("%s: accept: got %v, want accepted: %t, otherwise a protocol error", name, err, c.ok)
		}
		if err != nil {
			continue
		}
		if x.in.position != c.position || x.in.generation != c.generation || x.in.state != StateSyncing || !wasWoken(x.r.wake) {
			t.Errorf("%s: got position %d of generation %d, state %s, want %d, %d and %s, and the replicator woken",
				name, x.in.position, x.in.generation, x.in.state, c.position, c.generation, StateSyncing)
		}
		if (x.in.owners.token == 0) != c.reset || (x.in.fullSyncRecords == 0) != c.reset {
			t.Errorf("%s: got token %d, %d records, want both cleared: %t", name, x.in.owners.token, x.in.fullSyncRecords, c.reset)
		}
		if want := c.reset && c.generation == 1; x.in.sweep != want {
			t.Errorf("%s: sweep: got %t, want %t", name, x.in.sweep, want)
		}
	}
	// Without a received position, there is nothing to resume.
	r, _ := newTestReplicator(t)
	s := newInboundStream(r, Peer{Node: "x", Incarnation: 1})
	s.appendSubscriptions(nil, r.localMaps(), time.Now())
	in := s.maps[testMap]
	if err := in.accept(&mapsyncv1.MapAccepted{Map: 1, Schema: in.m.wireSchema}); !errors.Is(err, errProtocol) {
		t.Errorf("accept a resume from nothing: got %v, want a protocol error", err)
	}
	if err := in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: in.m.wireSchema}); err != nil || in.sweep {
		t.Errorf("accept a full sync: got error %v, sweep %t, want no error and false", err, in.sweep)
	}
	restartFullSync(t, in)
	if in.sweep {
		t.Error("first full sync: got sweep, want none")
	}
	in.exceptions.add([]byte("k"), 1, target, errGap)
	restartFullSync(t, in)
	if in.exceptions.endSync(); in.exceptions.count() != 0 {
		t.Error("exceptions after the full sync: got some, want none")
	}
}

// TestIncompatiblePeerMapIsRetried checks that an incompatible map is refused with the reason and
// requested again later.
func TestIncompatiblePeerMapIsRetried(t *testing.T) {
	for name, change := range map[string]func(*mapsyncv1.Schema){
		"other sizes": func(s *mapsyncv1.Schema) { *s = *wire.SchemaToProto(schematest.OldVersion()) }, //nolint:govet // a message of the test's own
		"no schema":   func(s *mapsyncv1.Schema) { s.Reset() },
	} {
		x := newInboundFixture(t)
		s := wire.SchemaToProto(x.in.m.layout.Schema)
		change(s)
		for i := range 2 {
			x.in.index = 1
			x.stream.byIndex[1] = x.in
			wasWoken(x.stream.wake)
			before := time.Now()
			if err := x.in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: s}); err != nil {
				t.Fatalf("%s: accept: got %v, want nil", name, err)
			}
			if x.in.state != StateRefused || x.in.err == nil || !strings.HasPrefix(x.in.err.Error(), "map of x does not fit: ") ||
				x.in.retryAt.Before(before.Add(x.r.opt.incompatibleRetry)) || x.r.Stats().MapsIncompatible != uint64(i+1) {
				t.Errorf("%s: got state %s, error %v, retry at %s, "+
					"want %s, an error that the map of x does not fit, a retry at %s or later, and %d such maps",
					name, x.in.state, x.in.err, x.in.retryAt, StateRefused, before.Add(x.r.opt.incompatibleRetry), i+1)
			}
			if x.stream.byIndex[1] != nil || x.in.index != 0 || x.in.unsubscribeIndex != 1 || !wasWoken(x.stream.wake) {
				t.Errorf("%s: subscription: got index %d, unsubscribe index %d, want 0 and 1, no map with index 1, and the stream woken",
					name, x.in.index, x.in.unsubscribeIndex)
			}
		}
	}
}

// TestInboundMapState checks the state after each kind of batch.
func TestInboundMapState(t *testing.T) {
	x := newInboundFixture(t)
	in, now := x.in, time.Now()
	wasWoken(x.r.wake)
	in.handleMerged(&wire.Batch{Position: 5, DeltaCount: 2}, mergeResult{head: 3, accepted: 1}, now)
	if in.state != StateSyncing || in.fullSyncDone || in.position != 5 || in.tableHead != 3 || in.fullSyncRecords != 2 || in.accepted != 1 || wasWoken(x.r.wake) {
		t.Errorf("state after the first batch: got %s at %d, %d records, %d accepted, "+
			"want %s at 5, 2 and 1; want table head 3, the full sync not done, the replicator not woken",
			in.state, in.position, in.fullSyncRecords, in.accepted, StateSyncing)
	}
	all := *in.owners.permit
	all.all = true
	in.owners.permit = &all
	in.sweep, in.repeatedFullSyncs, in.backoff, in.acceptedAt = true, 2, time.Second, now.Add(-maxSubscribePause)
	in.handleMerged(&wire.Batch{Position: 9, DeltaCount: 1, CaughtUp: true}, mergeResult{head: 4}, now.Add(1))
	if in.state != StateCaughtUp || !in.fullSyncDone || in.sweep || in.repeatedFullSyncs != 0 || in.backoff != 0 || in.owners.permit.all ||
		!in.owners.lastProgress.Equal(now) || !wasWoken(x.r.wake) {
		t.Errorf("state at the end: got %+v, want %s, the full sync done, progress at %s, no sweep, repetition, backoff or "+
			"permit for all, and the replicator woken", in.state, StateCaughtUp, now)
	}
	in.handleMerged(&wire.Batch{Position: 12, CaughtUp: true}, mergeResult{head: 4}, now)
	if wasWoken(x.r.wake) {
		t.Error("second end of the stream: the replicator was woken, want it not woken")
	}
	// Batches out of turn do not change the state.
	in.handleMerged(&wire.Batch{Position: 12, DeltaCount: 1, Requested: true}, mergeResult{head: 5}, now)
	if in.state != StateCaughtUp {
		t.Errorf("state after a requested batch: got %s, want %s", in.state, StateCaughtUp)
	}
	in.handleMerged(&wire.Batch{Position: 12, DeltaCount: 1, Resent: true}, mergeResult{head: 5, refused: 1}, now)
	if in.state != StateCaughtUp || in.refused != 0 || !in.repeatFullSyncAt.IsZero() {
		t.Errorf("state after a resent batch: got %s, %d refused, want %s, none, and no full sync scheduled",
			in.state, in.refused, StateCaughtUp)
	}
	in.handleMerged(&wire.Batch{Position: 13, DeltaCount: 1}, mergeResult{head: 5}, now)
	if in.state != StateSyncing {
		t.Errorf("state with more to come: got %s, want %s", in.state, StateSyncing)
	}
	in.index, in.unsubscribeIndex, in.ackedPosition = 3, 2, 9
	in.comparison.divergentNodes, in.comparison.resendBuckets = map[string]*divergentNode{}, nil
	in.owners.sentSerial = 4
	wasWoken(x.r.wake)
	in.reset()
	if in.index != 0 || in.unsubscribeIndex != 0 || in.ackedPosition != 0 || in.pendingAcks.n != 0 || in.state != StateWaiting || in.position != 13 ||
		in.owners.sentSerial != 0 || in.comparison.divergentNodes != nil || !wasWoken(x.r.wake) {
		t.Errorf("state after the stream ended: got %+v, "+
			"want %s, position 13, no index, acknowledgement, request or divergent nodes, and the replicator woken", in.state, StateWaiting)
	}
}

// TestRefusedRecordsScheduleFullSync checks that records which may fit later schedule a full sync,
// and that records which cannot fit do not. The status has the other refusals.
func TestRefusedRecordsScheduleFullSync(t *testing.T) {
	for name, c := range map[string]struct {
		res    mergeResult
		again  bool
		errors string
	}{
		"out of range":           {mergeResult{refused: 2, outOfRange: 2}, false, ""},
		"without an interface":   {mergeResult{refused: 1, withoutInterface: 1}, true, ""},
		"both":                   {mergeResult{refused: 2, withoutInterface: 1, outOfRange: 1}, true, ""},
		"refused by the table":   {mergeResult{refused: 3, outOfRange: 1}, true, "2 records refused, 0 too far ahead"},
		"ahead":                  {mergeResult{ahead: 1}, true, "0 records refused, 1 too far ahead"},
		"ahead and out of range": {mergeResult{ahead: 1, refused: 1, outOfRange: 1}, true, "0 records refused, 1 too far ahead"},
		"none":                   {mergeResult{accepted: 1}, false, ""},
	} {
		x := newInboundFixture(t)
		x.in.handleMerged(&wire.Batch{}, c.res, time.Now())
		if x.in.repeatFullSyncAt.IsZero() == c.again || !strings.Contains(errorText(x.in.err), c.errors) || (x.in.err == nil) != (c.errors == "") {
			t.Errorf("%s: got next full sync at %s, error %v, want one scheduled: %t, error %q",
				name, x.in.repeatFullSyncAt, x.in.err, c.again, c.errors)
		}
		if x.in.refused != c.res.refused+c.res.ahead {
			t.Errorf("%s: got %d refused, want %d", name, x.in.refused, c.res.refused+c.res.ahead)
		}
	}
}
