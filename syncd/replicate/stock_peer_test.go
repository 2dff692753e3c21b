package replicate

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
)

// stockServer is a sender that uses generated code only.
type stockServer struct {
	mapsyncv1.UnimplementedReplicationServiceServer
	serve func(mapsyncv1.ReplicationService_SubscribeServer) error
}

func (s *stockServer) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	return s.serve(stream)
}

// startStock serves as node x with incarnation 1.
func startStock(t *testing.T, serve func(mapsyncv1.ReplicationService_SubscribeServer) error, opts ...grpc.ServerOption) Peer {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got error %v, want nil", err)
	}
	srv := grpc.NewServer(opts...)
	mapsyncv1.RegisterReplicationServiceServer(srv, &stockServer{serve: serve})
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(lis) })
	t.Cleanup(func() { srv.Stop(); wg.Wait() })
	return Peer{Node: "x", Incarnation: 1, Addr: lis.Addr().String()}
}

func welcome(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	return welcomeWith(stream, &mapsyncv1.Welcome{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: "x", Number: 1}})
}

func welcomeWith(stream mapsyncv1.ReplicationService_SubscribeServer, w *mapsyncv1.Welcome) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	err := stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: w}})
	if err != nil {
		return err
	}
	for range initialClockProbes {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		now := uint64(time.Now().UnixNano())
		err = stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{
			ClockReply: &mapsyncv1.ClockReply{ProbeSent: m.GetClockProbe().GetSent(), Received: now, Clock: now},
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// accept accepts the next subscription with the position from which it resumes.
func accept(stream mapsyncv1.ReplicationService_SubscribeServer) (*mapsyncv1.MapSubscription, error) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if sub := m.GetSubscribe(); sub != nil {
			return sub, stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
				Accepted: &mapsyncv1.MapAccepted{
					Map: sub.GetMap(), Generation: 9, Position: sub.GetResume().GetPosition(), Reset_: sub.GetResume() == nil,
					Schema: wire.SchemaToProto(schema.FromSizes(testMap, testKeySize, testValueSize)),
				},
			}})
		}
	}
}

func stockBatch(index uint32, from, to uint64, keys ...int) *mapsyncv1.SubscribeResponse {
	b := &mapsyncv1.Batch{
		Map: index, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}, PreviousPosition: from, Position: to,
		Owners: []*mapsyncv1.Incarnation{{Node: "x", Number: 1}}, CaughtUp: true,
	}
	for _, k := range keys {
		b.Deltas = append(b.Deltas, &mapsyncv1.Delta{
			Key: wireBytes(key(k)), Value: wireBytes(value(k)), Version: 5, Operation: mapsyncv1.Operation_OPERATION_UPDATE,
		})
	}
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: b}}
}

// TestStockServer receives records from a server that uses generated code only.
func TestStockServer(t *testing.T) {
	acks := make(chan uint64, 10)
	peer := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcome(stream); err != nil {
			return err
		}
		sub, err := accept(stream)
		if err != nil {
			return err
		}
		if err := stream.Send(stockBatch(sub.GetMap(), 0, 10, 1, 2, 3)); err != nil {
			return err
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			if m.GetAck() != nil {
				acks <- m.GetAck().GetPosition()
			}
		}
	})
	b := startNode(t, "b", 2, nil)
	b.r.SetPeers([]Peer{peer})
	poll.Within(t, deadline, "the records were received", func() bool { return len(live(b.tb)) == 3 })
	select {
	case p := <-acks:
		if p != 10 {
			t.Errorf("acknowledged position: got %d, want 10", p)
		}
	case <-time.After(deadline):
		t.Error("acknowledgement: got none, want one")
	}
}

