package replicate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// errRefusedHere is the error of dialers and streams in these tests.
var errRefusedHere = errors.New("connection refused")

// failDials replaces the dialler of a replicator by one that fails. The result returns the targets
// since the last call.
func failDials(r *Replicator) func() []Peer {
	var all []Peer
	r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) {
		all = append(all, p)
		return nil, errRefusedHere
	}
	return func() []Peer {
		r.wg.Wait()
		return all
	}
}

// TestStepNode checks that a live node is gone only if gossip does not have it, its stream is down
// and an attempt to reach it has failed.
func TestStepNode(t *testing.T) {
	for name, c := range map[string]struct {
		q                discoveredNode
		connected, fresh bool
		live, kept       bool
		refuted          bool
	}{
		"refuted":                        {discoveredNode{verified: peerX(5), unreachable: true}, false, false, false, true, true},
		"unreachable, gossip has it":     {discoveredNode{verified: peerX(5), hint: peerX(5), unreachable: true}, false, false, true, true, true},
		"unreachable, other incarnation": {discoveredNode{verified: peerX(5), hint: peerX(6), unreachable: true}, false, false, false, true, true},
		"unreachable, connected":         {discoveredNode{verified: peerX(5), unreachable: true}, true, false, true, true, true},
		"unreachable, but it sends":      {discoveredNode{verified: peerX(5), unreachable: true}, true, true, true, true, false},
		"reachable":                      {discoveredNode{verified: peerX(5)}, false, false, true, true, false},
		"not live, not named":            {discoveredNode{}, false, false, false, false, false},
		"not live, gossip has it":        {discoveredNode{hint: peerX(5)}, false, false, false, true, false},
		"not live, introduced":           {discoveredNode{introduction: peerX(5)}, false, false, false, true, false},
		"not live, being dialled":        {discoveredNode{dialling: true}, false, false, false, true, false},
		"not live, has an old stream":    {discoveredNode{hint: peerX(5), unreachable: true}, true, true, false, true, true},
		"connected, gossip has it":       {discoveredNode{verified: peerX(5), hint: peerX(5)}, true, true, true, true, false},
		"disconnected, gossip has it":    {discoveredNode{verified: peerX(5), hint: peerX(5)}, false, false, true, true, false},
	} {
		r, q := newVerifierFixture(t, c.q)
		made := failDials(r)
		if c.connected {
			s := addConnectedStream(r)
			if c.fresh {
				s.lastContact.Store(time.Now().UnixNano())
			}
		}
		r.verifier.mu.Lock()
		r.stepNode(t.Context(), "x", q, at1000)
		kept, live, refuted, changed := r.verifier.nodes["x"] == q, q.live(), q.unreachable, r.verifier.liveChanged
		r.verifier.mu.Unlock()
		made()
		if kept != c.kept || live != c.live || refuted != c.refuted || changed != (c.q.live() && !c.live) {
			t.Errorf("%s: got kept %t, live %t, unreachable %t, changed %t, want %t, %t, %t, %t",
				name, kept, live, refuted, changed, c.kept, c.live, c.refuted, c.q.live() && !c.live)
		}
	}
}

// TestVerificationAttemptsAreBounded checks that a node has one attempt at a time, when it is due,
// and that at most 32 run in total.
func TestVerificationAttemptsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		q       discoveredNode
		running int
		dialled bool
	}{
		"due":                   {discoveredNode{hint: peerX(5), due: at1000}, 0, true},
		"not due":               {discoveredNode{hint: peerX(5), due: at1000.Add(1)}, 0, false},
		"being dialled":         {discoveredNode{hint: peerX(5), dialling: true}, 1, false},
		"the last free attempt": {discoveredNode{hint: peerX(5)}, maxConcurrentDials - 1, true},
		"above the limit":       {discoveredNode{hint: peerX(5)}, maxConcurrentDials, false},
		"nothing to dial":       {discoveredNode{verified: peerX(5), hint: peerX(5)}, 0, false},
	} {
		r, q := newVerifierFixture(t, c.q)
		made := failDials(r)
		r.verifier.attempts = c.running
		r.verifier.mu.Lock()
		r.stepNode(t.Context(), "x", q, at1000)
		probing, running := q.dialling, r.verifier.attempts
		r.verifier.mu.Unlock()
		all := made()
		switch {
		case !c.dialled && (running != c.running || probing != c.q.dialling || len(all) != 0 || q.attempted):
			t.Errorf("%s: got dials %v, %d attempts, want none and %d, dialling %t, not attempted",
				name, all, running, c.running, c.q.dialling)
		case c.dialled && (running != c.running+1 || !probing || !slices.Equal(all, []Peer{peerX(5)})):
			t.Errorf("%s: got dials %v, %d attempts, want one of %v and %d, dialling", name, all, running, peerX(5), c.running+1)
		case r.verifier.attempts != c.running || c.dialled && (q.dialling || !q.attempted):
			t.Errorf("%s: attempts afterwards: got %d, want %d; want attempted and not dialling if dialled",
				name, r.verifier.attempts, c.running)
		}
	}
}

