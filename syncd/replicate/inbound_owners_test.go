package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestFirstRequest checks that the first request goes to the live node that started first, before
// anything was received.
func TestFirstRequest(t *testing.T) {
	self := table.Owner{Node: "b", Incarnation: 5}
	for name, c := range map[string]struct {
		others             []Peer
		orphaned, fallback bool // of the request to x
	}{
		"x started first":            {[]Peer{{Node: "x", Incarnation: 1}}, true, true},
		"this node started first":    {[]Peer{{Node: "x", Incarnation: 9}}, true, false},
		"a third node started first": {[]Peer{{Node: "x", Incarnation: 2}, {Node: "y", Incarnation: 1}}, false, false},
		"a third node started last":  {[]Peer{{Node: "x", Incarnation: 2}, {Node: "y", Incarnation: 3}}, true, true},
	} {
		v := newView(nil, self, c.others)
		q := newInboundOwners(v, v.live["x"].owner(), time.Now())
		if q.requested.orphaned != c.orphaned || q.requested.fallback != c.fallback || q.permit != q.requested || q.serial == 0 || q.requested.peer != "x" {
			t.Errorf("%s: request: got %+v, want orphaned %t and fallback %t of peer x, in force, with a serial",
				name, q.requested, c.orphaned, c.fallback)
		}
	}
}

// TestRequestsAreMadeWhenTheyChange checks that a request is sent when it changes or when nodes
// have left since. The permit shrinks only after the answer.
func TestRequestsAreMadeWhenTheyChange(t *testing.T) {
	x := newInboundFixture(t)
	q := &x.in.owners
	want := func(what string, more bool, wanted *permit, departures uint64) {
		t.Helper()
		before := q.serial
		wasWoken(x.stream.wake)
		x.in.setRequest(wanted, departures, time.Unix(100, 0))
		if (q.serial != before) != more || wasWoken(x.stream.wake) != more {
			t.Errorf("%s: request: got serial %d after %d, want a new serial and the stream woken: %t", what, q.serial, before, more)
		}
		if more && !q.lastProgress.Equal(time.Unix(100, 0)) {
			t.Errorf("%s: start of the time for an answer: got %s, want %s", what, q.lastProgress, time.Unix(100, 0))
		}
		q.lastProgress = time.Time{}
	}
	of := func(orphaned, fallback bool, nodes ...string) *permit {
		return &permit{peer: "x", orphaned: orphaned, fallback: fallback, nodes: nodes}
	}
	want("first request", true, of(false, false), 1)
	want("the same", false, of(false, false), 1)
	want("nodes have left, empty request", false, of(false, false), 2)
	want("orphaned records", true, of(true, false), 2)
	want("the same", false, of(true, false), 2)
	want("nodes have left", true, of(true, false), 3)
	if q.resend {
		t.Error("request without rejections: got resend, want none")
	}
	want("the fallback sender only", false, of(true, true), 3)
	if !q.permit.fallback || !q.requested.fallback {
		t.Error("new fallback sender: got not in force, want in force")
	}
	q.rejectedUnrequested = true
	want("rejected records, no departure", false, of(true, true), 3)
	if !q.rejectedUnrequested {
		t.Error("rejected records: got forgotten, want stored")
	}
	want("rejected records, a departure", true, of(true, true), 4)
	if !q.resend || q.rejectedUnrequested {
		t.Errorf("request after a departure: got resend %t, rejectedUnrequested %t, want true and false",
			q.resend, q.rejectedUnrequested)
	}
	want("not sent yet", true, of(true, true), 4)
	if m := x.in.ownerRequestMessage(); !m.GetResend() || m.GetSerial() != q.serial || !m.GetOrphaned() {
		t.Errorf("message: got %v, want a resend, orphaned records and serial %d", m, q.serial)
	}
	want("a live node", true, of(true, true, "c"), 4)
	q.rejectedUnrequested = true
	want("fewer owners", true, of(false, false), 4)
	if q.resend || !q.rejectedUnrequested {
		t.Errorf("request without a departure: got resend %t, rejected records stored: %t, want none and stored", q.resend, q.rejectedUnrequested)
	}
	if p := q.permit; !p.orphaned || p.requests("c") {
		t.Errorf("permit before the answer: got %+v, want orphaned records and not node c", p)
	}
	x.in.ownerRequestMessage()
	wasWoken(x.r.wake)
	x.in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial - 1, Token: 6})
	if p := q.permit; !p.orphaned || q.token != 6 || !wasWoken(x.r.wake) {
		t.Errorf("permit after the answer to an older request: got %+v, token %d, want orphaned records, token 6, and the replicator woken",
			p, q.token)
	}
	q.serial++ // made and not sent yet
	x.in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial})
	if q.confirmedSerial == q.serial {
		t.Error("request that was not sent: got confirmed, want not confirmed")
	}
	x.in.ownerRequestMessage()
	x.in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial, Token: 7})
	if p := q.permit; p.orphaned || p.requests("c") || q.confirmedSerial != q.serial || q.token != 7 {
		t.Errorf("permit after the answer: got %+v, token %d, want neither orphaned records nor node c, token 7, and serial %d confirmed",
			p, q.token, q.serial)
	}
}

