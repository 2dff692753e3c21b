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

const proofAddr = "192.0.2.1:1"

// at1000 is the clock of a prover, and lastStart the latest incarnation that it accepts.
var (
	at1000    = time.Unix(1000, 0)
	lastStart = uint64(at1000.Add(time.Minute).UnixNano())
)

// newProver returns a replicator that uses Discover, and a prospect of it.
func newProver(t *testing.T, q prospect) (*Replicator, *prospect) {
	t.Helper()
	r, _ := newReceiver(t)
	r.opt.Now = func() time.Time { return at1000 }
	r.opt.MaxClockAhead = time.Minute
	r.proofs.known = true
	r.proofs.prospects = map[string]*prospect{"x": &q}
	woken(r.wake)
	return r, &q
}

func peerX(incarnation uint64) Peer {
	return Peer{Node: "x", Incarnation: incarnation, Addr: proofAddr}
}

// linkUp gives a replicator a link to x whose stream is up.
func linkUp(r *Replicator) *link {
	l := newLink(r, peerX(5))
	l.up = true
	r.links["x"] = l
	return l
}

// TestHintsOfGossip: the latest incarnation of a node is its hint. A node from the future replaces no
// live node.
func TestHintsOfGossip(t *testing.T) {
	elsewhere := Peer{Node: "x", Incarnation: 7, Addr: "192.0.2.2:1"}
	for name, c := range map[string]struct {
		proven, old Peer
		hints       []Peer
		want        Peer
	}{
		"first":                         {hints: []Peer{peerX(7)}, want: peerX(7)},
		"removed":                       {old: peerX(7)},
		"replaced by an earlier one":    {old: peerX(7), hints: []Peer{peerX(6)}, want: peerX(6)},
		"two incarnations":              {hints: []Peer{peerX(7), peerX(8)}, want: peerX(8)},
		"two incarnations, later first": {hints: []Peer{peerX(8), peerX(7)}, want: peerX(8)},
		"two addresses":                 {hints: []Peer{peerX(7), elsewhere}, want: peerX(7)},
		"no incarnation":                {hints: []Peer{peerX(0)}},
		"live, started now":             {proven: peerX(5), hints: []Peer{peerX(lastStart)}, want: peerX(lastStart)},
		"live, from the future":         {proven: peerX(5), hints: []Peer{peerX(lastStart + 1)}},
		"not live, from the future":     {hints: []Peer{peerX(lastStart + 1)}, want: peerX(lastStart + 1)},
		"no port":                       {hints: []Peer{{Node: "x", Incarnation: 7, Addr: "192.0.2.1"}}},
	} {
		r, q := newProver(t, prospect{proven: c.proven, hint: c.old})
		r.Discover(c.hints)
		if q.hint != c.want || q.proven != c.proven || !woken(r.wake) {
			t.Errorf("%s: hint %+v, want %+v", name, q.hint, c.want)
		}
	}
}

// TestFirstHints: the first call of Discover sets the live nodes, later calls do not.
func TestFirstHints(t *testing.T) {
	r, _ := newReceiver(t)
	p := &r.proofs
	r.Discover(nil)
	if !p.known || !p.changed {
		t.Errorf("after the first call: known %t, changed %t", p.known, p.changed)
	}
	p.changed = false
	r.Discover([]Peer{{Node: "b", Incarnation: 9, Addr: proofAddr}, {Node: "", Incarnation: 9, Addr: proofAddr}})
	if len(p.prospects) != 0 || p.changed {
		t.Errorf("this node and a node without a name: %d prospects, changed %t", len(p.prospects), p.changed)
	}
}

// TestAddressesOfHints have a host, a port and at most 300 bytes.
func TestAddressesOfHints(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:1":                   "",
		strings.Repeat("h", 298) + ":1": "",
		strings.Repeat("h", 299) + ":1": "address of 301 bytes",
		"192.0.2.1":                     "missing port",
		"":                              "missing port",
	} {
		err := checkAddress(addr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", addr, err, want)
		}
		r, _ := newProver(t, prospect{})
		if p := (Peer{Node: "y", Incarnation: 1, Addr: addr}); valid(p) != (want == "") || r.plausible(p) != (want == "") {
			t.Errorf("%q: valid %t, plausible %t", addr, valid(p), r.plausible(p))
		}
	}
	if valid(Peer{Addr: proofAddr}) {
		t.Error("a peer without a name is valid")
	}
}