// TestStockClient sends records to a client that uses generated code only.
func TestStockClient(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	a.put(0, 1000, 1)
	stream := stockClient(t, a)
	send(t, stream, hello("y"))
	send(t, stream, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}),
	}})
	deltas, position := 0, uint64(0)
	for deltas < 1000 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("receive: got error %v, want nil", err)
		}
		b := m.GetBatch()
		if b == nil {
			continue
		}
		if b.GetPreviousPosition() != position {
			t.Errorf("batch: got start %d after %d, want equal positions", b.GetPreviousPosition(), position)
		}
		deltas, position = deltas+len(b.GetDeltas()), b.GetPosition()
	}
	send(t, stream, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{
		Ack: &mapsyncv1.Ack{Map: 1, Position: position},
	}})
	a.r.SetPeers([]Peer{{Node: "y", Incarnation: 1, Addr: "127.0.0.1:1"}})
	poll.Within(t, deadline, "the records are acknowledged", func() bool { m, _ := a.status("y", testMap); return m.Acked == position && m.LagEntries == 0 })
	// An acknowledgement of a position that was not sent ends the stream with the cause.
	send(t, stream, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{
		Ack: &mapsyncv1.Ack{Map: 1, Position: position + 1},
	}})
	for {
		if _, err := stream.Recv(); err != nil {
			if !strings.Contains(err.Error(), "acknowledgement of position") {
				t.Errorf("end of the stream: got %v, want \"acknowledgement of position\"", err)
			}
			break
		}
	}
}

func stockClient(t *testing.T, n *node) mapsyncv1.ReplicationService_SubscribeClient {
	t.Helper()
	conn, err := grpc.NewClient(n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("new client: got error %v, want nil", err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx)
	if err != nil {
		t.Fatalf("open stream: got error %v, want nil", err)
	}
	return stream
}

func hello(node string) *mapsyncv1.SubscribeRequest {
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{
		Hello: &mapsyncv1.Hello{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: node, Number: 1}},
	}}
}

func send(t *testing.T, stream mapsyncv1.ReplicationService_SubscribeClient, m *mapsyncv1.SubscribeRequest) {
	t.Helper()
	if err := stream.Send(m); err != nil {
		t.Fatalf("send: got error %v, want nil", err)
	}
}

// TestSlowReaderDoesNotDelayOthers has a peer that subscribes and does not read.
func TestSlowReaderDoesNotDelayOthers(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	slow := stockClient(t, a)
	send(t, slow, hello("slow"))
	send(t, slow, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}),
	}})
	connectNodes(a, b)
	for v := range 40 {
		a.put(0, 10000, v)
	}
	poll.Within(t, deadline, "the other peer holds the last value", func() bool {
		l := live(b.tb)
		return len(l) == 10000 && l[0] == 39 && l[9999] == 39
	})
	// When it reads, it gets the current records, not the history.
	got := make(map[string]int)
	deltas := 0
	for got[string(wireBytes(key(9999)))] != 39 {
		m, err := slow.Recv()
		if err != nil {
			t.Fatalf("receive: got error %v, want nil", err)
		}
		for _, d := range m.GetBatch().GetDeltas() {
			// The message has one field, after its tag and length.
			got[string(d.GetKey())] = int(append(d.GetValue(), make([]byte, 10)...)[2+7])
			deltas++
		}
	}
	if deltas > 100_000 || len(got) != 10000 {
		t.Errorf("slow peer: got %d deltas of %d keys, for 400000 changes, want at most 100000 and 10000", deltas, len(got))
	}
}

// TestStreamWithoutMessagesTimesOut has a server send nothing: the stream ends and is opened again.
func TestStreamWithoutMessagesTimesOut(t *testing.T) {
	var streams sync.WaitGroup
	streams.Add(2)
	once := make(chan struct{}, 2)
	peer := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		select {
		case once <- struct{}{}:
			streams.Done()
		default:
		}
		if err := welcome(stream); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	})
	b := startNode(t, "b", 2, nil, func(o *Options) { o.receiveTimeout = 50 * time.Millisecond })
	b.r.SetPeers([]Peer{peer})
	streams.Wait() // the stream was opened again
	poll.Within(t, deadline, "the timeout is counted and shown", func() bool {
		_, p := b.status("x", testMap)
		return b.r.Stats().ReceiveTimeouts > 0 && (p.Connected || strings.Contains(p.Error, "silent"))
	})
}

