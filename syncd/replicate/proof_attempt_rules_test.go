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

var errRefusedHere = errors.New("connection refused")

// dials replaces the dialler of a replicator by one that fails, and returns the targets.
func dials(r *Replicator) func() []Peer {
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

// TestStepsOfProspects: a live node is dead only if gossip does not have it, its stream is down and it
// cannot be reached.
func TestStepsOfProspects(t *testing.T) {
	for name, c := range map[string]struct {
		q                prospect
		connected, fresh bool
		live, kept       bool
		refuted          bool
	}{
		"refuted":                     {prospect{proven: peerX(5), refuted: true}, false, false, false, true, true},
		"refuted, gossip has it":      {prospect{proven: peerX(5), hint: peerX(5), refuted: true}, false, false, true, true, true},
		"refuted, other incarnation":  {prospect{proven: peerX(5), hint: peerX(6), refuted: true}, false, false, false, true, true},
		"refuted, connected":          {prospect{proven: peerX(5), refuted: true}, true, false, true, true, true},
		"refuted, but it sends":       {prospect{proven: peerX(5), refuted: true}, true, true, true, true, false},
		"not refuted":                 {prospect{proven: peerX(5)}, false, false, true, true, false},
		"not live, nobody has it":     {prospect{}, false, false, false, false, false},
		"not live, gossip has it":     {prospect{hint: peerX(5)}, false, false, false, true, false},
		"not live, a caller":          {prospect{claim: peerX(5)}, false, false, false, true, false},
		"not live, under way":         {prospect{probing: true}, false, false, false, true, false},
		"not live, link of the past":  {prospect{hint: peerX(5), refuted: true}, true, true, false, true, true},
		"connected, gossip has it":    {prospect{proven: peerX(5), hint: peerX(5)}, true, true, true, true, false},
		"disconnected, gossip has it": {prospect{proven: peerX(5), hint: peerX(5)}, false, false, true, true, false},
	} {
		r, q := newProver(t, c.q)
		made := dials(r)
		if c.connected {
			l := linkUp(r)
			if c.fresh {
				l.contact.Store(time.Now().UnixNano())
			}
		}
		r.proofs.mu.Lock()
		r.step(t.Context(), "x", q, at1000)
		kept, live, refuted, changed := r.proofs.prospects["x"] == q, q.live(), q.refuted, r.proofs.changed
		r.proofs.mu.Unlock()
		made()
		if kept != c.kept || live != c.live || refuted != c.refuted || changed != (c.q.live() && !c.live) {
			t.Errorf("%s: kept %t, live %t, refuted %t, changed %t", name, kept, live, refuted, changed)
		}
	}
}

// TestAttemptsAreBounded: one attempt per node, when it is due, and 32 in all.
func TestAttemptsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		q       prospect
		running int
		dialled bool
	}{
		"due":             {prospect{hint: peerX(5), due: at1000}, 0, true},
		"not due":         {prospect{hint: peerX(5), due: at1000.Add(1)}, 0, false},
		"under way":       {prospect{hint: peerX(5), probing: true}, 1, false},
		"the last of all": {prospect{hint: peerX(5)}, probesAtOnce - 1, true},
		"one too many":    {prospect{hint: peerX(5)}, probesAtOnce, false},
		"nothing to dial": {prospect{proven: peerX(5), hint: peerX(5)}, 0, false},
	} {
		r, q := newProver(t, c.q)
		made := dials(r)
		r.proofs.running = c.running
		r.proofs.mu.Lock()
		r.step(t.Context(), "x", q, at1000)
		probing, running := q.probing, r.proofs.running
		r.proofs.mu.Unlock()
		all := made()
		switch {
		case !c.dialled && (running != c.running || probing != c.q.probing || len(all) != 0 || q.tried):
			t.Errorf("%s: dials %v, %d running", name, all, running)
		case c.dialled && (running != c.running+1 || !probing || !slices.Equal(all, []Peer{peerX(5)})):
			t.Errorf("%s: dials %v, %d running", name, all, running)
		case r.proofs.running != c.running || c.dialled && (q.probing || !q.tried):
			t.Errorf("%s: %d running after it", name, r.proofs.running)
		}
	}
}

