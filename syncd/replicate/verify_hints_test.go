package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const verifyAddr = "192.0.2.1:1"

// at1000 is the clock of the verifier, and lastStart the latest incarnation that it accepts.
var (
	at1000    = time.Unix(1000, 0)
	lastStart = uint64(at1000.Add(time.Minute).UnixNano())
)

// newVerifierFixture returns a replicator that uses Discover, and its discovered node x.
func newVerifierFixture(t *testing.T, q discoveredNode) (*Replicator, *discoveredNode) {
	t.Helper()
	r, _ := newTestReplicator(t)
	r.opt.Now = func() time.Time { return at1000 }
	r.opt.MaxClockAhead = time.Minute
	r.verifier.gossipReceived = true
	r.verifier.nodes = map[string]*discoveredNode{"x": &q}
	wasWoken(r.wake)
	return r, &q
}

func peerX(incarnation uint64) Peer {
	return Peer{Node: "x", Incarnation: incarnation, Addr: verifyAddr}
}

// addConnectedStream adds an established inbound stream from x.
func addConnectedStream(r *Replicator) *inboundStream {
	s := newInboundStream(r, peerX(5))
	s.up = true
	r.inboundStreams["x"] = s
	return s
}

// TestGossipHints checks that the latest incarnation of a node is its hint, and that a node with an
// incarnation in the future replaces no live node.
func TestGossipHints(t *testing.T) {
	elsewhere := Peer{Node: "x", Incarnation: 7, Addr: "192.0.2.2:1"}
	for name, c := range map[string]struct {
		verified, old Peer
		hints         []Peer
		want          Peer
	}{
		"first":                         {hints: []Peer{peerX(7)}, want: peerX(7)},
		"removed":                       {old: peerX(7)},
		"replaced by an earlier one":    {old: peerX(7), hints: []Peer{peerX(6)}, want: peerX(6)},
		"two incarnations":              {hints: []Peer{peerX(7), peerX(8)}, want: peerX(8)},
		"two incarnations, later first": {hints: []Peer{peerX(8), peerX(7)}, want: peerX(8)},
		"two addresses":                 {hints: []Peer{peerX(7), elsewhere}, want: peerX(7)},
		"no incarnation":                {hints: []Peer{peerX(0)}},
		"live, starts now":              {verified: peerX(5), hints: []Peer{peerX(lastStart)}, want: peerX(lastStart)},
		"live, in the future":           {verified: peerX(5), hints: []Peer{peerX(lastStart + 1)}},
		"not live, in the future":       {hints: []Peer{peerX(lastStart + 1)}, want: peerX(lastStart + 1)},
		"no port":                       {hints: []Peer{{Node: "x", Incarnation: 7, Addr: "192.0.2.1"}}},
	} {
		r, q := newVerifierFixture(t, discoveredNode{verified: c.verified, hint: c.old})
		r.Discover(c.hints)
		if q.hint != c.want || q.verified != c.verified || !wasWoken(r.wake) {
			t.Errorf("%s: hint: got %+v, want %+v", name, q.hint, c.want)
		}
	}
}

// TestFirstDiscover checks that the first call of Discover sets the live nodes, and that later
// calls do not.
func TestFirstDiscover(t *testing.T) {
	r, _ := newTestReplicator(t)
	p := &r.verifier
	r.Discover(nil)
	if !p.gossipReceived || !p.liveChanged {
		t.Errorf("first call: got received %t, changed %t, want true and true", p.gossipReceived, p.liveChanged)
	}
	p.liveChanged = false
	r.Discover([]Peer{{Node: "b", Incarnation: 9, Addr: verifyAddr}, {Node: "", Incarnation: 9, Addr: verifyAddr}})
	if len(p.nodes) != 0 || p.liveChanged {
		t.Errorf("hints for this node and without a name: got %d discovered nodes, changed %t, want 0 and false",
			len(p.nodes), p.liveChanged)
	}
}

