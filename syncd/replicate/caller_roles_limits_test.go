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
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestHelloValidation checks the Hello: its size, the protocol version and the node name.
func TestHelloValidation(t *testing.T) {
	r, _ := newTestReplicator(t)
	greeting := func(change func(*mapsyncv1.Hello)) *mapsyncv1.Hello {
		h := &mapsyncv1.Hello{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: "x", Number: 3}}
		change(h)
		return h
	}
	sized := func(n int) func(*mapsyncv1.Hello) {
		return func(h *mapsyncv1.Hello) {
			const tag = 8191 // of a later version
			fill := protowire.AppendTag(nil, tag, protowire.BytesType)
			room := n - proto.Size(h) - len(fill) - 2
			h.ProtoReflect().SetUnknown(protowire.AppendBytes(fill, make([]byte, room)))
		}
	}
	for name, c := range map[string]struct {
		hello *mapsyncv1.Hello
		code  codes.Code
	}{
		"right":                    {greeting(func(*mapsyncv1.Hello) {}), codes.OK},
		"the maximum size":         {greeting(sized(maxHelloBytes)), codes.OK},
		"above the maximum size":   {greeting(sized(maxHelloBytes + 1)), codes.InvalidArgument},
		"none":                     {nil, codes.InvalidArgument},
		"another protocol version": {greeting(func(h *mapsyncv1.Hello) { h.ProtocolVersion = supportedVersions.highest + 1 }), codes.FailedPrecondition},
		"also another version":     {greeting(func(h *mapsyncv1.Hello) { h.MaxProtocolVersion = supportedVersions.highest + 1 }), codes.OK},
		"no range of versions":     {greeting(func(h *mapsyncv1.Hello) { h.ProtocolVersion, h.MaxProtocolVersion = 2, 1 }), codes.InvalidArgument},
		"no node name":             {greeting(func(h *mapsyncv1.Hello) { h.Self.Node = "" }), codes.InvalidArgument},
		"name of two lines":        {greeting(func(h *mapsyncv1.Hello) { h.Self.Node = "x\ny" }), codes.InvalidArgument},
		"address":                  {greeting(func(h *mapsyncv1.Hello) { h.Address = "10.0.0.2:7947" }), codes.OK},
		"address of two lines":     {greeting(func(h *mapsyncv1.Hello) { h.Address = "10.0.0.2\n:7947" }), codes.InvalidArgument},
		"address without a port":   {greeting(func(h *mapsyncv1.Hello) { h.Address = "10.0.0.2" }), codes.InvalidArgument},
	} {
		got, err := r.checkHello(t.Context(), c.hello)
		if status.Code(err) != c.code {
			t.Errorf("%s: check hello: got error %v, want code %s", name, err, c.code)
		}
		version := supportedVersions.highest
		if err == nil && got != (admitted{node: target, caller: anyCaller, version: version}) {
			t.Errorf("%s: check hello: got %+v, want node %v, any caller and version %d", name, got, target, version)
		}
	}
}