// TestVerificationBackoff checks that the pauses double up to 10 s, or 1 s for nodes that were
// verified or have a certificate, with a random part.
func TestVerificationBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		for name, c := range map[string]struct {
			q        discoveredNode
			failures int
			pause    time.Duration
		}{
			"first":             {discoveredNode{hint: peerX(5)}, 0, 100 * ms},
			"second":            {discoveredNode{hint: peerX(5)}, 1, 200 * ms},
			"seventh":           {discoveredNode{hint: peerX(5)}, 6, 6400 * ms},
			"eighth":            {discoveredNode{hint: peerX(5)}, 7, 10 * time.Second},
			"after many":        {discoveredNode{hint: peerX(5)}, 1000, 10 * time.Second},
			"introduced":        {discoveredNode{introduction: peerX(5)}, 3, 800 * ms},
			"introduced, later": {discoveredNode{introduction: peerX(5)}, 4, time.Second},
			"live":              {discoveredNode{verified: peerX(5)}, 3, 800 * ms},
			"live, later":       {discoveredNode{verified: peerX(5)}, 1000, time.Second},
		} {
			r, q := newVerifierFixture(t, discoveredNode{})
			failDials(r)
			low, high := time.Hour, time.Duration(0)
			for range 300 {
				*q = c.q
				q.failures, q.dialling = c.failures, true
				r.verifier.attempts = 1
				r.verifyNode(t.Context(), peerX(5))
				pause := time.Until(q.due)
				low, high = min(low, pause), max(high, pause)
			}
			if low < c.pause/2 || low > c.pause*6/10 || high < c.pause*14/10 || high >= c.pause*15/10 {
				t.Errorf("%s: pauses: got %s to %s, want 0.5 to 1.5 times %s", name, low, high, c.pause)
			}
		}
	})
}

// TestFailedVerification checks that failures are counted, logged and listed, and that an
// introduction is forgotten after eight.
func TestFailedVerification(t *testing.T) {
	var out bytes.Buffer
	elsewhere := Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}
	for name, c := range map[string]struct {
		q       discoveredNode
		target  Peer
		refuted bool
		remains bool
	}{
		"at the verified address": {discoveredNode{verified: peerX(5)}, peerX(5), true, false},
		"elsewhere":               {discoveredNode{verified: peerX(5)}, elsewhere, false, false},
		"seventh":                 {discoveredNode{introduction: peerX(5), failures: 6}, peerX(5), false, true},
		"eighth":                  {discoveredNode{introduction: peerX(5), failures: 7}, peerX(5), false, false},
		"ninth":                   {discoveredNode{introduction: peerX(5), failures: 8}, peerX(5), false, true},
		"sixteenth":               {discoveredNode{introduction: peerX(5), failures: 15}, peerX(5), false, false},
	} {
		c.q.dialling = true
		r, q := newVerifierFixture(t, c.q)
		failDials(r)
		out.Reset()
		r.opt.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.verifier.attempts = 1
		r.verifyNode(t.Context(), c.target)
		if q.unreachable != c.refuted || (q.introduction.Node != "") != c.remains || q.failures != c.q.failures+1 {
			t.Errorf("%s: got %+v, want unreachable %t, an introduction: %t, %d failures",
				name, *q, c.refuted, c.remains, c.q.failures+1)
		}
		if q.dialling || !q.attempted || !errors.Is(q.err, errRefusedHere) || r.verifier.attempts != 0 || !wasWoken(r.wake) {
			t.Errorf("%s: got %+v, %d attempts, want attempted, not dialling, error %v, no attempts, and the replicator woken",
				name, *q, r.verifier.attempts, errRefusedHere)
		}
		for _, want := range []string{"failed to verify that node is live", "peer=x", "addr=" + c.target.Addr, errRefusedHere.Error()} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: log: got %q, want %q in it", name, out.String(), want)
			}
		}
	}
	r, _ := newVerifierFixture(t, discoveredNode{})
	failDials(r)
	r.verifier.attempts = 1
	r.verifyNode(t.Context(), Peer{Node: "forgotten", Incarnation: 1, Addr: verifyAddr})
	if r.verifier.attempts != 0 || len(r.verifier.nodes) != 1 {
		t.Errorf("got %d attempts, %d discovered nodes, want 0 and 1", r.verifier.attempts, len(r.verifier.nodes))
	}
}