// TestHintAddressValidation checks that an address has a host, a port and at most 300 bytes.
func TestHintAddressValidation(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:1":                   "",
		strings.Repeat("h", 298) + ":1": "",
		strings.Repeat("h", 299) + ":1": "of 301 bytes",
		"192.0.2.1":                     "missing port",
		"":                              "missing port",
		"192.0.2.1\n:1":                 `address "192.0.2.1\n:1"`,
		"192.0.2.1\u202e:1":             `address "192.0.2.1\u202e:1"`,
	} {
		err := checkAddress(addr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: check address: got %v, want %q", addr, err, want)
		}
		r, _ := newVerifierFixture(t, discoveredNode{})
		if p := (Peer{Node: "y", Incarnation: 1, Addr: addr}); validPeer(p) != (want == "") || r.plausible(p) != (want == "") {
			t.Errorf("%q: got valid %t, plausible %t, want %t and %t", addr, validPeer(p), r.plausible(p), want == "", want == "")
		}
	}
	if validPeer(Peer{Addr: verifyAddr}) {
		t.Error("peer without a name: got valid, want invalid")
	}
}

// TestIntroductions checks that a plausible caller is dialled at once.
func TestIntroductions(t *testing.T) {
	due := at1000.Add(time.Hour)
	for name, c := range map[string]struct {
		q      discoveredNode
		caller Peer
		taken  bool
	}{
		"new":                               {discoveredNode{}, peerX(5), true},
		"no address":                        {discoveredNode{}, Peer{Node: "x", Incarnation: 5}, false},
		"no port":                           {discoveredNode{}, Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.1"}, false},
		"starts now":                        {discoveredNode{}, peerX(lastStart), true},
		"in the future":                     {discoveredNode{}, peerX(lastStart + 1), false},
		"verified":                          {discoveredNode{verified: peerX(5)}, peerX(5), false},
		"verified at another address":       {discoveredNode{verified: Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}}, peerX(5), true},
		"repeated":                          {discoveredNode{introduction: peerX(5)}, peerX(5), false},
		"another introduction":              {discoveredNode{introduction: peerX(6)}, peerX(5), true},
		"earlier than the live incarnation": {discoveredNode{verified: peerX(6)}, peerX(5), false},
		"later than the live incarnation":   {discoveredNode{verified: peerX(4)}, peerX(5), true},
	} {
		c.q.due = due
		r, q := newVerifierFixture(t, c.q)
		r.handleIntroduction(c.caller.owner(), c.caller.Addr)
		taken := q.introduction == c.caller && q.due.IsZero() && wasWoken(r.wake)
		if taken != c.taken || !taken && (*q != c.q || wasWoken(r.wake)) {
			t.Errorf("%s: got %+v, want it stored: %t", name, *q, c.taken)
		}
	}
	r, _ := newVerifierFixture(t, discoveredNode{})
	r.handleIntroduction(r.opt.Self, verifyAddr)
	r.handleIntroduction(Peer{Node: "y", Incarnation: lastStart + 1}.owner(), verifyAddr)
	if len(r.verifier.nodes) != 1 {
		t.Errorf("discovered nodes: got %d, want x only", len(r.verifier.nodes))
	}
	// A new caller is ignored while the list is full.
	for i := range maxDiscovered - 1 {
		r.verifier.nodes[fmt.Sprint(i)] = &discoveredNode{introduction: peerX(5)}
	}
	r.verifier.nodes["x"].verified = peerX(5)
	if r.handleIntroduction(Peer{Node: "y", Incarnation: 5}.owner(), verifyAddr); r.verifier.nodes["y"] != nil || len(r.verifier.nodes) != maxDiscovered {
		t.Errorf("discovered nodes: got %d, want %d without y", len(r.verifier.nodes), maxDiscovered)
	}
	r.verifier.nodes = map[string]*discoveredNode{"x": {}}
	r.verifier.gossipReceived = false
	r.handleIntroduction(Peer{Node: "y", Incarnation: 5}.owner(), verifyAddr)
	if r.Discover(nil); r.verifier.nodes["y"] == nil || r.verifier.nodes["y"].introduction.Node != "y" {
		t.Error("caller before the first Discover: got forgotten, want kept")
	}
}