// TestCallersAsProspects: a caller that may be what it claims is dialled at once.
func TestCallersAsProspects(t *testing.T) {
	due := at1000.Add(time.Hour)
	for name, c := range map[string]struct {
		q     prospect
		claim Peer
		taken bool
	}{
		"new":                              {prospect{}, peerX(5), true},
		"no address":                       {prospect{}, Peer{Node: "x", Incarnation: 5}, false},
		"no port":                          {prospect{}, Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.1"}, false},
		"started now":                      {prospect{}, peerX(lastStart), true},
		"from the future":                  {prospect{}, peerX(lastStart + 1), false},
		"proven":                           {prospect{proven: peerX(5)}, peerX(5), false},
		"proven elsewhere":                 {prospect{proven: Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}}, peerX(5), true},
		"repeated":                         {prospect{claim: peerX(5)}, peerX(5), false},
		"another claim":                    {prospect{claim: peerX(6)}, peerX(5), true},
		"an earlier incarnation than live": {prospect{proven: peerX(6)}, peerX(5), false},
		"a later incarnation than live":    {prospect{proven: peerX(4)}, peerX(5), true},
	} {
		c.q.due = due
		r, q := newProver(t, c.q)
		r.introduced(c.claim.owner(), c.claim.Addr)
		taken := q.claim == c.claim && q.due.IsZero() && woken(r.wake)
		if taken != c.taken || !taken && (*q != c.q || woken(r.wake)) {
			t.Errorf("%s: %+v, want it taken: %t", name, *q, c.taken)
		}
	}
	r, _ := newProver(t, prospect{})
	r.introduced(r.opt.Self, proofAddr)
	r.introduced(Peer{Node: "y", Incarnation: lastStart + 1}.owner(), proofAddr)
	if len(r.proofs.prospects) != 1 {
		t.Errorf("%d prospects, want x alone", len(r.proofs.prospects))
	}
	r.proofs.known = false
	if r.introduced(Peer{Node: "y"}.owner(), proofAddr); len(r.proofs.prospects) != 1 {
		t.Error("a caller becomes a prospect of a node that uses SetPeers")
	}
}

// TestRoomForProspects: hints use what is free. A caller with a certificate replaces one node that only
// gossip has. Nodes that are live, have called or are dialled are not replaced.
func TestRoomForProspects(t *testing.T) {
	fill := func(n int, q prospect) *proofs {
		p := &proofs{prospects: make(map[string]*prospect)}
		for i := range n {
			c := q
			p.prospects[fmt.Sprint(i)] = &c
		}
		return p
	}
	for name, c := range map[string]struct {
		others    prospect
		full      int
		certified bool
		room      bool
		want      int // prospects after it
	}{
		"hint, one is free": {prospect{}, maxProspects - 1, false, true, maxProspects},
		"hint, full":        {prospect{}, maxProspects, false, false, maxProspects},
		"caller, one free":  {prospect{}, maxProspects - 1, true, true, maxProspects},
		"caller, full":      {prospect{hint: peerX(1)}, maxProspects, true, true, maxProspects},
		"caller, live":      {prospect{proven: peerX(1)}, maxProspects, true, false, maxProspects},
		"caller, certified": {prospect{claim: peerX(1)}, maxProspects, true, false, maxProspects},
		"caller, probing":   {prospect{probing: true}, maxProspects, true, false, maxProspects},
	} {
		p := fill(c.full, c.others)
		q := p.prospect("new", c.certified)
		if (q != nil) != c.room || len(p.prospects) != c.want || p.prospects["new"] != q {
			t.Errorf("%s: %d prospects, want %d", name, len(p.prospects), c.want)
		}
		if q != nil && p.prospect("new", false) != q {
			t.Errorf("%s: the prospect is made twice", name)
		}
	}
	r, _ := newReceiver(t)
	p := fill(maxProspects, prospect{})
	r.proofs.prospects = p.prospects
	if r.Discover([]Peer{peerX(1)}); r.proofs.prospects["x"] != nil || len(r.proofs.prospects) != maxProspects {
		t.Error("a hint takes the place of another prospect")
	}
}

