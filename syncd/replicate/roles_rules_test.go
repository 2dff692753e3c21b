package replicate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestFirstRequest: before anything was received, the fallback sender is the live node that started
// first, whatever it serves.
func TestFirstRequest(t *testing.T) {
	self := table.Owner{Node: "b", Incarnation: 5}
	for name, c := range map[string]struct {
		others             []Peer
		orphaned, fallback bool // of the request to x
	}{
		"x is first":            {[]Peer{{Node: "x", Incarnation: 1}}, true, true},
		"this node is first":    {[]Peer{{Node: "x", Incarnation: 9}}, true, false},
		"a third node is first": {[]Peer{{Node: "x", Incarnation: 2}, {Node: "y", Incarnation: 1}}, false, false},
		"a third node is not":   {[]Peer{{Node: "x", Incarnation: 2}, {Node: "y", Incarnation: 3}}, true, true},
	} {
		v := newView(nil, self, c.others)
		q := newRequesting(v, v.live["x"].owner(), time.Now())
		if q.wanted.orphaned != c.orphaned || q.wanted.fallback != c.fallback || q.permit != q.wanted || q.serial == 0 || q.wanted.peer != "x" {
			t.Errorf("%s: %+v", name, q.wanted)
		}
	}
}

// TestRequestsAreMadeWhenTheyChange: a request goes out when it is another one, or when nodes have
// left since; what is permitted shrinks only once it is answered.
func TestRequestsAreMadeWhenTheyChange(t *testing.T) {
	x := newStreamless(t)
	q := &x.in.requesting
	want := func(what string, more bool, wanted *permit, departures uint64) {
		t.Helper()
		before := q.serial
		woken(x.l.wake)
		x.in.request(wanted, departures, time.Unix(100, 0))
		if (q.serial != before) != more || woken(x.l.wake) != more {
			t.Errorf("%s: request %d after %d", what, q.serial, before)
		}
		if more && !q.moved.Equal(time.Unix(100, 0)) {
			t.Errorf("%s: the time for an answer began at %s", what, q.moved)
		}
		q.moved = time.Time{}
	}
	of := func(orphaned, fallback bool, nodes ...string) *permit {
		return &permit{peer: "x", orphaned: orphaned, fallback: fallback, nodes: nodes}
	}
	want("the first", true, of(false, false), 1)
	want("the same", false, of(false, false), 1)
	want("nodes have left, and nothing is requested of them", false, of(false, false), 2)
	want("orphaned records", true, of(true, false), 2)
	want("the same", false, of(true, false), 2)
	want("nodes have left", true, of(true, false), 3)
	if q.again {
		t.Error("all is requested again, and nothing was set aside")
	}
	want("the role alone", false, of(true, true), 3)
	if !q.permit.fallback || !q.wanted.fallback {
		t.Error("the new role does not count")
	}
	q.withheld = true
	want("what was set aside is still another node's", false, of(true, true), 3)
	if !q.withheld {
		t.Error("it is forgotten that records were set aside")
	}
	want("it may be orphaned", true, of(true, true), 4)
	if !q.again || q.withheld {
		t.Errorf("again %t, withheld %t", q.again, q.withheld)
	}
	want("until it is sent", true, of(true, true), 4)
	if m := x.in.ownerRequest(); !m.GetAgain() || m.GetSerial() != q.serial || !m.GetOrphaned() {
		t.Errorf("sent %v", m)
	}
	want("a live node", true, of(true, true, "c"), 4)
	q.withheld = true
	want("fewer", true, of(false, false), 4)
	if q.again {
		t.Error("no node has left, and all is requested again")
	}
	if p := q.permit; !p.orphaned || !p.requests("c") {
		t.Errorf("permitted %+v before the answer", p)
	}
	x.in.ownerRequest()
	woken(x.r.wake)
	x.in.takeOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial - 1, Token: 6})
	if p := q.permit; !p.orphaned || q.token != 6 || !woken(x.r.wake) {
		t.Errorf("after the answer to an older request: permitted %+v, token %d", p, q.token)
	}
	q.serial++ // made, and not sent yet
	x.in.takeOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial})
	if q.confirmed == q.serial {
		t.Error("a request that was not sent counts as answered")
	}
	x.in.ownerRequest()
	x.in.takeOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial, Token: 7})
	if p := q.permit; p.orphaned || p.requests("c") || q.confirmed != q.serial || q.token != 7 {
		t.Errorf("after the answer: permitted %+v, token %d", p, q.token)
	}
}