// TestDiscoveredNodeEviction checks that hints use free places only, and that a caller with a
// certificate replaces one node that only gossip has. Nodes that are live, introduced or being
// dialled are not replaced.
func TestDiscoveredNodeEviction(t *testing.T) {
	fill := func(n int, q discoveredNode) *nodeVerifier {
		p := &nodeVerifier{nodes: make(map[string]*discoveredNode)}
		for i := range n {
			c := q
			p.nodes[fmt.Sprint(i)] = &c
		}
		return p
	}
	for name, c := range map[string]struct {
		others    discoveredNode
		full      int
		certified bool
		room      bool
		want      int // discovered nodes afterwards
	}{
		"hint, one free":                      {discoveredNode{}, maxDiscovered - 1, false, true, maxDiscovered},
		"hint, full":                          {discoveredNode{}, maxDiscovered, false, false, maxDiscovered},
		"caller, one free":                    {discoveredNode{}, maxDiscovered - 1, true, true, maxDiscovered},
		"caller, full":                        {discoveredNode{hint: peerX(1)}, maxDiscovered, true, true, maxDiscovered},
		"caller, full of live nodes":          {discoveredNode{verified: peerX(1)}, maxDiscovered, true, false, maxDiscovered},
		"caller, full of introduced nodes":    {discoveredNode{introduction: peerX(1)}, maxDiscovered, true, false, maxDiscovered},
		"caller, full of nodes being dialled": {discoveredNode{dialling: true}, maxDiscovered, true, false, maxDiscovered},
	} {
		p := fill(c.full, c.others)
		q := p.node("new", c.certified)
		if (q != nil) != c.room || len(p.nodes) != c.want || p.nodes["new"] != q {
			t.Errorf("%s: discovered nodes: got %d, want %d", name, len(p.nodes), c.want)
		}
		if q != nil && p.node("new", false) != q {
			t.Errorf("%s: got the node created twice, want once", name)
		}
	}
	r, _ := newTestReplicator(t)
	p := fill(maxDiscovered, discoveredNode{})
	r.verifier.nodes = p.nodes
	if r.Discover([]Peer{peerX(1)}); r.verifier.nodes["x"] != nil || len(r.verifier.nodes) != maxDiscovered {
		t.Error("hint above the maximum: got another node replaced, want none replaced")
	}
}

// TestHandleVerified checks that a later incarnation becomes live, and another address if the
// stream is down.
func TestHandleVerified(t *testing.T) {
	elsewhere := Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}
	for name, c := range map[string]struct {
		q         discoveredNode
		shown     Peer
		connected bool
		changed   bool
		remaining Peer // introduction that remains
	}{
		"first":                                  {discoveredNode{}, peerX(5), false, true, Peer{}},
		"starts now":                             {discoveredNode{}, peerX(lastStart), false, true, Peer{}},
		"again":                                  {discoveredNode{verified: peerX(5)}, peerX(5), false, false, Peer{}},
		"an earlier incarnation":                 {discoveredNode{verified: peerX(5)}, peerX(4), false, false, Peer{}},
		"a later incarnation":                    {discoveredNode{verified: peerX(5)}, peerX(6), true, true, Peer{}},
		"elsewhere":                              {discoveredNode{verified: peerX(5)}, elsewhere, false, true, Peer{}},
		"another address, connected":             {discoveredNode{verified: peerX(5)}, elsewhere, true, false, Peer{}},
		"introduction of the same incarnation":   {discoveredNode{introduction: peerX(5)}, peerX(5), false, true, Peer{}},
		"introduction of an earlier incarnation": {discoveredNode{introduction: peerX(4)}, peerX(5), false, true, Peer{}},
		"introduction of a later incarnation":    {discoveredNode{introduction: peerX(6)}, peerX(5), false, true, peerX(6)},
		"first, with its stream established":     {discoveredNode{}, peerX(5), true, true, Peer{}},
		"introduction later than the live one":   {discoveredNode{verified: peerX(5), introduction: peerX(6)}, peerX(5), true, false, peerX(6)},
	} {
		c.q.failures, c.q.unreachable = 3, true
		r, q := newVerifierFixture(t, c.q)
		if c.connected {
			addConnectedStream(r)
		}
		if err := r.handleVerified(c.shown); err != nil {
			t.Errorf("%s: handle verified: got %v, want nil", name, err)
		}
		want := c.q.verified
		if c.changed {
			want = c.shown
		}
		if q.verified != want || r.verifier.liveChanged != c.changed || wasWoken(r.wake) != c.changed || q.introduction != c.remaining {
			t.Errorf("%s: got verified %+v, introduction %+v, changed %t, want %+v, %+v, %t, and the replicator woken if changed",
				name, q.verified, q.introduction, r.verifier.liveChanged, want, c.remaining, c.changed)
		}
		if q.failures != 0 || q.unreachable {
			t.Errorf("%s: got %d failures, unreachable %t, want 0 and false", name, q.failures, q.unreachable)
		}
	}
	r, _ := newVerifierFixture(t, discoveredNode{})
	if err := r.handleVerified(Peer{Node: "y", Incarnation: 1, Addr: verifyAddr}); err != nil || r.verifier.liveChanged {
		t.Errorf("unknown node: got %v, changed %t, want no error and false", err, r.verifier.liveChanged)
	}
}

