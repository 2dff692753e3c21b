// Package hostile is a member of a cluster that is made by hand: it joins gossip with the
// cluster's key, answers Subscribe with a valid certificate, and sends the messages of its user.
// Attacks and chaos use it for members with bad intent, and for members that cost little.
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

// Options describe a member.
type Options struct {
	// Name and Incarnation are what it states about itself.
	Name        string
	Incarnation uint64
	// GossipAddr and ServiceAddr are its IP:ports. Port 0 takes a free one.
	GossipAddr, ServiceAddr string
	// Join, GossipKey and DeadTime are those of the cluster.
	Join      []string
	GossipKey []byte
	DeadTime  time.Duration
	// Credentials are for its name.
	Credentials *peers.Credentials
	// Talk is called for each subscription that a node makes, and sends to it until it
	// returns. Its context ends with the stream. Nil sends signs of life alone.
	Talk func(context.Context, *Outlet) error
	// Hear is called for requests other than subscriptions and clock probes. May be nil.
	Hear func(*Outlet, *mapsyncv1.SubscribeRequest)
}

// Member is one. Close ends it.
type Member struct {
	mapsyncv1.UnimplementedReplicationServiceServer
	// Self is how it is named on the wire.
	Self *mapsyncv1.Incarnation

	opts       Options
	subscribed atomic.Int64
	server     *grpc.Server
	cancel     context.CancelFunc
	running    sync.WaitGroup
}

// Join makes a member, which takes part until Close.
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
	m.running.Go(func() { _ = m.server.Serve(l) }) // it ends with Close
	m.running.Go(func() { _ = gossip.Run(ctx) })
	return m, nil
}

// Subscribed returns how many subscriptions nodes have made.
func (m *Member) Subscribed() int64 { return m.subscribed.Load() }

// Close leaves the cluster and ends all streams. It may be called once.
func (m *Member) Close() {
	m.cancel()
	m.server.Stop()
	m.running.Wait()
}

// Outlet sends responses about one subscription of a node.
type Outlet struct {
	// Index is the number of the subscription, Map the name of the map, To that of the node.
	Index   uint32
	Map, To string
	// Position is that of the last batch.
	Position uint64

	m *Member
	*conversation
}

// Self returns the member's own name on the wire.
func (o *Outlet) Self() *mapsyncv1.Incarnation { return o.m.Self }

// conversation is a stream to a node on which several goroutines send.
type conversation struct {
	mu     sync.Mutex
	stream mapsyncv1.ReplicationService_SubscribeServer
}

// Send sends a response as it is.
func (v *conversation) Send(m *mapsyncv1.SubscribeResponse) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stream.Send(m)
}

// tick answers a clock probe honestly: without it a node subscribes to nothing.
func (v *conversation) tick(p *mapsyncv1.ClockProbe) error {
	now := uint64(time.Now().UnixNano())
	return v.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: &mapsyncv1.ClockReply{
		ProbeSent: p.GetSent(), Received: now, Clock: now,
	}}})
}

// Subscribe implements the service: it accepts every map with the schema of the node.
func (m *Member) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello() == nil {
		return errors.New("no hello")
	}
	v := &conversation{stream: stream}
	err = v.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: 1, Self: m.Self},
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	var talking sync.WaitGroup
	defer talking.Wait()
	defer cancel()
	outlets := make(map[uint32]*Outlet)
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case r.GetClockProbe() != nil:
			err = v.tick(r.GetClockProbe())
		case r.GetSubscribe() != nil:
			s := r.GetSubscribe()
			o := &Outlet{Index: s.GetMap(), Map: s.GetName(), To: first.GetHello().GetSelf().GetNode(), m: m, conversation: v}
			outlets[o.Index] = o
			if err = o.accept(s.GetSchema()); err == nil {
				m.subscribed.Add(1)
				talking.Go(func() { o.live(ctx) })
			}
		case m.opts.Hear != nil:
			for _, o := range outlets {
				m.opts.Hear(o, r)
			}
		}
		if err != nil {
			return err
		}
	}
}

func (o *Outlet) accept(schema *mapsyncv1.Schema) error {
	return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
		Map: o.Index, Generation: 7, Reset_: true, Schema: schema,
	}}})
}

// heartbeat is the pause between signs of life.
const heartbeat = 500 * time.Millisecond

// live sends what Talk does and then signs of life.
func (o *Outlet) live(ctx context.Context) {
	if o.m.opts.Talk != nil && o.m.opts.Talk(ctx, o) != nil {
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

// Batch sends changes by these owners, which follow on the last.
func (o *Outlet) Batch(owners []*mapsyncv1.Incarnation, deltas []*mapsyncv1.Delta, caughtUp bool) error {
	previous := o.Position
	o.Position += uint64(max(len(deltas), 1))
	return o.Raw(&mapsyncv1.Batch{
		Map: o.Index, Origin: o.m.Self, PreviousPosition: previous, Position: o.Position,
		Owners: owners, Deltas: deltas, CaughtUp: caughtUp,
	})
}

// Raw sends a batch as it is.
func (o *Outlet) Raw(b *mapsyncv1.Batch) error {
	return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: b}})
}
