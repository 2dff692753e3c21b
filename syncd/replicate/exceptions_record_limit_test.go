package replicate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestRecordsAboveTheLimitAreListed checks that some of the records above the limit are stored with
// their keys, and that all are counted.
func TestRecordsAboveTheLimitAreListed(t *testing.T) {
	var e exceptions
	for i := range maxListedExceptions + 3 {
		e.addAboveLimit(fmt.Appendf(nil, "k%03d", i), 5, target, false)
	}
	e.addAboveLimit(make([]byte, maxExceptionKey+1), 5, target, false)
	if len(e.byKey) != maxListedExceptions || e.aboveLimitKeys != maxListedExceptions || e.aboveLimitCount() != maxListedExceptions+4 {
		t.Errorf("exceptions: got %d stored, %d above the limit, want %d, all above the limit, and %d",
			len(e.byKey), e.aboveLimitCount(), maxListedExceptions, maxListedExceptions+4)
	}
	if x := e.byKey["k000"]; x == nil || !x.aboveLimit || x.version != 5 || x.owner != target || x.reason != errAboveLimit.Error() {
		t.Errorf("exception: got %+v, want one above the limit, version 5, owner %v, reason %q", x, target, errAboveLimit)
	}
	if e.resolve([]byte("k000")); e.aboveLimitKeys != maxListedExceptions-1 {
		t.Errorf("stored above the limit after one was resolved: got %d, want %d", e.aboveLimitKeys, maxListedExceptions-1)
	}
	if e.addAboveLimit([]byte("next"), 5, target, false); e.byKey["next"] == nil {
		t.Error("next record above the limit: got not stored, want stored")
	}
	for _, again := range []bool{false, true} { // a full sync counts anew, and a repair does not
		if !again {
			e.beginSync()
		}
		e.addAboveLimit([]byte("next"), 6, target, e.resolve([]byte("next")))
		if n := e.aboveLimitCount(); n != 1 {
			t.Errorf("record that is rejected in a full sync, and again %t: got %d above the limit, want 1", again, n)
		}
	}
	e.add([]byte("range"), 1, target, errors.New("why"))
	if e.setAboveLimit(2); e.aboveLimitCount() != 2 || len(e.byKey) != maxListedExceptions+1 {
		t.Errorf("exceptions: got %d above the limit, %d stored, want 2 and %d",
			e.aboveLimitCount(), len(e.byKey), maxListedExceptions+1)
	}
	if e.setAboveLimit(0); e.aboveLimitCount() != 0 || len(e.byKey) != 1 || e.aboveLimitKeys != 0 || e.byKey["range"] == nil {
		t.Errorf("exceptions: got %d above the limit, %d stored, want 0 and the one with key range only",
			e.aboveLimitCount(), len(e.byKey))
	}
}

// TestPeerAboveRecordLimit checks that a peer above the limit does not count as divergent once it
// has sent everything, and that each digest counts its records again.
func TestPeerAboveRecordLimit(t *testing.T) {
	x := newInboundFixture(t)
	if len(x.r.PeersAboveLimit(testMap)) != 0 {
		t.Error("peers above the limit: got some, want none")
	}
	x.in.countAboveLimit(&comparisonResult{nodes: []nodeComparison{{NodeDigest: wire.NodeDigest{Digest: table.Digest{Live: 9}}}}})
	if x.in.exceptions.aboveLimitCount() != 0 {
		t.Error("difference without a rejection: got above the limit, want not counted")
	}
	x.in.exceptions.addAboveLimit([]byte("k"), 5, target, false)
	for _, c := range []struct {
		synced bool
		state  State
		want   bool
	}{
		{false, StateSyncing, false},
		{true, StateSyncing, true},
		{true, StateCaughtUp, true},
		{false, StateCaughtUp, false},
		{true, StateWaiting, false},
		{true, StateFailed, false},
	} {
		x.in.fullSyncDone, x.in.state = c.synced, c.state
		if got := x.in.completeAboveLimit(); got != c.want || (x.r.PeersAboveLimit(testMap)["x"] == 1) != c.want {
			t.Errorf("%+v: complete above the limit: got %t, peers %v, want %t, and 1 for x only if true",
				c, got, x.r.PeersAboveLimit(testMap), c.want)
		}
	}
	if len(x.r.PeersAboveLimit("none")) != 0 {
		t.Error("peers above the limit of an unknown map: got some, want none")
	}
	x.in.limitLogged = true
	side := func(theirs, mine int) nodeComparison {
		return nodeComparison{NodeDigest: wire.NodeDigest{Digest: table.Digest{Live: theirs}}, local: table.Digest{Live: mine}}
	}
	if x.in.countAboveLimit(&comparisonResult{nodes: []nodeComparison{side(9, 5), side(2, 7), side(3, 1)}}); x.in.exceptions.aboveLimitCount() != 6 || !x.in.limitLogged {
		t.Errorf("records above the limit: got %d, want 6", x.in.exceptions.aboveLimitCount())
	}
	if x.in.countAboveLimit(&comparisonResult{nodes: []nodeComparison{side(5, 5)}}); x.in.exceptions.aboveLimitCount() != 0 || x.in.limitLogged {
		t.Errorf("records above the limit: got %d, want 0", x.in.exceptions.aboveLimitCount())
	}
}

// TestResyncAboveRecordLimit checks that a resync does not wait for a peer above the limit, and
// returns an error.
func TestResyncAboveRecordLimit(t *testing.T) {
	x := newInboundFixture(t)
	began := time.Now()
	x.in.fullSyncDone, x.in.state = true, StateCaughtUp
	x.in.exceptions.addAboveLimit([]byte("k"), 5, target, false)
	peers, _, _, err := x.r.resyncProgress(testMap, began)
	if len(peers) != 0 || err == nil {
		t.Errorf("resync: got waiting for %v, error %v, want none and an error", peers, err)
	}
}

// TestClockOffsetsOfConnectedPeers checks that only connected peers have an offset.
func TestClockOffsetsOfConnectedPeers(t *testing.T) {
	r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "y", Incarnation: 3}, Peer{Node: "w", Incarnation: 4})
	all["x"].stream.clock.addSample(time.Second, time.Millisecond, time.Now())
	all["y"].stream.clock.addSample(time.Second, time.Millisecond, time.Now())
	all["y"].stream.up = false
	if list := r.ClockOffsets(); len(list) != 1 || list[0] != (ClockOffset{Node: "x", Offset: time.Second}) {
		t.Errorf("clock offsets: got %v, want x with %s only", list, time.Second)
	}
}