// TestIncarnationAheadOfClock checks that an incarnation in the future is refused, and that the
// error has the difference.
func TestIncarnationAheadOfClock(t *testing.T) {
	r, q := newVerifierFixture(t, discoveredNode{failures: 3})
	err := r.handleVerified(peerX(uint64(at1000.Add(2 * time.Minute).UnixNano())))
	var early aheadError
	if !errors.As(err, &early) || early.ahead != 2*time.Minute || early.limit != time.Minute {
		t.Fatalf("handle verified: got %v, want an aheadError", err)
	}
	if want := "its clock was 2m0s ahead of this node's when it started, more than max-clock-ahead (1m0s)"; err.Error() != want {
		t.Errorf("error: got %q, want %q", err, want)
	}
	if early.ahead += 400 * time.Millisecond; !strings.Contains(early.Error(), "was 2m0s ahead") {
		t.Errorf("error: got %s, want rounded to seconds", early)
	}
	if q.live() || q.failures != 3 || r.verifier.liveChanged || wasWoken(r.wake) {
		t.Errorf("node: got %+v, want unchanged", *q)
	}
}

// TestContactState checks that a contact is fresh for three heartbeat intervals.
func TestContactState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newVerifierFixture(t, discoveredNode{})
		if connected, fresh := r.contactState("x"); connected || fresh {
			t.Error("no stream: got a contact, want none")
		}
		s := addConnectedStream(r)
		beat := r.opt.heartbeat
		for ago, want := range map[time.Duration]bool{0: true, 3*beat - 1: true, 3 * beat: false, time.Hour: false} {
			s.lastContact.Store(time.Now().Add(-ago).UnixNano())
			if connected, fresh := r.contactState("x"); !connected || fresh != want {
				t.Errorf("contact %s ago: got connected %t, fresh %t, want true and %t", ago, connected, fresh, want)
			}
		}
		s.up = false
		s.lastContact.Store(time.Now().UnixNano())
		if connected, fresh := r.contactState("x"); connected || fresh {
			t.Error("broken stream: got a contact, want none")
		}
	})
}

// TestAttemptOrder checks that live nodes come first, then introduced nodes, then the others by
// their failures.
func TestAttemptOrder(t *testing.T) {
	p := &nodeVerifier{nodes: map[string]*discoveredNode{
		"failed 3": {failures: 3}, "failed 1": {failures: 1}, "new": {}, "caller": {introduction: peerX(1), failures: 9}, "live": {verified: peerX(1), failures: 9},
	}}
	if got, want := p.attemptOrder(), []string{"live", "caller", "new", "failed 1", "failed 3"}; !slices.Equal(got, want) {
		t.Errorf("order: got %q, want %q", got, want)
	}
}