// TestSuccessfulVerification checks that the name and incarnation in the Welcome are verified.
func TestSuccessfulVerification(t *testing.T) {
	b := startNode(t, "x", 7, nil)
	r, q := newVerifierFixture(t, discoveredNode{failures: 2, dialling: true, unreachable: true, err: errRefusedHere})
	r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) { return b.dial(p.Addr) }
	r.verifier.attempts = 1
	begun := time.Now()
	r.verifyNode(t.Context(), Peer{Node: "x", Incarnation: 5, Addr: b.addr})
	if q.verified != b.peer() || !q.attempted || q.dialling || q.unreachable || q.failures != 0 || q.err != nil || r.verifier.attempts != 0 {
		t.Errorf("node: got %+v, %d attempts, want verified %v, attempted, not dialling, reachable, no failures, no error, no attempts",
			*q, r.verifier.attempts, b.peer())
	}
	if d := q.due.Sub(begun); d < minDialBackoff || d > time.Since(begun)+minDialBackoff {
		t.Errorf("next attempt: got after %s, want %s, or more by at most the duration of the attempt", d, minDialBackoff)
	}
	b.r.opt.Self.Incarnation = lastStart + 1
	r.verifyNode(t.Context(), Peer{Node: "x", Incarnation: 5, Addr: b.addr})
	var early aheadError
	if !errors.As(q.err, &early) || q.verified.Incarnation != 7 || q.failures != 1 {
		t.Errorf("incarnation in the future: got %v, want an aheadError", q.err)
	}
	_, err := r.dialAndVerify(t.Context(), Peer{Node: "y", Incarnation: 5, Addr: b.addr})
	if !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), `reach "x", expected "y"`) {
		t.Errorf("another node: got %v, want a protocol error", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.dialAndVerify(done, Peer{Node: "x", Addr: b.addr}); !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("done context: got %v, want context.Canceled or an error with canceled", err)
	}
	busy := startStock(t, func(mapsyncv1.ReplicationService_SubscribeServer) error {
		return status.Error(codes.Unavailable, "busy")
	})
	if _, err := r.dialAndVerify(t.Context(), busy); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "busy") {
		t.Errorf("busy node: got %v, want Unavailable", err)
	}
	failDials(r)
	if _, err := r.dialAndVerify(t.Context(), peerX(5)); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "dial "+verifyAddr) {
		t.Errorf("failing dialler: got %v, want an error with errRefusedHere and %q", err, "dial "+verifyAddr)
	}
}

// TestUndialledTime checks that the time counts only while a node was not dialled yet.
func TestUndialledTime(t *testing.T) {
	r, q := newVerifierFixture(t, discoveredNode{hint: peerX(5), dialling: true})
	p := &r.verifier
	for i, c := range []struct {
		tried, known bool
		verified     Peer
		after        time.Duration
		want         time.Duration
	}{
		{false, false, Peer{}, time.Second, 0},
		{false, true, Peer{}, 2 * time.Second, 0},
		{false, true, Peer{}, 5 * time.Second, 3 * time.Second},
		{true, true, Peer{}, 6 * time.Second, 3 * time.Second},
		{false, true, peerX(5), 7 * time.Second, 3 * time.Second},
		{false, true, Peer{}, 8 * time.Second, 4 * time.Second},
	} {
		q.attempted, q.verified, p.gossipReceived = c.tried, c.verified, c.known
		if r.verifyNodes(t.Context(), at1000.Add(c.after)); p.undialledTime != c.want {
			t.Errorf("step %d: undialled time: got %s, want %s", i, p.undialledTime, c.want)
		}
	}
}

// TestVerifiedNodesBecomePeers checks that the live nodes are set when they have changed.
func TestVerifiedNodesBecomePeers(t *testing.T) {
	r, q := newVerifierFixture(t, discoveredNode{verified: peerX(5), hint: peerX(5)})
	r.verifier.nodes["y"] = &discoveredNode{hint: Peer{Node: "y", Incarnation: 1, Addr: verifyAddr}, dialling: true, attempted: true}
	before := r.view.Load()
	if r.verifyNodes(t.Context(), at1000); r.view.Load() != before {
		t.Error("no change: got SetPeers called, want not called")
	}
	r.verifier.liveChanged = true
	r.verifyNodes(t.Context(), at1000)
	if live := r.view.Load().live; len(live) != 1 || live["x"] != peerX(5) || r.verifier.liveChanged {
		t.Errorf("live nodes: got %v, changed %t, want %v only, and false", live, r.verifier.liveChanged, peerX(5))
	}
	q.hint, q.unreachable = Peer{}, true
	made := failDials(r)
	if r.verifyNodes(t.Context(), at1000); len(r.view.Load().live) != 0 {
		t.Errorf("live nodes: got %v, want none", r.view.Load().live)
	}
	if r.verifyNodes(t.Context(), at1000); r.verifier.nodes["x"] != nil || len(made()) != 0 {
		t.Error("node that has left and is not named: got kept, want removed")
	}
	r.verifier.gossipReceived, r.verifier.liveChanged = false, true
	if r.verifyNodes(t.Context(), at1000); !r.verifier.liveChanged {
		t.Error("before the first Discover: got SetPeers called, want not called")
	}
}

