package replicate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestRecordsAboveTheLimitAreListed: some of them with their keys, all of them by number, until none is
// left.
func TestRecordsAboveTheLimitAreListed(t *testing.T) {
	var e exceptions
	for i := range maxListedExceptions + 3 {
		e.addLimited(fmt.Appendf(nil, "k%03d", i), 5, target)
	}
	e.addLimited(make([]byte, maxExceptionKey+1), 5, target)
	if len(e.byKey) != maxListedExceptions || e.limits != maxListedExceptions || e.limited() != maxListedExceptions+4 {
		t.Errorf("%d listed, %d above the limit", len(e.byKey), e.limited())
	}
	if x := e.byKey["k000"]; x == nil || !x.limit || x.version != 5 || x.owner != target || x.reason != errLimit.Error() {
		t.Errorf("%+v", x)
	}
	if e.settle([]byte("k000")); e.limits != maxListedExceptions-1 {
		t.Errorf("%d are listed after one has found room", e.limits)
	}
	if e.addLimited([]byte("next"), 5, target); e.byKey["next"] == nil {
		t.Error("the next one is not listed")
	}
	e.add([]byte("number"), 1, target, errors.New("why"))
	if e.setLimited(2); e.limited() != 2 || len(e.byKey) != maxListedExceptions+1 {
		t.Errorf("%d above the limit, %d listed", e.limited(), len(e.byKey))
	}
	if e.setLimited(0); e.limited() != 0 || len(e.byKey) != 1 || e.limits != 0 || e.byKey["number"] == nil {
		t.Errorf("%d above the limit, %d listed", e.limited(), len(e.byKey))
	}
}

// TestPeerWithRecordsAboveTheLimit: it does not count as divergent once it has sent everything, and its
// records are counted anew with each digest.
func TestPeerWithRecordsAboveTheLimit(t *testing.T) {
	x := newStreamless(t)
	if len(x.r.Limited(testMap)) != 0 {
		t.Error("limited without a record above the limit")
	}
	x.in.countLimited(&outcome{all: []compared{{nodeDigest: nodeDigest{sums: table.Digest{Live: 9}}}}})
	if x.in.excepted.limited() != 0 {
		t.Error("a difference counts as above the limit")
	}
	x.in.excepted.addLimited([]byte("k"), 5, target)
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
		x.in.synced, x.in.state = c.synced, c.state
		if got := x.in.excused(); got != c.want || (x.r.Limited(testMap)["x"] == 1) != c.want {
			t.Errorf("%+v: excused %t, %v", c, got, x.r.Limited(testMap))
		}
	}
	if len(x.r.Limited("none")) != 0 {
		t.Error("of no map")
	}
	x.in.limitLogged = true
	side := func(theirs, mine int) compared {
		return compared{nodeDigest: nodeDigest{sums: table.Digest{Live: theirs}}, mine: table.Digest{Live: mine}}
	}
	if x.in.countLimited(&outcome{all: []compared{side(9, 5), side(2, 7), side(3, 1)}}); x.in.excepted.limited() != 6 || !x.in.limitLogged {
		t.Errorf("%d above the limit", x.in.excepted.limited())
	}
	if x.in.countLimited(&outcome{all: []compared{side(5, 5)}}); x.in.excepted.limited() != 0 || x.in.limitLogged {
		t.Errorf("%d above the limit", x.in.excepted.limited())
	}
}

// TestResyncThatIsRefused: a peer that has more than may be held is an error, and not waited for.
func TestResyncThatIsRefused(t *testing.T) {
	x := newStreamless(t)
	began := time.Now()
	x.in.synced, x.in.state = true, StateCaughtUp
	x.in.excepted.addLimited([]byte("k"), 5, target)
	peers, _, _, err := x.r.resyncing(testMap, began)
	if len(peers) != 0 || err == nil {
		t.Errorf("waits for %v, %v", peers, err)
	}
}

// TestClocksOfPeers: those of the streams that are up.
func TestClocksOfPeers(t *testing.T) {
	r, all := cluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "y", Incarnation: 3}, Peer{Node: "w", Incarnation: 4})
	all["x"].l.clock.sample(time.Second, time.Millisecond, time.Now())
	all["y"].l.clock.sample(time.Second, time.Millisecond, time.Now())
	all["y"].l.up = false
	if list := r.ClockOffsets(); len(list) != 1 || list[0] != (ClockOffset{"x", time.Second}) {
		t.Errorf("%v", list)
	}
}
