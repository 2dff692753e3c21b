package replicate

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// callers has each caller prove what fn says of its name.
func callers(fn func(node string) Caller) nodeOption {
	return func(o *Options) {
		o.Authenticate = func(_ context.Context, node string) (Caller, error) { return fn(node), nil }
	}
}

// ending returns why a stream ends.
func ending(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// Observers are refused unless they are configured, and replicas unless they are allowed;
// those that are there are listed.
func TestRolesAreEnforced(t *testing.T) {
	a := startNode(t, "a", 1, nil, callers(func(node string) Caller {
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
		{"watcher", observation(1, testMap), true},
		{"watcher", replica, false},
		{"b", observation(1, testMap), false},
	} {
		stream := stockClient(t, a)
		send(t, stream, hello(c.name))
		send(t, stream, c.request)
		if c.allowed {
			deltasOf(t, stream, 1)
			continue
		}
		if err := ending(stream); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s was not refused: %v", c.name, err)
		}
	}
	list := a.r.Observers()
	if len(list) != 1 || list[0].Name != "watcher" || list[0].Addr != "127.0.0.1" || len(list[0].Maps) != 1 || list[0].Maps[0] != testMap {
		t.Errorf("observers %+v, want the watcher of one map", list)
	}
}

// One certificate has so many streams, however it spells its name.
func TestStreamsCountByCertificate(t *testing.T) {
	for name, certificate := range map[string]string{"with TLS": "serial 7", "without": ""} {
		t.Run(name, func(t *testing.T) {
			a := startNode(t, "a", 1, nil, callers(func(string) Caller {
				return Caller{Certificate: certificate, Replica: true, Observer: true}
			}))
			a.put(0, 1, 1)
			spellings := []string{"watcher", "WATCHER", "Watcher."}
			var first mapsyncv1.ReplicationService_SubscribeClient
			for i := range maxStreams + 1 {
				stream := stockClient(t, a)
				send(t, stream, hello(spellings[i%3]))
				send(t, stream, observation(1, testMap))
				deltasOf(t, stream, 1)
				if i == 0 {
					first = stream
				}
			}
			if err := ending(first); status.Code(err) != codes.Unavailable {
				t.Errorf("the oldest stream was not ended: %v", err)
			}
			if n := len(a.r.Observers()); n > maxStreams {
				t.Errorf("%d streams of one certificate, want at most %d", n, maxStreams)
			}
		})
	}
}

func TestHelloIsBounded(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	m := hello("b")
	m.GetHello().ProtoReflect().SetUnknown(append([]byte{0x9a, 0x7d, 0x88, 0x27}, make([]byte, 5000)...))
	stream := stockClient(t, a)
	send(t, stream, m)
	if err := ending(stream); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a hello of 5 kB was taken: %v", err)
	}
}

// A stream is made anew from time to time, so that certificates are verified again; that
// costs no record and does not count as an error.
func TestStreamsAreMadeAnew(t *testing.T) {
	young := func(o *Options) { o.MaxStreamAge = 300 * time.Millisecond }
	a, b := startNode(t, "a", 1, nil, young), startNode(t, "b", 2, nil, young)
	meet(a, b)
	a.put(0, 100, 1)
	eventually(t, "b has all", func() bool { return len(live(b.tb)) == 100 })
	walks := a.r.Stats().Walks
	for i := range 10 {
		a.put(0, 100, i+2)
		time.Sleep(100 * time.Millisecond)
	}
	eventually(t, "b has the last", func() bool { m := live(b.tb); return len(m) == 100 && m[0] == 11 && m[99] == 11 })
	eventually(t, "streams were made anew", func() bool { return a.r.Stats().Resumes >= 2 && b.r.Stats().Connects >= 3 })
	if s := a.r.Stats(); s.Walks != walks {
		t.Errorf("%d full syncs, want %d: streams did not resume", s.Walks, walks)
	}
	if n := a.r.Stats().ConnectErrors + b.r.Stats().ConnectErrors; n != 0 {
		t.Errorf("%d streams ended with an error", n)
	}
}

// Streams whose callers lose a role end at Reauthorise, and the others go on.
func TestReauthoriseEndsStreams(t *testing.T) {
	var denied atomic.Pointer[string]
	denied.Store(new(string))
	a := startNode(t, "a", 1, nil, callers(func(node string) Caller {
		return Caller{Replica: true, Observer: node != *denied.Load()}
	}))
	a.put(0, 1, 1)
	streams := make(map[string]mapsyncv1.ReplicationService_SubscribeClient)
	for _, name := range []string{"one", "two"} {
		stream := stockClient(t, a)
		send(t, stream, hello(name))
		send(t, stream, observation(1, testMap))
		deltasOf(t, stream, 1)
		streams[name] = stream
	}
	a.r.Reauthorise() // nothing has changed
	name := "one"
	denied.Store(&name)
	a.r.Reauthorise()
	if err := ending(streams["one"]); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the stream did not end: %v", err)
	}
	a.put(1, 2, 1)
	deltasOf(t, streams["two"], 1)
	if list := a.r.Observers(); len(list) != 1 || list[0].Name != "two" {
		t.Errorf("observers %+v", list)
	}
}