// TestStreamLimitEndsOldestStream checks that a new stream above the limit of a caller ends its
// oldest observer, else its oldest replica.
func TestStreamLimitEndsOldestStream(t *testing.T) {
	for name, c := range map[string]struct {
		streams, observers int
		// ends is the index of the stream that ends; -1: none. 0 is the oldest, and observers are the newest.
		ends int
	}{
		"room":           {maxStreams - 1, 0, -1},
		"replicas only":  {maxStreams, 0, 0},
		"one observer":   {maxStreams, 1, maxStreams - 1},
		"two observers":  {maxStreams, 2, maxStreams - 2},
		"observers only": {maxStreams, maxStreams, 0},
	} {
		for range 5 { // the order of iteration of a map is random
			r, _ := newTestReplicator(t)
			r.ctx = t.Context()
			begun := time.Now()
			ended, _ := enterStream(t, r, target) // it has ended and is still registered
			ended.startedAt = begun.Add(-time.Hour)
			ended.observing.Store(true)
			ended.cancel(errPeerGone)
			var all []context.Context
			for i := range c.streams {
				s, ctx := enterStream(t, r, target)
				s.startedAt = begun.Add(time.Duration(i))
				s.observing.Store(i >= c.streams-c.observers)
				all = append(all, ctx)
			}
			another, anotherCtx := enterStream(t, r, other)
			another.startedAt = begun.Add(-time.Hour)
			r.evictStream("x")
			for i, ctx := range all {
				if ends := errors.Is(context.Cause(ctx), errReplaced); ends != (i == c.ends) {
					t.Fatalf("%s: stream %d ends: got %t, want %t", name, i, ends, i == c.ends)
				}
			}
			if anotherCtx.Err() != nil {
				t.Errorf("%s: a stream of another caller ended, want it open", name)
			}
		}
	}
	for want, s := range map[string]*outboundStream{
		"cert": {caller: Caller{Certificate: "cert"}, target: table.Owner{Node: "X"}}, "lb1.example": {target: table.Owner{Node: "LB1.example."}},
	} {
		if got := s.limitKey(); got != want {
			t.Errorf("limit key: got %q, want %q", got, want)
		}
	}
}

// TestRemoteAddrWithoutPort checks that the address of a caller has no port.
func TestRemoteAddrWithoutPort(t *testing.T) {
	for want, addr := range map[string]net.Addr{
		"10.0.0.1": &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}, "/run/x": &net.UnixAddr{Name: "/run/x", Net: "unix"}, "": nil,
	} {
		if got := remoteAddr(peer.NewContext(t.Context(), &peer.Peer{Addr: addr})); got != want {
			t.Errorf("remote address: got %q, want %q", got, want)
		}
	}
	if got := remoteAddr(t.Context()); got != "" {
		t.Errorf("remote address without a peer: got %q, want an empty string", got)
	}
}

// TestObservers checks the order of observers by connection time, and their maps.
func TestObservers(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.ctx = t.Context()
	begun := time.Now()
	for i, name := range []string{"late", "b", "a", "replica"} {
		s, _ := enterStream(t, r, table.Owner{Node: name})
		s.observing.Store(name != "replica")
		if s.startedAt = begun; i == 0 {
			s.startedAt = begun.Add(time.Second)
		}
		for _, m := range []struct {
			name              string
			serving, unwanted bool
		}{{"z", true, false}, {"c", true, false}, {"pending", false, false}, {"over", true, true}} {
			out := newOutboundMap(s, &mapsyncv1.MapSubscription{Name: m.name}, allOrphaned)
			out.serving.Store(m.serving)
			out.unsubscribed.Store(m.unwanted)
			s.maps = append(s.maps, out)
		}
	}
	var got []string
	for _, o := range r.Observers() {
		got = append(got, o.Name+fmt.Sprint(o.Maps))
	}
	if !slices.Equal(got, []string{"a[c z]", "b[c z]", "late[c z]"}) {
		t.Errorf("observers: got %q, want a, b and late, each with the maps c and z", got)
	}
	if s := r.Stats(); s.Observers != 3 || s.Serving != 1 {
		t.Errorf("statistics: got %d observers and %d replicas, want 3 and 1", s.Observers, s.Serving)
	}
}

// TestReauthoriseEndsStreamsWithLostRole checks that a stream ends if its caller has lost a role,
// and only then.
func TestReauthoriseEndsStreamsWithLostRole(t *testing.T) {
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
		r, _ := newTestReplicator(t)
		r.ctx = t.Context()
		r.opt.Authenticate = func(context.Context, string) (Caller, error) { return c.now, c.err }
		s, ctx := enterStream(t, r, target)
		s.caller = c.was
		s.identify = func() (Caller, error) { return c.now, c.err }
		r.Reauthorise()
		if ends := ctx.Err() != nil; ends != c.ends {
			t.Errorf("caller %+v changes to %+v, error %v: stream ends: got %t, want %t", c.was, c.now, c.err, ends, c.ends)
		}
		if c.ends && c.err == nil && status.Code(context.Cause(ctx)) != codes.PermissionDenied {
			t.Errorf("cause of the end: got %v, want PermissionDenied", context.Cause(ctx))
		}
	}
}