// TestPermitOfAllOwnersEndsWithTheSync: it outlasts the answers to requests.
func TestPermitOfAllOwnersEndsWithTheSync(t *testing.T) {
	x := newStreamless(t)
	q := &x.in.requesting
	all := *q.permit
	all.all = true
	q.permit = &all
	x.in.ownerRequest()
	x.in.takeOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial})
	if !q.permit.all {
		t.Error("the answer to a request ends the permit")
	}
	q.endAll()
	if q.permit.all || !all.all {
		t.Error("the permit outlasts the sync, or was changed in place")
	}
	was := q.permit
	if q.endAll(); q.permit != was {
		t.Error("another permit, though nothing has ended")
	}
}

// TestSettledRequests: an inbound map stream is settled once a peer that takes requests has confirmed
// the request. An empty request needs no answer.
func TestSettledRequests(t *testing.T) {
	x := newStreamless(t)
	for _, c := range []struct {
		takes, orphaned bool
		nodes           []string
		confirmed, want bool
	}{
		{true, true, nil, false, false},
		{true, true, nil, true, true},
		{true, false, []string{"c"}, false, false},
		{true, false, []string{"c"}, true, true},
		{true, false, nil, false, true},
		{false, true, []string{"c"}, false, true},
	} {
		x.l.ownerRequests = c.takes
		q := &x.in.requesting
		q.wanted = &permit{orphaned: c.orphaned, nodes: c.nodes}
		if q.confirmed = 0; c.confirmed {
			q.confirmed = q.serial
		}
		if got := x.in.settled(); got != c.want {
			t.Errorf("%+v: settled %t", c, got)
		}
	}
	q := &x.in.requesting
	q.sent, q.confirmed, q.sources, q.token = 3, 3, []string{"c"}, 8
	if q.reset(); q.sent != 0 || q.confirmed != 0 || q.sources != nil || q.token != 8 {
		t.Errorf("a new stream begins with %+v", q)
	}
}

// TestSourcesOfAPeer are sorted and bounded.
func TestSourcesOfAPeer(t *testing.T) {
	x := newStreamless(t)
	woken(x.r.wake)
	x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{Sources: &mapsyncv1.Sources{Map: 1, Nodes: []string{"d", "c"}}}})
	if got := x.in.requesting.sources; !slices.Equal(got, []string{"c", "d"}) || !woken(x.r.wake) {
		t.Errorf("sources %v", got)
	}
	var many []string
	for i := range maxSources + 1 {
		many = append(many, fmt.Sprint("n", i))
	}
	x.in.takeSources(&mapsyncv1.Sources{Nodes: many})
	if n := len(x.in.requesting.sources); n != maxSources {
		t.Errorf("%d sources", n)
	}
}

// TestWhatAPeerIsGoodFor is the rule of which peers serve a map, may do so in a moment, are lost, or
// may be the fallback sender.
func TestWhatAPeerIsGoodFor(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		up         bool
		state      State
		good       time.Duration // since it served the map
		answered   bool
		moved      time.Duration // since it sent the last batch
		want       string
		stalled    time.Duration // before it may be a candidate again, from now
		wantStalls bool
	}{
		"serves":                    {up: true, state: StateCaughtUp, answered: true, want: "good hopeful candidate"},
		"sends":                     {up: true, state: StateSyncing, answered: true, want: "good hopeful candidate"},
		"owes an answer":            {up: true, state: StateCaughtUp, moved: 10 * time.Second, want: "good hopeful candidate"},
		"owes an answer for long":   {up: true, state: StateCaughtUp, moved: 10*time.Second + 1, want: "good hopeful", wantStalls: true},
		"has answered, long ago":    {up: true, state: StateCaughtUp, answered: true, moved: time.Hour, want: "good hopeful candidate"},
		"stalled before":            {up: true, state: StateCaughtUp, answered: true, stalled: 1, want: "good hopeful"},
		"stalled, and moves on":     {up: true, state: StateCaughtUp, stalled: 1, moved: time.Hour, want: "good hopeful"},
		"stalled, and that is over": {up: true, state: StateCaughtUp, answered: true, stalled: -1, want: "good hopeful candidate"},
		"no stream":                 {state: StateCaughtUp, want: ""},
		"broke just now":            {state: StateWaiting, good: 2*time.Second - 1, want: "hopeful candidate"},
		"broke, and owes an answer": {state: StateWaiting, good: time.Second, moved: time.Hour, want: "hopeful candidate"},
		"broke":                     {state: StateWaiting, good: 2 * time.Second, want: "lost"},
		"up and not answered":       {up: true, state: StateWaiting, good: time.Second, want: "hopeful candidate"},
		"failed just now":           {up: true, state: StateFailed, good: 2*time.Second - 1, want: ""},
		"failed":                    {up: true, state: StateFailed, good: 2 * time.Second, want: "lost"},
		"refused":                   {up: true, state: StateRefused, good: time.Hour, want: ""},
		"without the map":           {up: true, state: StatePending, good: time.Hour, want: ""},
	} {
		x := newStreamless(t)
		x.l.up, x.l.ownerRequests, x.in.state, x.in.synced = c.up, true, c.state, c.answered
		q := &x.in.requesting
		q.good, q.moved = now.Add(-c.good), now.Add(-c.moved)
		q.sources, q.via = []string{"c"}, "d"
		if c.stalled != 0 {
			q.stalled = now.Add(c.stalled)
		}
		if c.answered {
			q.confirmed = q.serial
		}
		was := q.stalled
		p := x.l.inbound(x.in.m, now)
		if got := describe(&p); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if stalls := q.stalled != was; stalls != c.wantStalls || stalls && q.stalled.Sub(now) != stallPause {
			t.Errorf("%s: stalls %t until %s", name, stalls, q.stalled.Sub(now))
		}
		if p.good && !q.good.Equal(now) || p.settled != c.answered || p.synced != c.answered || p.via != "d" || !slices.Equal(p.sources, q.sources) || p.peer != x.l.peer || p.l != x.l {
			t.Errorf("%s: %+v", name, p)
		}
	}
	// A map that the link has no subscription for yet.
	x := newStreamless(t)
	again, err := newLocalMap(testMap, x.in.m.layout, x.tb)
	if err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]string{2*time.Second - 1: "hopeful candidate", 2 * time.Second: "lost"} {
		for _, m := range []*localMap{again, {name: "new"}} {
			if p := x.l.inbound(m, x.l.met.Add(after)); describe(&p) != want {
				t.Errorf("map %s, met before %s: %q, want %q", m.name, after, describe(&p), want)
			}
		}
	}
}