// TestPausesBetweenAttempts double up to 10 s, or 1 s for nodes that were proved or have a certificate. A
// random part spreads them.
func TestPausesBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		for name, c := range map[string]struct {
			q        prospect
			failures int
			pause    time.Duration
		}{
			"first":               {prospect{hint: peerX(5)}, 0, 100 * ms},
			"second":              {prospect{hint: peerX(5)}, 1, 200 * ms},
			"seventh":             {prospect{hint: peerX(5)}, 6, 6400 * ms},
			"eighth":              {prospect{hint: peerX(5)}, 7, 10 * time.Second},
			"after many":          {prospect{hint: peerX(5)}, 1000, 10 * time.Second},
			"of a caller":         {prospect{claim: peerX(5)}, 3, 800 * ms},
			"of a caller, later":  {prospect{claim: peerX(5)}, 4, time.Second},
			"of a live one":       {prospect{proven: peerX(5)}, 3, 800 * ms},
			"of a live one later": {prospect{proven: peerX(5)}, 1000, time.Second},
		} {
			r, q := newProver(t, prospect{})
			dials(r)
			low, high := time.Hour, time.Duration(0)
			for range 300 {
				*q = c.q
				q.failures, q.probing = c.failures, true
				r.proofs.running = 1
				r.attempt(t.Context(), peerX(5))
				pause := time.Until(q.due)
				low, high = min(low, pause), max(high, pause)
			}
			if low < c.pause/2 || low > c.pause*6/10 || high < c.pause*14/10 || high >= c.pause*15/10 {
				t.Errorf("%s: pauses from %s to %s, want half of %s to one and a half", name, low, high, c.pause)
			}
		}
	})
}

// TestFailedAttempts are counted, logged and listed. A claim is forgotten after eight.
func TestFailedAttempts(t *testing.T) {
	var out bytes.Buffer
	elsewhere := Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}
	for name, c := range map[string]struct {
		q       prospect
		target  Peer
		refuted bool
		claim   bool
	}{
		"where it was proved": {prospect{proven: peerX(5)}, peerX(5), true, false},
		"elsewhere":           {prospect{proven: peerX(5)}, elsewhere, false, false},
		"seventh":             {prospect{claim: peerX(5), failures: 6}, peerX(5), false, true},
		"eighth":              {prospect{claim: peerX(5), failures: 7}, peerX(5), false, false},
		"ninth":               {prospect{claim: peerX(5), failures: 8}, peerX(5), false, true},
		"sixteenth":           {prospect{claim: peerX(5), failures: 15}, peerX(5), false, false},
	} {
		c.q.probing = true
		r, q := newProver(t, c.q)
		dials(r)
		out.Reset()
		r.opt.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.proofs.running = 1
		r.attempt(t.Context(), c.target)
		if q.refuted != c.refuted || (q.claim.Node != "") != c.claim || q.failures != c.q.failures+1 {
			t.Errorf("%s: %+v", name, *q)
		}
		if q.probing || !q.tried || !errors.Is(q.err, errRefusedHere) || r.proofs.running != 0 || !woken(r.wake) {
			t.Errorf("%s: %+v, %d running", name, *q, r.proofs.running)
		}
		for _, want := range []string{"node is not proved to be live", "peer=x", "addr=" + c.target.Addr, errRefusedHere.Error()} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: log %q lacks %q", name, out.String(), want)
			}
		}
	}
	r, _ := newProver(t, prospect{})
	dials(r)
	r.proofs.running = 1
	r.attempt(t.Context(), Peer{Node: "forgotten", Incarnation: 1, Addr: proofAddr})
	if r.proofs.running != 0 || len(r.proofs.prospects) != 1 {
		t.Errorf("%d running, %d prospects", r.proofs.running, len(r.proofs.prospects))
	}
}

// TestAttemptThatSucceeds proves the name and the incarnation that the stream shows.
func TestAttemptThatSucceeds(t *testing.T) {
	b := startNode(t, "x", 7, nil)
	r, q := newProver(t, prospect{failures: 2, probing: true, refuted: true, err: errRefusedHere})
	r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) { return b.dial(p.Addr) }
	r.proofs.running = 1
	begun := time.Now()
	r.attempt(t.Context(), Peer{Node: "x", Incarnation: 5, Addr: b.addr})
	if q.proven != b.peer() || !q.tried || q.probing || q.refuted || q.failures != 0 || q.err != nil || r.proofs.running != 0 {
		t.Errorf("%+v, %d running", *q, r.proofs.running)
	}
	if d := q.due.Sub(begun); d < firstProbe || d > time.Since(begun)+firstProbe {
		t.Errorf("next attempt after %s", d)
	}
	b.r.opt.Self.Incarnation = lastStart + 1
	r.attempt(t.Context(), Peer{Node: "x", Incarnation: 5, Addr: b.addr})
	var early aheadError
	if !errors.As(q.err, &early) || q.proven.Incarnation != 7 || q.failures != 1 {
		t.Errorf("a start in the future: %v", q.err)
	}
	_, err := r.dialForProof(t.Context(), Peer{Node: "y", Incarnation: 5, Addr: b.addr})
	if !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), `reach "x", expected "y"`) {
		t.Errorf("another node: %v", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.dialForProof(done, Peer{Node: "x", Addr: b.addr}); !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("after the end: %v", err)
	}
	busy := startStock(t, func(mapsyncv1.ReplicationService_SubscribeServer) error {
		return status.Error(codes.Unavailable, "busy")
	})
	if _, err := r.dialForProof(t.Context(), busy); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "busy") {
		t.Errorf("a node that is busy: %v", err)
	}
	dials(r)
	if _, err := r.dialForProof(t.Context(), peerX(5)); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "dial "+proofAddr) {
		t.Errorf("a dialler that fails: %v", err)
	}
}