// TestInvalidCallersAreRefused opens streams with an invalid Hello. The keys of the table are parts
// of the errors.
func TestInvalidCallersAreRefused(t *testing.T) {
	a := startNode(t, "a", 1, nil, func(o *Options) {
		o.Authenticate = func(_ context.Context, node string) (Caller, error) {
			if node == "b" {
				return anyCaller, nil
			}
			return Caller{}, errors.New("the certificate is for node c")
		}
	})
	for want, m := range map[string]*mapsyncv1.SubscribeRequest{
		"certificate is for node c":        hello("d"),
		`name "" of 0 bytes`:               hello(""),
		`name "\x1b]0;x\a" of 6 bytes`:     hello("\x1b]0;x\a"),
		"must be a hello":                  {},
		"protocol versions 0 to 0":         {Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: "b"}}}},
		`of 256 bytes: malformed`:          hello(strings.Repeat("x", 256)),
		"larger than max":                  hello(strings.Repeat("x", maxRequestBytes)),
		"request of type <nil>: protocol ": nil,
	} {
		stream := stockClient(t, a)
		if m == nil {
			send(t, stream, hello("b"))
			m = &mapsyncv1.SubscribeRequest{}
		}
		send(t, stream, m)
		for {
			if _, err := stream.Recv(); err != nil {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("stream refused: got %q, want %q in it", err, want)
				}
				break
			}
		}
	}
	poll.Within(t, deadline, "each request is counted once", func() bool { return a.r.Stats().BadRequests == 8 })
}

// TestUnreadableRequestsAreCounted checks that requests which gRPC cannot read are counted, as
// first or later requests.
func TestUnreadableRequestsAreCounted(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	for i := range uint64(20) {
		stream := stockClient(t, a)
		send(t, stream, hello("b"))
		m := subscription(1, strings.Repeat("x", maxRequestBytes), Layout{})
		_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: m}})
		if err := streamError(stream); status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("request %d: got error %v, want code %s", i, err, codes.ResourceExhausted)
		}
		poll.Within(t, deadline, "the count is reached", func() bool { return a.r.Stats().BadRequests == i+1 })
	}
}

// TestCallerWithoutHello opens a stream and sends nothing.
func TestCallerWithoutHello(t *testing.T) {
	a := startNode(t, "a", 1, nil, func(o *Options) { o.receiveTimeout = 20 * time.Millisecond })
	if _, err := stockClient(t, a).Recv(); err == nil || !strings.Contains(err.Error(), "no hello in 20ms") {
		t.Errorf("end of the stream: got %v, want an error with \"no hello in 20ms\"", err)
	}
}

// TestWrongIncarnationAtAddress has another node answer than membership has.
func TestWrongIncarnationAtAddress(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	p := a.peer()
	p.Incarnation = 3
	b.r.SetPeers([]Peer{p})
	poll.Within(t, deadline, "status shows the wrong incarnation", func() bool {
		_, st := b.status("a", testMap)
		return strings.Contains(st.Error, `reach "a" of 1, expected "a" of 3`)
	})
	b.r.SetPeers([]Peer{a.peer()})
	poll.Within(t, deadline, "the node is connected after membership is corrected", func() bool { return b.r.Stats().Connected == 1 })
	// A change of the address keeps the position.
	a.put(0, 10, 1)
	poll.Within(t, deadline, "the records were received", func() bool { return len(live(b.tb)) == 10 })
	p = a.peer()
	p.Addr = strings.Replace(p.Addr, "127.0.0.1", "localhost", 1)
	fullSyncs := a.r.Stats().FullSyncs
	b.r.SetPeers([]Peer{p})
	poll.Within(t, deadline, "the stream has resumed", func() bool { return a.r.Stats().Resumes > 0 && b.r.Stats().Connected == 1 })
	if n := a.r.Stats().FullSyncs; n != fullSyncs {
		t.Errorf("full syncs after a change of address: got %d, want 0", n-fullSyncs)
	}
}
