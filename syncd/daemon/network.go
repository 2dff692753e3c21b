package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// openNetwork opens the replicator and, unless the node is standalone, the ports for peers.
func (d *Daemon) openNetwork() error {
	var err error
	d.accessConfig.Store(&d.config)
	if d.credentials, err = openCredentials(&d.config, d.remoteLog); err != nil {
		return unusable(err)
	}
	if err := d.openReplicator(); err != nil {
		return err
	}
	connections, err := raiseFiles(&d.config, d.log)
	if err != nil {
		return err
	}
	if d.config.Standalone() {
		d.log.Info("node is standalone, no port for peers is open",
			"hint", "to replicate, set join, gossip-key-file, tls-cert, tls-key and tls-ca, and restart syncd")
		return nil
	}
	if err := d.openListener(connections); err != nil {
		return err
	}
	return d.openGossip()
}

// openListener opens the port for streams, for a maximum number of authenticated connections.
func (d *Daemon) openListener(connections int) error {
	inner, err := peers.Listen(d.config.GRPCListen)
	if err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}
	d.limiter = peers.NewLimiter(grpcLimits(connections), d.remoteLog)
	d.listener = d.limiter.Listener(d.streamMeter.Listener(inner))
	d.onClose(func() error {
		d.grpc.Stop()
		// Without Run, the server does not know the listener.
		if err := inner.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	d.serviceAddr = cmp.Or(d.config.GRPCAdvertise, d.listener.Addr().String())
	return nil
}

// openGossip opens the port for gossip.
func (d *Daemon) openGossip() error {
	keys, err := readGossipKeys(d.config.GossipKeyFile, d.log)
	if err != nil {
		return unusable(err)
	}
	if len(keys) > 0 {
		d.setGossipKey(keys[0])
	}
	options := peers.Options{
		NodeName: d.self.Node, Incarnation: d.self.Incarnation,
		BindAddr: d.config.GossipListen, AdvertiseAddr: d.config.GossipAdvertise,
		Join: d.config.Join, Cluster: d.config.Cluster, GossipKeys: keys, ServiceAddr: d.serviceAddr,
		DeadTime: d.config.DeadTime, Logger: d.remoteLog,
	}
	if err := options.Check(); err != nil {
		return unusable(err)
	}
	if d.cluster, err = peers.New(options); err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	d.onClose(d.cluster.Close)
	return nil
}

// dialPeer returns a connection to the replication service of a peer.
func (d *Daemon) dialPeer(p replicate.Peer) (*grpc.ClientConn, error) {
	options := append(d.replicator.DialOptions(), grpc.WithTransportCredentials(d.credentials.Client(p.Node)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return d.streamMeter.Dial(ctx, addr, replicate.KeepaliveTimeout)
		}))
	return grpc.NewClient("passthrough:///"+p.Addr, options...)
}

func (d *Daemon) openReplicator() error {
	o := replicate.Options{
		Self: d.self, Logger: d.remoteLog, Now: d.clock.wall, TableTime: d.clock.now, WallOffset: d.clock.offset.Load, Unsynchronised: d.unsynchronised, Times: d.clock.times, MaxClockAhead: d.config.MaxClockAhead,
		Dial:                d.dialPeer,
		Addr:                func() string { return d.serviceAddr },
		IncarnationMismatch: func(node string) { d.cluster.Refresh(node) },
	}
	o.Authenticate, o.Access = d.authenticate, d.access
	o.Release, o.Cluster = d.version, d.config.Cluster
	o.State = func() replicate.NodeState { return replicate.NodeState(d.nodeState.Load()) }
	_, o.Expected = d.config.Expected()
	var err error
	if d.replicator, err = replicate.New(o); err != nil {
		return err
	}
	d.grpc = grpc.NewServer(append(d.replicator.ServerOptions(), grpc.Creds(d.credentials.Server()))...)
	d.replicator.Register(d.grpc)
	mapsyncv1.RegisterInspectionServiceServer(d.grpc, newInspector(d))
	d.health = newHealth()
	healthv1.RegisterHealthServer(d.grpc, d.health)
	return nil
}
