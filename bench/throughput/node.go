package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// mapName is the name of the replicated map in the cluster.
const mapName = "ct_map"

// node is one end: a kernel map, its table, the syncer between the two, and the replicator. It has
// the parts of a syncd without the daemon.
type node struct {
	owner    table.Owner
	kernel   *ebpf.Map
	access   *kmap.Map
	table    *table.Table
	syncer   *kmap.Syncer
	repl     *replicate.Replicator
	server   *grpc.Server
	listener net.Listener
	tls      *tls.Config // nil: none
}

// newNode creates a node. With mutual TLS, security is its configuration.
func newNode(name string, n int, clock wallClock, security *tls.Config) (_ *node, err error) {
	d := &node{tls: security, owner: table.Owner{Node: name, Incarnation: uint64(clock.now())}}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.kernel, err = newMap(name, n); err != nil {
		return nil, err
	}
	if d.access, err = kmap.Open(d.kernel, kmap.Options{}); err != nil {
		return nil, err
	}
	if d.table, err = newTable(d.owner); err != nil {
		return nil, err
	}
	if d.syncer, err = kmap.NewSyncer(d.table, d.access, kmap.SyncerOptions{Now: clock.now}); err != nil {
		return nil, err
	}
	d.repl, err = replicate.New(replicate.Options{Self: d.owner, Dial: d.dial, Times: clock.times, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	types, err := ctSchema()
	if err != nil {
		return nil, err
	}
	layout := replicate.Layout{KeySize: keySize, ValueSize: valueSize, Schema: types}
	if err := d.repl.AddMap(mapName, layout, d.table); err != nil {
		return nil, err
	}
	d.server = grpc.NewServer(append(d.repl.ServerOptions(), grpc.Creds(d.credentials("")))...)
	d.repl.Register(d.server)
	d.listener, err = net.Listen("tcp", "127.0.0.1:0")
	return d, err
}

// newTable creates a table with the default settings of a daemon, digests included.
func newTable(owner table.Owner) (*table.Table, error) {
	types, err := ctSchema()
	if err != nil {
		return nil, err
	}
	return table.New(table.Options{
		Self: owner, KeySize: keySize, ValueSize: valueSize, Significant: types.Significant(), Carried: types.Carried(),
		DigestKey: []byte("throughput"), ComparedKey: types.ComparedKey(), Compared: types.Compared(),
		SettleKeys: 1 << 18, Refresh: config.Default().RefreshInterval,
	})
}

func (d *node) dial(p replicate.Peer) (*grpc.ClientConn, error) {
	options := append(d.repl.DialOptions(), grpc.WithTransportCredentials(d.credentials(p.Node)))
	return grpc.NewClient(p.Addr, options...)
}

// credentials returns those of a server, or those of a client of the named node.
func (d *node) credentials(peer string) credentials.TransportCredentials {
	if d.tls == nil {
		return insecure.NewCredentials()
	}
	c := d.tls.Clone()
	c.ServerName = peer
	return credentials.NewTLS(c)
}

func (d *node) peer() replicate.Peer {
	return replicate.Peer{Node: d.owner.Node, Incarnation: d.owner.Incarnation, Addr: d.listener.Addr().String()}
}

// start runs the node in the group until ctx ends.
func (d *node) start(ctx context.Context, group *errgroup.Group, peer replicate.Peer) {
	d.repl.SetPeers([]replicate.Peer{peer})
	group.Go(func() error { return d.syncer.Run(ctx) })
	group.Go(func() error { return d.repl.Run(ctx) })
	group.Go(func() error { return d.server.Serve(d.listener) })
	group.Go(func() error {
		<-ctx.Done()
		d.server.Stop()
		return nil
	})
}

// close releases the resources that start does not release.
func (d *node) close() error {
	var errs []error
	if d.access != nil {
		errs = append(errs, d.access.Close())
	}
	if d.kernel != nil {
		errs = append(errs, d.kernel.Close())
	}
	return errors.Join(errs...)
}

// state describes the pending work of a table, for a timeout error.
func (d *node) state() string {
	s := d.table.Stats()
	return fmt.Sprintf("%s: %d live, %d dirty, %d failed, %d rereads, %d local, %d from peers",
		d.owner.Node, s.Live, s.Dirty, s.Failed, s.PendingRereads, s.LocalAccepted, s.RemoteAccepted)
}