// TestRejectedRecordsAreRequestedLater: records are rejected, and their owner leaves while this node requests no orphaned records
// of the peer. The next request asks for all of them again: the peer may have received no request between the two.
func TestRejectedRecordsAreRequestedLater(t *testing.T) {
	x := newInboundFixture(t)
	q := &x.in.owners
	ask := func(orphaned bool, departures uint64) *mapsyncv1.OwnerRequest {
		x.in.setRequest(&permit{peer: "x", orphaned: orphaned}, departures, time.Unix(100, 0))
		return x.in.ownerRequestMessage()
	}
	ask(true, 1)
	q.rejectedUnrequested = true
	if ask(false, 1).GetResend() {
		t.Error("request without a departure: got resend, want none")
	}
	x.in.setRequest(&permit{peer: "x"}, 2, time.Unix(100, 0))
	if !ask(true, 2).GetResend() {
		t.Error("request after the owner has left: got none again, want all")
	}
}

// TestResendIsRequestedAgain checks that a request with the resend flag is repeated with the flag if
// the stream ends before the peer has confirmed it.
func TestResendIsRequestedAgain(t *testing.T) {
	x := newInboundFixture(t)
	q := &x.in.owners
	q.resend = true
	for _, step := range []string{"first", "after the stream has ended", "after it has ended again"} {
		if m := x.in.ownerRequestMessage(); !m.GetResend() {
			t.Errorf("%s: got no resend flag, want it", step)
		}
		if m := x.in.ownerRequestMessage(); m.GetResend() {
			t.Errorf("%s, sent on the same stream: got the resend flag again, want none", step)
		}
		q.reset()
	}
	x.in.ownerRequestMessage()
	x.in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial})
	q.reset()
	if m := x.in.ownerRequestMessage(); m.GetResend() {
		t.Error("confirmed: got the resend flag, want none")
	}
}

// TestResendFlagAfterReset checks that a stream that ends keeps a resend flag that was not sent, and adds none.
func TestResendFlagAfterReset(t *testing.T) {
	for _, want := range []bool{true, false} {
		x := newInboundFixture(t)
		x.in.owners.resend = want
		x.in.owners.reset()
		x.in.owners.reset()
		if got := x.in.ownerRequestMessage().GetResend(); got != want {
			t.Errorf("resend flag after two ended streams: got %t, want %t", got, want)
		}
	}
}

