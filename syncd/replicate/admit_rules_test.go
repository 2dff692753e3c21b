package replicate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestGreetingsAreChecked: a greeting of another protocol, without a name, or beyond its bound.
func TestGreetingsAreChecked(t *testing.T) {
	r, _ := newReceiver(t)
	greeting := func(change func(*mapsyncv1.Hello)) *mapsyncv1.Hello {
		h := &mapsyncv1.Hello{ProtocolVersion: protocolVersion, Self: &mapsyncv1.Incarnation{Node: "x", Number: 3}}
		change(h)
		return h
	}
	sized := func(n int) func(*mapsyncv1.Hello) {
		return func(h *mapsyncv1.Hello) {
			for proto.Size(h) < n {
				h.Address += strings.Repeat("a", max(1, n-proto.Size(h)-3))
			}
		}
	}
	for name, c := range map[string]struct {
		hello *mapsyncv1.Hello
		code  codes.Code
	}{
		"right":           {greeting(func(*mapsyncv1.Hello) {}), codes.OK},
		"as large as may": {greeting(sized(maxHelloBytes)), codes.OK},
		"too large":       {greeting(sized(maxHelloBytes + 1)), codes.InvalidArgument},
		"none":            {nil, codes.InvalidArgument},
		"another version": {greeting(func(h *mapsyncv1.Hello) { h.ProtocolVersion++ }), codes.FailedPrecondition},
		"no name":         {greeting(func(h *mapsyncv1.Hello) { h.Self.Node = "" }), codes.InvalidArgument},
	} {
		o, caller, err := r.checkHello(t.Context(), c.hello)
		if status.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (o != target || caller != anyCaller) {
			t.Errorf("%s: %v, %+v", name, o, caller)
		}
	}
}

// TestRoomForStreams: of as many streams of one holder as may be, the oldest ends for the next, and one
// that observes before one that replicates.
func TestRoomForStreams(t *testing.T) {
	for name, c := range map[string]struct {
		streams, observers int
		ends               int // index; -1: none. The oldest is 0; observers are the newest.
	}{
		"room":          {maxStreams - 1, 0, -1},
		"no room":       {maxStreams, 0, 0},
		"an observer":   {maxStreams, 1, maxStreams - 1},
		"two observers": {maxStreams, 2, maxStreams - 2},
		"all observe":   {maxStreams, maxStreams, 0},
	} {
		for range 5 { // the order of a map is random
			r, _ := newReceiver(t)
			r.ctx = t.Context()
			begun := time.Now()
			var all []context.Context
			for i := range c.streams {
				s, ctx := enter(t, r, target)
				s.begun = begun.Add(time.Duration(i))
				s.observing.Store(i >= c.streams-c.observers)
				all = append(all, ctx)
			}
			another, anotherCtx := enter(t, r, other)
			another.begun = begun.Add(-time.Hour)
			ended, _ := enter(t, r, target) // and is still registered
			ended.begun = begun.Add(-time.Hour)
			ended.observing.Store(true)
			ended.cancel(errPeerGone)
			r.makeRoom("x")
			for i, ctx := range all {
				if ends := errors.Is(context.Cause(ctx), errReplaced); ends != (i == c.ends) {
					t.Fatalf("%s: stream %d ends: %t", name, i, ends)
				}
			}
			if anotherCtx.Err() != nil {
				t.Errorf("%s: the stream of another holder ends", name)
			}
		}
	}
	for want, s := range map[string]*session{
		"cert": {caller: Caller{Certificate: "cert"}, target: table.Owner{Node: "X"}}, "lb1.example": {target: table.Owner{Node: "LB1.example."}},
	} {
		if got := s.holder(); got != want {
			t.Errorf("held by %q, want %q", got, want)
		}
	}
}

// TestAddressesOfCallers: without the port, which says nothing.
func TestAddressesOfCallers(t *testing.T) {
	for want, addr := range map[string]net.Addr{
		"10.0.0.1": &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}, "/run/x": &net.UnixAddr{Name: "/run/x", Net: "unix"}, "": nil,
	} {
		if got := remoteOf(peer.NewContext(t.Context(), &peer.Peer{Addr: addr})); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := remoteOf(t.Context()); got != "" {
		t.Errorf("no peer: %q", got)
	}
}

// TestObserversAreListed by the time of their connection, with the maps that they receive.
func TestObserversAreListed(t *testing.T) {
	r, _ := newReceiver(t)
	r.ctx = t.Context()
	begun := time.Now()
	for i, name := range []string{"late", "b", "a", "replica"} {
		s, _ := enter(t, r, table.Owner{Node: name})
		s.observing.Store(name != "replica")
		if s.begun = begun; i == 0 {
			s.begun = begun.Add(time.Second)
		}
		for _, m := range []struct {
			name              string
			serving, unwanted bool
		}{{"z", true, false}, {"c", true, false}, {"pending", false, false}, {"over", true, true}} {
			f := newFeed(s, &mapsyncv1.MapSubscription{Name: m.name}, allOrphaned)
			f.serving.Store(m.serving)
			f.unwanted.Store(m.unwanted)
			s.feeds = append(s.feeds, f)
		}
	}
	var got []string
	for _, o := range r.Observers() {
		got = append(got, o.Name+fmt.Sprint(o.Maps))
	}
	if !slices.Equal(got, []string{"a[c z]", "b[c z]", "late[c z]"}) {
		t.Errorf("%q", got)
	}
	if s := r.Stats(); s.Observers != 3 || s.Serving != 1 {
		t.Errorf("%d observers, %d replicas", s.Observers, s.Serving)
	}
}