// TestProofs: a later incarnation is live, and another address if the stream is down.
func TestProofs(t *testing.T) {
	elsewhere := Peer{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}
	for name, c := range map[string]struct {
		q         prospect
		shown     Peer
		connected bool
		changed   bool
		claim     Peer // left after it
	}{
		"first":                       {prospect{}, peerX(5), false, true, Peer{}},
		"started now":                 {prospect{}, peerX(lastStart), false, true, Peer{}},
		"again":                       {prospect{proven: peerX(5)}, peerX(5), false, false, Peer{}},
		"an earlier incarnation":      {prospect{proven: peerX(5)}, peerX(4), false, false, Peer{}},
		"a later incarnation":         {prospect{proven: peerX(5)}, peerX(6), true, true, Peer{}},
		"elsewhere":                   {prospect{proven: peerX(5)}, elsewhere, false, true, Peer{}},
		"elsewhere, connected":        {prospect{proven: peerX(5)}, elsewhere, true, false, Peer{}},
		"claim of this incarnation":   {prospect{claim: peerX(5)}, peerX(5), false, true, Peer{}},
		"claim of an earlier one":     {prospect{claim: peerX(4)}, peerX(5), false, true, Peer{}},
		"claim of a later one":        {prospect{claim: peerX(6)}, peerX(5), false, true, peerX(6)},
		"first, its link already up":  {prospect{}, peerX(5), true, true, Peer{}},
		"claim after an earlier live": {prospect{proven: peerX(5), claim: peerX(6)}, peerX(5), true, false, peerX(6)},
	} {
		c.q.failures, c.q.refuted = 3, true
		r, q := newProver(t, c.q)
		if c.connected {
			linkUp(r)
		}
		if err := r.proved(c.shown); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := c.q.proven
		if c.changed {
			want = c.shown
		}
		if q.proven != want || r.proofs.changed != c.changed || woken(r.wake) != c.changed || q.claim != c.claim {
			t.Errorf("%s: proven %+v, claim %+v, changed %t", name, q.proven, q.claim, r.proofs.changed)
		}
		if q.failures != 0 || q.refuted {
			t.Errorf("%s: %d failures, refuted %t", name, q.failures, q.refuted)
		}
	}
	r, _ := newProver(t, prospect{})
	if err := r.proved(Peer{Node: "y", Incarnation: 1, Addr: proofAddr}); err != nil || r.proofs.changed {
		t.Errorf("a node that is not a prospect: %v, changed %t", err, r.proofs.changed)
	}
}

// TestProofFromTheFuture is refused, and the error has the distance.
func TestProofFromTheFuture(t *testing.T) {
	r, q := newProver(t, prospect{failures: 3})
	err := r.proved(peerX(uint64(at1000.Add(2 * time.Minute).UnixNano())))
	var early aheadError
	if !errors.As(err, &early) || early.ahead != 2*time.Minute || early.limit != time.Minute {
		t.Fatalf("%v", err)
	}
	if want := "its clock was 2m0s ahead of this node's when it started, more than max-clock-ahead (1m0s)"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if early.ahead += 400 * time.Millisecond; !strings.Contains(early.Error(), "was 2m0s ahead") {
		t.Errorf("not rounded to seconds: %s", early)
	}
	if q.live() || q.failures != 3 || r.proofs.changed || woken(r.wake) {
		t.Errorf("%+v", *q)
	}
}

// TestContactWithAPeer is fresh for three heartbeats.
func TestContactWithAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newProver(t, prospect{})
		if connected, fresh := r.contactWith("x"); connected || fresh {
			t.Error("contact without a link")
		}
		l := linkUp(r)
		beat := r.opt.heartbeat
		for ago, want := range map[time.Duration]bool{0: true, 3*beat - 1: true, 3 * beat: false, time.Hour: false} {
			l.contact.Store(time.Now().Add(-ago).UnixNano())
			if connected, fresh := r.contactWith("x"); !connected || fresh != want {
				t.Errorf("%s ago: connected %t, fresh %t", ago, connected, fresh)
			}
		}
		l.up = false
		l.contact.Store(time.Now().UnixNano())
		if connected, fresh := r.contactWith("x"); connected || fresh {
			t.Error("contact over a stream that is down")
		}
	})
}

// TestOrderOfProspects: live nodes come first, then callers, then those that failed least.
func TestOrderOfProspects(t *testing.T) {
	p := &proofs{prospects: map[string]*prospect{
		"failed 3": {failures: 3}, "failed 1": {failures: 1}, "new": {}, "caller": {claim: peerX(1), failures: 9}, "live": {proven: peerX(1), failures: 9},
	}}
	if got, want := p.order(), []string{"live", "caller", "new", "failed 1", "failed 3"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