// TestPublishedSourcesAreBounded checks that at most maxSources nodes are published as sources of a map.
func TestPublishedSourcesAreBounded(t *testing.T) {
	x := newInboundFixture(t)
	var many []string
	for i := range maxSources + 1 {
		many = append(many, fmt.Sprintf("n%04d", i))
	}
	x.r.publishRoles(x.in.m, x.r.view.Load(), false, many)
	if got := *x.in.m.sources.Load(); len(got) != maxSources {
		t.Errorf("sources: got %d, want %d", len(got), maxSources)
	}
}

// TestSendAllPermitEndsWithSync checks that the permit for all owners lasts until the end of the
// full sync, beyond the answers to requests.
func TestSendAllPermitEndsWithSync(t *testing.T) {
	x := newInboundFixture(t)
	q := &x.in.owners
	all := *q.permit
	all.all = true
	q.permit = &all
	x.in.ownerRequestMessage()
	x.in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: q.serial})
	if !q.permit.all {
		t.Error("permit for all owners after an answer: got ended, want kept")
	}
	q.endSendAll()
	if q.permit.all || !all.all {
		t.Error("permit for all owners after the full sync: got kept or changed in place, want replaced")
	}
	was := q.permit
	if q.endSendAll(); q.permit != was {
		t.Error("end without a permit for all owners: got another permit, want the same")
	}
}

// TestRequestsComplete checks that the requests to a peer are complete once it has confirmed the
// newest request. An empty request needs no answer.
func TestRequestsComplete(t *testing.T) {
	x := newInboundFixture(t)
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
		x.stream.supportsOwnerRequests = c.takes
		q := &x.in.owners
		q.requested = &permit{orphaned: c.orphaned, nodes: c.nodes}
		if q.confirmedSerial = 0; c.confirmed {
			q.confirmedSerial = q.serial
		}
		if got := x.in.requestsComplete(); got != c.want {
			t.Errorf("%+v: complete: got %t, want %t", c, got, c.want)
		}
	}
	q := &x.in.owners
	q.sentSerial, q.confirmedSerial, q.sources, q.token = 3, 3, []string{"c"}, 8
	if q.reset(); q.sentSerial != 0 || q.confirmedSerial != 0 || q.sources != nil || q.token != 8 {
		t.Errorf("reset: got %+v, want serials 0, no sources and token 8", q)
	}
}

// TestSourcesOfAPeer checks that sources are sorted and bounded.
func TestSourcesOfAPeer(t *testing.T) {
	x := newInboundFixture(t)
	wasWoken(x.r.wake)
	x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{Sources: &mapsyncv1.Sources{Map: 1, Nodes: []string{"d", "c"}}}})
	if got := x.in.owners.sources; !slices.Equal(got, []string{"c", "d"}) || !wasWoken(x.r.wake) {
		t.Errorf("sources: got %v, want c and d, and the replicator woken", got)
	}
	var many []string
	for i := range maxSources + 1 {
		many = append(many, fmt.Sprint("n", i))
	}
	if err := x.in.handleSources(&mapsyncv1.Sources{Nodes: many}); err != nil || len(x.in.owners.sources) != maxSources {
		t.Errorf("sources: got error %v, %d nodes, want maxSources", err, len(x.in.owners.sources))
	}
	for _, name := range []string{"", strings.Repeat("n", wire.MaxName+1)} {
		if err := x.in.handleSources(&mapsyncv1.Sources{Nodes: []string{"c", name}}); !errors.Is(err, wire.ErrMalformed) || len(x.in.owners.sources) != maxSources {
			t.Errorf("name of %d bytes: got error %v, %d nodes, want a malformed message", len(name), err, len(x.in.owners.sources))
		}
	}
}