func describe(p *inboundMap) string {
	var all []string
	for _, f := range []struct {
		name string
		is   bool
	}{{"good", p.good}, {"hopeful", p.hopeful}, {"lost", p.lost}, {"candidate", p.candidate}} {
		if f.is {
			all = append(all, f.name)
		}
	}
	return strings.Join(all, " ")
}

// TestRelays is the rule of which peer sends the records of one that is lost.
func TestRelays(t *testing.T) {
	peer := func(name string, good, lost bool, via string, sources ...string) inboundMap {
		return inboundMap{peer: table.Owner{Node: name}, good: good, lost: lost, via: via, sources: sources}
	}
	for name, c := range map[string]struct {
		all  []inboundMap
		want string
	}{
		"none is lost":              {[]inboundMap{peer("a", true, false, "", "c"), peer("c", true, false, "a", "a")}, "map[]"},
		"one receives it":           {[]inboundMap{peer("a", true, false, "", "c"), peer("c", false, true, "")}, "map[a:[c]]"},
		"none receives it":          {[]inboundMap{peer("a", true, false, "", "d"), peer("c", false, true, "a")}, "map[]"},
		"who receives it is lost":   {[]inboundMap{peer("a", false, true, "", "c"), peer("c", false, true, "")}, "map[]"},
		"the first of two":          {[]inboundMap{peer("a", true, false, "", "c"), peer("b", true, false, "", "c"), peer("c", false, true, "")}, "map[a:[c]]"},
		"the one of before":         {[]inboundMap{peer("a", true, false, "", "c"), peer("b", true, false, "", "c"), peer("c", false, true, "b")}, "map[b:[c]]"},
		"the one of before is lost": {[]inboundMap{peer("a", true, false, "", "c"), peer("b", false, false, "", "c"), peer("c", false, true, "b")}, "map[a:[c]]"},
		"two are lost":              {[]inboundMap{peer("d", false, true, ""), peer("a", true, false, "", "c", "d"), peer("c", false, true, "")}, "map[a:[c d]]"},
	} {
		got := relay(c.all)
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
		for _, p := range c.all {
			want := ""
			for via, nodes := range got {
				if slices.Contains(nodes, p.peer.Node) {
					want = via
				}
			}
			if p.via != want {
				t.Errorf("%s: %s comes through %q, want %q", name, p.peer.Node, p.via, want)
			}
		}
	}
	// No more than fit in a request.
	all := []inboundMap{peer("a", true, false, ""), peer("b", true, false, "")}
	for i := range maxRequested + 1 {
		n := fmt.Sprintf("n%03d", i)
		all = append(all, peer(n, false, true, ""))
		all[0].sources, all[1].sources = append(all[0].sources, n), append(all[1].sources, n)
	}
	if got := relay(all); len(got["a"]) != maxRequested || !slices.Equal(got["b"], []string{fmt.Sprintf("n%03d", maxRequested)}) {
		t.Errorf("%d through a, %v through b", len(got["a"]), got["b"])
	}
}