// TestTimeUntilGossipHasSettled counts only while a node was not dialled yet.
func TestTimeUntilGossipHasSettled(t *testing.T) {
	r, q := newProver(t, prospect{hint: peerX(5), probing: true})
	p := &r.proofs
	for i, c := range []struct {
		tried, known bool
		proven       Peer
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
		q.tried, q.proven, p.known = c.tried, c.proven, c.known
		if r.prove(t.Context(), at1000.Add(c.after)); p.settling != c.want {
			t.Errorf("step %d: settling for %s, want %s", i, p.settling, c.want)
		}
	}
}

// TestProvenNodesBecomePeers: the live nodes are set when they have changed.
func TestProvenNodesBecomePeers(t *testing.T) {
	r, q := newProver(t, prospect{proven: peerX(5), hint: peerX(5)})
	r.proofs.prospects["y"] = &prospect{hint: Peer{Node: "y", Incarnation: 1, Addr: proofAddr}, probing: true}
	before := r.view.Load()
	if r.prove(t.Context(), at1000); r.view.Load() != before {
		t.Error("the peers are set without a change")
	}
	r.proofs.changed = true
	r.prove(t.Context(), at1000)
	if live := r.view.Load().live; len(live) != 1 || live["x"] != peerX(5) || r.proofs.changed {
		t.Errorf("live: %v, changed %t", live, r.proofs.changed)
	}
	q.hint, q.refuted = Peer{}, true
	made := dials(r)
	if r.prove(t.Context(), at1000); len(r.view.Load().live) != 0 {
		t.Errorf("live: %v", r.view.Load().live)
	}
	if r.prove(t.Context(), at1000); r.proofs.prospects["x"] != nil || len(made()) != 0 {
		t.Error("a node that has died and that no node names is kept")
	}
	r.proofs.known, r.proofs.changed = false, true
	if r.prove(t.Context(), at1000); !r.proofs.changed {
		t.Error("the peers are set before gossip has reported any")
	}
}

// TestNodesThatAreNotSettled are those that were not dialled yet, for 10 s in all.
func TestNodesThatAreNotSettled(t *testing.T) {
	for name, c := range map[string]struct {
		q        prospect
		changed  bool
		settling time.Duration
		want     int
	}{
		"new":           {prospect{}, false, 0, 1},
		"tried":         {prospect{tried: true}, false, 0, 0},
		"live":          {prospect{proven: peerX(5)}, false, 0, 0},
		"live, to set":  {prospect{proven: peerX(5)}, true, 0, 1},
		"new, and more": {prospect{}, true, 0, 2},
		"at 10 s":       {prospect{}, false, 10 * time.Second, 1},
		"after 10 s":    {prospect{}, true, 10*time.Second + 1, 0},
	} {
		r, _ := newProver(t, c.q)
		r.proofs.changed, r.proofs.settling = c.changed, c.settling
		if got := r.Settling(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestListOfUnprovenNodes: those that gossip has and that failed, by name.
func TestListOfUnprovenNodes(t *testing.T) {
	r, _ := newProver(t, prospect{hint: peerX(5), tried: true, err: aheadError{time.Hour, time.Minute}})
	named := func(node string) Peer { return Peer{Node: node, Incarnation: 1, Addr: proofAddr} }
	for node, q := range map[string]prospect{
		"a": {tried: true, err: errRefusedHere}, "not tried": {}, "live": {tried: true, proven: named("live")}, "c": {tried: true, err: errRefusedHere},
	} {
		q.hint = named(node)
		r.proofs.prospects[node] = &q
	}
	r.proofs.prospects["caller"] = &prospect{tried: true, claim: named("caller")}
	all := r.Unproven(9)
	if len(all) != 3 || all[0].Peer != named("a") || all[1].Peer != named("c") || all[2].Peer != peerX(5) {
		t.Fatalf("%+v", all)
	}
	if all[0].Error != errRefusedHere.Error() || all[0].Ahead != 0 || all[2].Ahead != time.Hour || !strings.Contains(all[2].Error, "max-clock-ahead") {
		t.Errorf("%+v", all)
	}
	if some := r.Unproven(2); !slices.Equal(some, all[:2]) || len(r.Unproven(0)) != 0 {
		t.Errorf("two of them: %+v", some)
	}
}