// TestUndialledNodes checks the number of nodes that were not dialled yet, for 10 s in total.
func TestUndialledNodes(t *testing.T) {
	for name, c := range map[string]struct {
		q        discoveredNode
		changed  bool
		settling time.Duration
		want     int
	}{
		"new":                   {discoveredNode{}, false, 0, 1},
		"tried":                 {discoveredNode{attempted: true}, false, 0, 0},
		"live":                  {discoveredNode{verified: peerX(5)}, false, 0, 0},
		"verified, not set yet": {discoveredNode{verified: peerX(5)}, true, 0, 1},
		"new and another one":   {discoveredNode{}, true, 0, 2},
		"at 10 s":               {discoveredNode{}, false, 10 * time.Second, 1},
		"after 10 s":            {discoveredNode{}, true, 10*time.Second + 1, 0},
	} {
		r, _ := newVerifierFixture(t, c.q)
		r.verifier.liveChanged, r.verifier.undialledTime = c.changed, c.settling
		if got := r.UndialledNodes(); got != c.want {
			t.Errorf("%s: undialled nodes: got %d, want %d", name, got, c.want)
		}
	}
}

// TestUnverifiedNodes checks that nodes which gossip has and which failed are listed by name.
func TestUnverifiedNodes(t *testing.T) {
	r, _ := newVerifierFixture(t, discoveredNode{hint: peerX(5), attempted: true, err: aheadError{time.Hour, time.Minute}})
	named := func(node string) Peer { return Peer{Node: node, Incarnation: 1, Addr: verifyAddr} }
	for node, q := range map[string]discoveredNode{
		"a": {attempted: true, err: errRefusedHere}, "not tried": {}, "live": {attempted: true, verified: named("live")}, "c": {attempted: true, err: errRefusedHere},
	} {
		q.hint = named(node)
		r.verifier.nodes[node] = &q
	}
	r.verifier.nodes["caller"] = &discoveredNode{attempted: true, introduction: named("caller")}
	all := r.Unverified(9)
	if len(all) != 3 || all[0].Peer != named("a") || all[1].Peer != named("c") || all[2].Peer != peerX(5) {
		t.Fatalf("unverified nodes: got %+v, want a, c and %v", all, peerX(5))
	}
	if all[0].Error != errRefusedHere.Error() || all[0].Ahead != 0 || all[2].Ahead != time.Hour || !strings.Contains(all[2].Error, "max-clock-ahead") {
		t.Errorf("unverified nodes: got %+v, want error %v and ahead 0 of the first, ahead %s and max-clock-ahead of the last",
			all, errRefusedHere, time.Hour)
	}
	if some := r.Unverified(2); !slices.Equal(some, all[:2]) || len(r.Unverified(0)) != 0 {
		t.Errorf("two unverified nodes: got %+v, want %+v, and none for a limit of 0", some, all[:2])
	}
}

// TestEarlyHintIsKept: gossip names a live node with an incarnation in the future, because the clock here is behind. The node is
// dialled as soon as the clock is right, or once the process that was verified is gone.
func TestEarlyHintIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration // of the clock, later
		gone  bool          // the verified process
		want  Peer
	}{
		"clock is wrong": {},
		"clock is right": {ahead: time.Second, want: peerX(lastStart + 1)},
		"restarted":      {gone: true, want: peerX(lastStart + 1)},
	} {
		r, q := newVerifierFixture(t, discoveredNode{verified: peerX(5)})
		dialled := failDials(r)
		r.Discover([]Peer{peerX(lastStart + 1)})
		if c.gone {
			q.verified = Peer{}
		}
		r.opt.Now = func() time.Time { return at1000.Add(c.ahead) }
		r.verifier.mu.Lock()
		r.stepNode(t.Context(), "x", q, time.Now())
		r.verifier.mu.Unlock()
		dialled()
		if q.hint != c.want || r.verifier.nodes["x"] != q {
			t.Errorf("%s: hint: got %+v, want %+v", name, q.hint, c.want)
		}
	}
}
