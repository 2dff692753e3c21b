// Package hostile implements a cluster member under the control of its caller. The member joins
// gossip with the cluster's key, answers Subscribe with a valid certificate, and sends the messages
// of its caller. Attacks and chaos tests use it for malicious members, and for members that cost
// little.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// Options configures a member.
type Options struct {
	// Name and Incarnation are the values that the member announces.
	Name        string
	Incarnation uint64
	// GossipAddr and ServiceAddr are the member's IP:ports. Port 0 selects a free port.
	GossipAddr, ServiceAddr string
	// Join, GossipKey and DeadTime are the cluster's values.
	Join      []string
	GossipKey []byte
	DeadTime  time.Duration
	// Credentials must be valid for Name.
	Credentials *peers.Credentials
	// OnSubscribe is called for each map subscription of a node. It sends to the node until it
	// returns. Its context ends with the stream. Nil sends only heartbeats.
	OnSubscribe func(context.Context, *OutboundMap) error
	// OnRequest is called for requests other than subscriptions and clock probes. May be nil.
	OnRequest func(*OutboundMap, *mapsyncv1.SubscribeRequest)
	// OwnerRequests announces that the member answers owner requests, so that nodes can use it as a relay.
	OwnerRequests bool
	// Refuse returns the text with which the member refuses a map to a node, "" if it accepts the map. Nil accepts all.
	Refuse func(mapName, to string) string
	// Release is the release of syncd that the member states.
	Release string
	// Unanswered leaves all map subscriptions without an answer: nodes receive nothing from the live member.
	Unanswered bool
}

// Member is a running member. Close ends it.
type Member struct {
	mapsyncv1.UnimplementedReplicationServiceServer
	// Self is the member's incarnation on the wire.
	Self *mapsyncv1.Incarnation

	opts          Options
	subscriptions atomic.Int64
	server        *grpc.Server
	cancel        context.CancelFunc
	running       sync.WaitGroup
}

// Join starts a member, which takes part until Close.
func Join(ctx context.Context, o Options) (*Member, error) {
	l, err := net.Listen("tcp", o.ServiceAddr)
	if err != nil {
		return nil, fmt.Errorf("listen as %s: %w", o.Name, err)
	}
	m := &Member{
		Self: &mapsyncv1.Incarnation{Node: o.Name, Number: o.Incarnation}, opts: o,
		server: grpc.NewServer(grpc.Creds(o.Credentials.Server())),
	}
	mapsyncv1.RegisterReplicationServiceServer(m.server, m)
	gossip, err := peers.New(peers.Options{
		NodeName: o.Name, Incarnation: o.Incarnation, BindAddr: o.GossipAddr, ServiceAddr: l.Addr().String(),
		Join: o.Join, GossipKeys: [][]byte{o.GossipKey}, DeadTime: o.DeadTime,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("join gossip as %s: %w", o.Name, err), l.Close())
	}
	ctx, m.cancel = context.WithCancel(ctx)
	m.running.Go(func() { _ = m.server.Serve(l) }) // ends with Close
	m.running.Go(func() { _ = gossip.Run(ctx) })
	return m, nil
}

// Subscriptions returns the number of subscriptions that nodes have made.
func (m *Member) Subscriptions() int64 { return m.subscriptions.Load() }

// Close leaves the cluster and ends all streams. It may be called once.
func (m *Member) Close() {
	m.cancel()
	m.server.Stop()
	m.running.Wait()
}

// OutboundMap sends responses on one map subscription of a node.
type OutboundMap struct {
	// Index is the number of the subscription, Map the name of the map, and To the name of the
	// node.
	Index   uint32
	Map, To string
	// Position is the position of the last batch.
	Position uint64

	m *Member
	*outboundStream
}

// Self returns the member's incarnation on the wire.
func (o *OutboundMap) Self() *mapsyncv1.Incarnation { return o.m.Self }

// outboundStream is a stream to a node on which several goroutines send. mu serialises them.
type outboundStream struct {
	mu     sync.Mutex
	stream mapsyncv1.ReplicationService_SubscribeServer
}

// Send sends a response unchanged.
func (v *outboundStream) Send(m *mapsyncv1.SubscribeResponse) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stream.Send(m)
}

// answerProbe answers a clock probe correctly: a node does not subscribe before it has a valid
// answer.
func (v *outboundStream) answerProbe(p *mapsyncv1.ClockProbe) error {
	now := uint64(time.Now().UnixNano())
	return v.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: &mapsyncv1.ClockReply{
		ProbeSent: p.GetSent(), Received: now, Clock: now,
	}}})
}

// Subscribe implements the service. It accepts every map with the schema of the node.
func (m *Member) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello() == nil {
		return errors.New("no hello")
	}
	v := &outboundStream{stream: stream}
	err = v.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: 2, Self: m.Self, OwnerRequests: m.opts.OwnerRequests, Release: m.opts.Release},
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	maps := make(map[uint32]*OutboundMap)
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case r.GetClockProbe() != nil:
			err = v.answerProbe(r.GetClockProbe())
		case r.GetSubscribe() != nil:
			s := r.GetSubscribe()
			o := &OutboundMap{Index: s.GetMap(), Map: s.GetName(), To: first.GetHello().GetSelf().GetNode(), m: m, outboundStream: v}
			maps[o.Index] = o
			if err = o.answer(s); err == nil {
				m.subscriptions.Add(1)
				running.Go(func() { o.run(ctx) })
			}
		case m.opts.OnRequest != nil:
			for _, o := range maps {
				m.opts.OnRequest(o, r)
			}
		}
		if err != nil {
			return err
		}
	}
}

// answer accepts or refuses a map, or does neither.
func (o *OutboundMap) answer(s *mapsyncv1.MapSubscription) error {
	if o.m.opts.Unanswered {
		return nil
	}
	if o.m.opts.Refuse != nil {
		if text := o.m.opts.Refuse(o.Map, o.To); text != "" {
			return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Refused{
				Refused: &mapsyncv1.MapRefused{Map: o.Index, Text: text},
			}})
		}
	}
	return o.accept(s.GetSchema())
}

func (o *OutboundMap) accept(schema *mapsyncv1.Schema) error {
	return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
		Map: o.Index, Generation: 7, Reset_: true, Schema: schema,
	}}})
}

// heartbeat is the interval between heartbeats.
const heartbeat = 500 * time.Millisecond

// run calls OnSubscribe and then sends heartbeats.
func (o *OutboundMap) run(ctx context.Context) {
	if o.m.opts.OnSubscribe != nil && o.m.opts.OnSubscribe(ctx, o) != nil {
		return // the stream has ended
	}
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}}) != nil {
			return
		}
	}
}

// Batch sends deltas of these owners, with positions that continue from the last batch.
func (o *OutboundMap) Batch(owners []*mapsyncv1.Incarnation, deltas []*mapsyncv1.Delta, caughtUp bool) error {
	previous := o.Position
	o.Position += uint64(max(len(deltas), 1))
	return o.SendBatch(&mapsyncv1.Batch{
		Map: o.Index, Origin: o.m.Self, PreviousPosition: previous, Position: o.Position,
		Owners: owners, Deltas: deltas, CaughtUp: caughtUp,
	})
}

// SendBatch sends a batch unchanged.
func (o *OutboundMap) SendBatch(b *mapsyncv1.Batch) error {
	return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: b}})
}