// TestUpdateAccess checks that the streams of a map begin again, and that the map keeps its
// generation.
func TestUpdateAccess(t *testing.T) {
	r, _ := newTestReplicator(t)
	was := r.localMaps()[testMap]
	access := Access{Read: matchOnly("x"), Write: matchOnly("y")}
	r.opt.Access = func(string) Access { return access }
	if err := r.UpdateAccess("none"); err != nil || len(r.localMaps()) != 1 {
		t.Errorf("update access of an unknown map: got %v, want no change", err)
	}
	wasWoken(r.wake)
	if err := r.UpdateAccess(testMap); err != nil {
		t.Fatalf("update access: got error %v, want nil", err)
	}
	m := r.localMaps()[testMap]
	if m == was || m.generation != was.generation || m.table != was.table || !wasWoken(r.wake) {
		t.Errorf("update access: got generation %d, want %d and a new map", m.generation, was.generation)
	}
	a := &m.access
	if !a.reads("x") || a.reads("y") || a.writes("x") || !a.writes("y") || m.excluded("y") || !m.excluded("x") {
		t.Error("update access: got other permissions, want x to read only and be excluded, y to write only")
	}
	for _, c := range []struct {
		self, peer string
		withheld   bool
	}{{"y", "x", false}, {"x", "x", true}, {"y", "y", true}} {
		if got := m.sendExcluded(c.self, c.peer); got != c.withheld {
			t.Errorf("send to %s by %s excluded: got %t, want %t", c.peer, c.self, got, c.withheld)
		}
	}
	if (&Access{}).reads("z") != true || (&Access{}).writes("z") != true {
		t.Error("access without settings: got denied, want allowed")
	}
	// A map that is added while the settings change gets the new permissions, or UpdateAccess finds it.
	r.RemoveMap(testMap)
	r.opt.Access = func(string) Access {
		if r.mu.TryLock() {
			t.Error("add a map: Access is called without the lock, want it locked")
		}
		return Access{}
	}
	if err := r.AddMap(testMap, was.layout, was.table); err != nil || r.localMaps()[testMap].access.Read != nil {
		t.Errorf("add a map again: got %v, want no permissions", err)
	}
}

// TestContacts checks the current and former peers and their streams.
func TestContacts(t *testing.T) {
	r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: 3}, Peer{Node: "y", Incarnation: 4})
	r.ctx = t.Context()
	at := time.Unix(100, 5)
	all["x"].stream.lastContact.Store(at.UnixNano())
	all["y"].stream.up = false
	contacts := func() string {
		var list []string
		for _, c := range r.Contacts() {
			list = append(list, fmt.Sprint(c.Node, c.Live, c.Connected, c.Serving, c.Last.Equal(at), c.Last.IsZero()))
		}
		slices.Sort(list)
		return strings.Join(list, "; ")
	}
	if got, want := contacts(), "xtrue true false true false; ytrue false false false true"; got != want {
		t.Errorf("contacts: got %q, want %q", got, want)
	}
	enterStream(t, r, target)
	old, _ := enterStream(t, r, table.Owner{Node: "y", Incarnation: 3})
	watching, _ := enterStream(t, r, table.Owner{Node: "y", Incarnation: 4})
	watching.observing.Store(true)
	enterStream(t, r, table.Owner{Node: "unverified", Incarnation: 4})
	if got, want := contacts(), "xtrue true true true false; ytrue false false false true"; got != want {
		t.Errorf("contacts after a message: got %q, want %q", got, want)
	}
	old.target.Incarnation = 4
	r.SetPeers([]Peer{{Node: "y", Incarnation: 4}})
	enterStream(t, r, table.Owner{Node: "x"}) // incarnation 0, as of no live node
	if got, want := contacts(), "xfalse false false true false; ytrue false true false true"; got != want {
		t.Errorf("contacts after a departure: got %q, want %q", got, want)
	}
}