// TestPermissionsThatEnd: a stream whose caller may do less than before ends, and no other.
func TestPermissionsThatEnd(t *testing.T) {
	both, replica, observer, none := Caller{Replica: true, Observer: true}, Caller{Replica: true}, Caller{Observer: true}, Caller{}
	denied := errors.New("unknown certificate")
	for _, c := range []struct {
		was, now Caller
		err      error
		ends     bool
	}{
		{both, both, nil, false},
		{both, replica, nil, true},
		{both, observer, nil, true},
		{replica, both, nil, false},
		{replica, replica, nil, false},
		{observer, observer, nil, false},
		{observer, replica, nil, true},
		{replica, none, nil, true},
		{both, both, denied, true},
		{both, none, denied, true},
	} {
		r, _ := newReceiver(t)
		r.ctx = t.Context()
		r.opt.Authenticate = func(context.Context, string) (Caller, error) { return c.now, c.err }
		s, ctx := enter(t, r, target)
		s.caller = c.was
		s.identify = func() (Caller, error) { return c.now, c.err }
		r.Reauthorise()
		if ends := ctx.Err() != nil; ends != c.ends {
			t.Errorf("%+v to %+v, %v: ends %t", c.was, c.now, c.err, ends)
		}
		if c.ends && c.err == nil && status.Code(context.Cause(ctx)) != codes.PermissionDenied {
			t.Errorf("ends with %v", context.Cause(ctx))
		}
	}
}

// TestAccessThatChanges: the map is another one to its streams, and the same to peers that resume.
func TestAccessThatChanges(t *testing.T) {
	r, _ := newReceiver(t)
	was := r.localMaps()[testMap]
	access := Access{Read: only("x"), Write: only("y")}
	r.opt.Access = func(string) Access { return access }
	if err := r.UpdateAccess("none"); err != nil || len(r.localMaps()) != 1 {
		t.Errorf("of no map: %v", err)
	}
	woken(r.wake)
	if err := r.UpdateAccess(testMap); err != nil {
		t.Fatal(err)
	}
	m := r.localMaps()[testMap]
	if m == was || m.generation != was.generation || m.table != was.table || !woken(r.wake) {
		t.Errorf("generation %d, was %d", m.generation, was.generation)
	}
	a := &m.access
	if !a.reads("x") || a.reads("y") || a.writes("x") || !a.writes("y") || m.excluded("y") || !m.excluded("x") {
		t.Error("the new permissions do not count")
	}
	for _, c := range []struct {
		self, peer string
		withheld   bool
	}{{"y", "x", false}, {"x", "x", true}, {"y", "y", true}} {
		if got := m.withheld(c.self, c.peer); got != c.withheld {
			t.Errorf("withheld from %s by %s: %t", c.peer, c.self, got)
		}
	}
	if (&Access{}).reads("z") != true || (&Access{}).writes("z") != true {
		t.Error("without settings all may read and write")
	}
	// A map that is added while settings change gets the new ones, or the change finds it.
	r.RemoveMap(testMap)
	r.opt.Access = func(string) Access {
		if r.mu.TryLock() {
			t.Error("the permissions of a new map are read without the lock")
		}
		return Access{}
	}
	if err := r.AddMap(testMap, was.layout, was.table); err != nil || r.localMaps()[testMap].access.Read != nil {
		t.Errorf("added again: %v", err)
	}
}

// TestContactsOfANode: the nodes that are or were peers, with their streams.
func TestContactsOfANode(t *testing.T) {
	r, all := cluster(t, Peer{Node: "x", Incarnation: 3}, Peer{Node: "y", Incarnation: 4})
	r.ctx = t.Context()
	at := time.Unix(100, 5)
	all["x"].l.contact.Store(at.UnixNano())
	all["y"].l.up = false
	contacts := func() string {
		var list []string
		for _, c := range r.Contacts() {
			list = append(list, fmt.Sprint(c.Node, c.Live, c.Connected, c.Serving, c.Last.Equal(at), c.Last.IsZero()))
		}
		slices.Sort(list)
		return strings.Join(list, "; ")
	}
	if got, want := contacts(), "xtrue true false true false; ytrue false false false true"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	enter(t, r, target)
	old, _ := enter(t, r, table.Owner{Node: "y", Incarnation: 3})
	watching, _ := enter(t, r, table.Owner{Node: "y", Incarnation: 4})
	watching.observing.Store(true)
	enter(t, r, table.Owner{Node: "stranger", Incarnation: 4})
	if got, want := contacts(), "xtrue true true true false; ytrue false false false true"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	old.target.Incarnation = 4
	r.SetPeers([]Peer{{Node: "y", Incarnation: 4}})
	if got, want := contacts(), "xfalse false false true false; ytrue false true false true"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