// TestMapSource checks which peers serve a map, may serve it soon, are unreachable, or may be the
// fallback sender.
func TestMapSource(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		up         bool
		state      State
		good       time.Duration // time since it served the map
		answered   bool
		moved      time.Duration // time since its last batch
		want       string
		stalled    time.Duration // time from now until it may be a candidate again
		wantStalls bool
	}{
		"serves":                          {up: true, state: StateCaughtUp, answered: true, want: "serving mayServe candidate"},
		"sends":                           {up: true, state: StateSyncing, answered: true, want: "serving mayServe candidate"},
		"answer missing":                  {up: true, state: StateCaughtUp, moved: 10 * time.Second, want: "serving mayServe candidate"},
		"answer missing for long":         {up: true, state: StateCaughtUp, moved: 10*time.Second + 1, want: "serving mayServe", wantStalls: true},
		"answered long ago":               {up: true, state: StateCaughtUp, answered: true, moved: time.Hour, want: "serving mayServe candidate"},
		"stalled before":                  {up: true, state: StateCaughtUp, answered: true, stalled: 1, want: "serving mayServe"},
		"stalled, with an answer missing": {up: true, state: StateCaughtUp, stalled: 1, moved: time.Hour, want: "serving mayServe"},
		"stalled, and the pause is over":  {up: true, state: StateCaughtUp, answered: true, stalled: -1, want: "serving mayServe candidate"},
		"no stream":                       {state: StateCaughtUp, want: ""},
		"stream broke just now":           {state: StateWaiting, good: 2*time.Second - 1, want: "mayServe candidate"},
		"stream broke, answer missing":    {state: StateWaiting, good: time.Second, moved: time.Hour, want: "mayServe candidate"},
		"broke":                           {state: StateWaiting, good: 2 * time.Second, want: "unreachable"},
		"connected, not answered":         {up: true, state: StateWaiting, good: time.Second, want: "mayServe candidate"},
		"failed just now":                 {up: true, state: StateFailed, good: 2*time.Second - 1, want: ""},
		"failed":                          {up: true, state: StateFailed, good: 2 * time.Second, want: "unreachable"},
		"refused":                         {up: true, state: StateRefused, good: time.Hour, want: ""},
		"without the map":                 {up: true, state: StatePending, good: time.Hour, want: ""},
	} {
		x := newInboundFixture(t)
		x.stream.up, x.stream.supportsOwnerRequests, x.in.state, x.in.fullSyncDone = c.up, true, c.state, c.answered
		q := &x.in.owners
		q.lastServing, q.lastProgress = now.Add(-c.good), now.Add(-c.moved)
		q.sources, q.via = []string{"c"}, "d"
		if c.stalled != 0 {
			q.candidateAfter = now.Add(c.stalled)
		}
		if c.answered {
			q.confirmedSerial = q.serial
		}
		was := q.candidateAfter
		p := x.stream.mapSource(x.in.m, now)
		if got := describeSource(&p); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if stalls := q.candidateAfter != was; stalls != c.wantStalls || stalls && q.candidateAfter.Sub(now) != stalledCandidatePause {
			t.Errorf("%s: stalled: got %t until %s, want %t, and %s if so",
				name, stalls, q.candidateAfter.Sub(now), c.wantStalls, stalledCandidatePause)
		}
		if p.serving && !q.lastServing.Equal(now) || p.requestsComplete != c.answered || p.fullSyncDone != c.answered || p.via != "d" || !slices.Equal(p.sources, q.sources) || p.peer != x.stream.peer || p.stream != x.stream {
			t.Errorf("%s: source: got %+v, want the stream of x, via d, sources %v, requests and full sync done: %t, "+
				"lastServing now if serving", name, p, q.sources, c.answered)
		}
	}
	// A map without a subscription yet.
	x := newInboundFixture(t)
	again, err := newLocalMap(testMap, x.in.m.layout, x.tb)
	if err != nil {
		t.Fatalf("new local map: got error %v, want nil", err)
	}
	for after, want := range map[time.Duration]string{2*time.Second - 1: "mayServe candidate", 2 * time.Second: "unreachable"} {
		for _, m := range []*localMap{again, {name: "new"}} {
			if p := x.stream.mapSource(m, x.stream.firstSeen.Add(after)); describeSource(&p) != want {
				t.Errorf("map %s, first seen %s ago: got %q, want %q", m.name, after, describeSource(&p), want)
			}
		}
	}
}

