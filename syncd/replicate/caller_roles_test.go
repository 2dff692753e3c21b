package replicate

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// withCallers authenticates each caller with the result of fn for its name.
func withCallers(fn func(node string) Caller) nodeOption {
	return func(o *Options) {
		o.Authenticate = func(_ context.Context, node string) (Caller, error) { return fn(node), nil }
	}
}

// streamError receives until the stream ends and returns the error.
func streamError(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// TestRolesAreEnforced checks that observers and replicas are refused unless they are configured,
// and that connected observers are listed.
func TestRolesAreEnforced(t *testing.T) {
	a := startNode(t, "a", 1, nil, withCallers(func(node string) Caller {
		return Caller{Replica: node == "b", Observer: node == "watcher"}
	}))
	a.put(0, 1, 1)
	replica := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}),
	}}
	for _, c := range []struct {
		name    string
		request *mapsyncv1.SubscribeRequest
		allowed bool
	}{
		{"watcher", observeRequest(1, testMap), true},
		{"watcher", replica, false},
		{"b", observeRequest(1, testMap), false},
	} {
		stream := stockClient(t, a)
		send(t, stream, hello(c.name))
		send(t, stream, c.request)
		if c.allowed {
			receiveDeltas(t, stream, 1)
			continue
		}
		if err := streamError(stream); status.Code(err) != codes.PermissionDenied {
			t.Errorf("subscribe as %s: got %v, want PermissionDenied", c.name, err)
		}
	}
	list := a.r.Observers()
	if len(list) != 1 || list[0].Name != "watcher" || list[0].Addr != "127.0.0.1" || len(list[0].Maps) != 1 || list[0].Maps[0] != testMap {
		t.Errorf("observers: got %+v, want watcher with one map", list)
	}
}

// TestStreamsCountByCertificate checks that the limit of streams is per certificate, for all
// spellings of a name.
func TestStreamsCountByCertificate(t *testing.T) {
	for name, certificate := range map[string]string{"with TLS": "serial 7", "without": ""} {
		t.Run(name, func(t *testing.T) {
			a := startNode(t, "a", 1, nil, withCallers(func(string) Caller {
				return Caller{Certificate: certificate, Replica: true, Observer: true}
			}))
			a.put(0, 1, 1)
			spellings := []string{"watcher", "WATCHER", "Watcher."}
			var first mapsyncv1.ReplicationService_SubscribeClient
			for i := range maxStreams + 1 {
				stream := stockClient(t, a)
				send(t, stream, hello(spellings[i%3]))
				send(t, stream, observeRequest(1, testMap))
				receiveDeltas(t, stream, 1)
				if i == 0 {
					first = stream
				}
			}
			if err := streamError(first); status.Code(err) != codes.Unavailable {
				t.Errorf("oldest stream: got %v, want Unavailable", err)
			}
			if n := len(a.r.Observers()); n > maxStreams {
				t.Errorf("streams of one certificate: got %d, want at most %d", n, maxStreams)
			}
		})
	}
}

// TestHelloIsBounded sends a Hello above the maximum size.
func TestHelloIsBounded(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	m := hello("b")
	m.GetHello().ProtoReflect().SetUnknown(append([]byte{0x9a, 0x7d, 0x88, 0x27}, make([]byte, 5000)...))
	stream := stockClient(t, a)
	send(t, stream, m)
	if err := streamError(stream); status.Code(err) != codes.InvalidArgument {
		t.Errorf("hello of 5 kB: got %v, want InvalidArgument", err)
	}
}

// TestStreamResumesAfterMaxAge checks that streams end at their maximum age and resume:
// certificates are verified again, no full sync is needed, and no error is counted.
func TestStreamResumesAfterMaxAge(t *testing.T) {
	young := func(o *Options) { o.MaxStreamAge = 300 * time.Millisecond }
	a, b := startNode(t, "a", 1, nil, young), startNode(t, "b", 2, nil, young)
	connectNodes(a, b)
	a.put(0, 100, 1)
	poll.Within(t, deadline, "b holds all records", func() bool { return len(live(b.tb)) == 100 })
	fullSyncs := a.r.Stats().FullSyncs
	for i := range 10 {
		a.put(0, 100, i+2)
		time.Sleep(100 * time.Millisecond) // the changes last for several stream ages
	}
	poll.Within(t, deadline, "b holds the last record", func() bool { m := live(b.tb); return len(m) == 100 && m[0] == 11 && m[99] == 11 })
	poll.Within(t, deadline, "streams were replaced", func() bool { return a.r.Stats().Resumes >= 2 && b.r.Stats().Connects >= 3 })
	if s := a.r.Stats(); s.FullSyncs != fullSyncs {
		t.Errorf("full syncs: got %d, want %d: streams did not resume", s.FullSyncs, fullSyncs)
	}
	if n := a.r.Stats().ConnectErrors + b.r.Stats().ConnectErrors; n != 0 {
		t.Errorf("streams that ended with an error: got %d, want 0", n)
	}
}

// TestReauthoriseOnLiveStreams checks that Reauthorise ends the streams of callers that have lost a
// role, and no others.
func TestReauthoriseOnLiveStreams(t *testing.T) {
	var denied atomic.Pointer[string]
	denied.Store(new(string))
	a := startNode(t, "a", 1, nil, withCallers(func(node string) Caller {
		return Caller{Replica: true, Observer: node != *denied.Load()}
	}))
	a.put(0, 1, 1)
	streams := make(map[string]mapsyncv1.ReplicationService_SubscribeClient)
	for _, name := range []string{"one", "two"} {
		stream := stockClient(t, a)
		send(t, stream, hello(name))
		send(t, stream, observeRequest(1, testMap))
		receiveDeltas(t, stream, 1)
		streams[name] = stream
	}
	a.r.Reauthorise() // no permissions have changed
	name := "one"
	denied.Store(&name)
	a.r.Reauthorise()
	if err := streamError(streams["one"]); status.Code(err) != codes.PermissionDenied {
		t.Errorf("stream of a caller without a role: got %v, want PermissionDenied", err)
	}
	a.put(1, 2, 1)
	receiveDeltas(t, streams["two"], 1)
	if list := a.r.Observers(); len(list) != 1 || list[0].Name != "two" {
		t.Errorf("observers: got %+v, want two", list)
	}
}