func describeSource(p *mapSource) string {
	var all []string
	for _, f := range []struct {
		name string
		is   bool
	}{{"serving", p.serving}, {"mayServe", p.mayServe}, {"unreachable", p.unreachable}, {"candidate", p.candidate}} {
		if f.is {
			all = append(all, f.name)
		}
	}
	return strings.Join(all, " ")
}

// TestRelays checks which peer sends the records of an unreachable node.
func TestRelays(t *testing.T) {
	peer := func(name string, good, lost bool, via string, sources ...string) mapSource {
		return mapSource{peer: table.Owner{Node: name}, serving: good, unreachable: lost, via: via, sources: sources}
	}
	for name, c := range map[string]struct {
		all  []mapSource
		want string
	}{
		"all are reachable":                        {[]mapSource{peer("a", true, false, "", "c"), peer("c", true, false, "a", "a")}, "map[]"},
		"one peer receives it":                     {[]mapSource{peer("a", true, false, "", "c"), peer("c", false, true, "")}, "map[a:[c]]"},
		"no peer receives it":                      {[]mapSource{peer("a", true, false, "", "d"), peer("c", false, true, "a")}, "map[]"},
		"the peer that receives it is unreachable": {[]mapSource{peer("a", false, true, "", "c"), peer("c", false, true, "")}, "map[]"},
		"the first of two peers":                   {[]mapSource{peer("a", true, false, "", "c"), peer("b", true, false, "", "c"), peer("c", false, true, "")}, "map[a:[c]]"},
		"the earlier choice":                       {[]mapSource{peer("a", true, false, "", "c"), peer("b", true, false, "", "c"), peer("c", false, true, "b")}, "map[b:[c]]"},
		"the earlier choice is unreachable":        {[]mapSource{peer("a", true, false, "", "c"), peer("b", false, false, "", "c"), peer("c", false, true, "b")}, "map[a:[c]]"},
		"two are unreachable":                      {[]mapSource{peer("d", false, true, ""), peer("a", true, false, "", "c", "d"), peer("c", false, true, "")}, "map[a:[c d]]"},
	} {
		got := chooseRelays(c.all)
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("%s: relays: got %s, want %s", name, s, c.want)
		}
		for _, p := range c.all {
			want := ""
			for via, nodes := range got {
				if slices.Contains(nodes, p.peer.Node) {
					want = via
				}
			}
			if p.via != want {
				t.Errorf("%s: %s: via: got %q, want %q", name, p.peer.Node, p.via, want)
			}
		}
	}
	// An earlier choice that does not send what was requested gives way to a candidate.
	stalled := []mapSource{peer("a", true, false, "", "c"), peer("b", true, false, "", "c"), peer("c", false, true, "b")}
	stalled[0].candidate = true
	if got := fmt.Sprint(chooseRelays(stalled)); got != "map[a:[c]]" {
		t.Errorf("relays with one candidate: got %s, want map[a:[c]]", got)
	}
	// At most maxRequested nodes in a request.
	all := []mapSource{peer("a", true, false, ""), peer("b", true, false, "")}
	for i := range maxRequested + 1 {
		n := fmt.Sprintf("n%03d", i)
		all = append(all, peer(n, false, true, ""))
		all[0].sources, all[1].sources = append(all[0].sources, n), append(all[1].sources, n)
	}
	if got := chooseRelays(all); len(got["a"]) != maxRequested || !slices.Equal(got["b"], []string{fmt.Sprintf("n%03d", maxRequested)}) {
		t.Errorf("relays: got %d through a, %v through b, want %d and n%03d", len(got["a"]), got["b"], maxRequested, maxRequested)
	}
}
