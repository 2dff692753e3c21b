package drill

import (
	"context"
	"fmt"

	"github.com/cilium/ebpf"
)

// build creates the network and starts all processes except the clients.
func (r *run) build(ctx context.Context) (err error) {
	r.log.Info("building network", "sessions", r.opts.Sessions)
	if r.net, err = newNetwork(r.opts.Sessions, r.dropUnknown); err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	return r.startDaemons(ctx)
}

// start starts the load balancers and backends.
func (r *run) start() (err error) {
	if r.key, err = randomKey(); err != nil {
		return err
	}
	if err := r.startBackends(); err != nil {
		return err
	}
	for i := range r.net.nodes {
		if err := r.startBalancer(i, false, false); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) startBackends() (err error) {
	o := r.opts
	if o.Load == LoadNetperf {
		r.backends, err = r.tools.startNetserver(r.net)
		return err
	}
	r.backends, err = startRole(r.net.backends, roleBackends, command{Backends: &backendsConfig{
		Listen: backends(), Key: r.key, Sessions: o.Sessions, Pattern: r.tools.pattern(),
		Fresh: o.Fresh, StallTimeout: o.StallTimeout,
	}})
	if err != nil {
		return err
	}
	_, err = r.backends.ready()
	return err
}

// startClients starts the clients and sets the decider.
func (r *run) startClients() (err error) {
	o := r.opts
	switch o.Load {
	case LoadTcpkali:
		r.decider = r.backends
		r.clients, err = r.tools.startTcpkali(r)
		return err
	case LoadNetperf:
		return r.startDecider(roleNetperf, command{Netperf: &netperfConfig{
			Program: r.tools.netperf, VIP: service().Addr(), Sessions: o.Sessions,
			Fresh: o.Fresh, StallTimeout: o.StallTimeout, Hold: o.Hold,
		}})
	}
	return r.startDecider(roleClients, command{Clients: &clientsConfig{
		Service: service(), Sources: sources(o.Sessions), Sessions: o.Sessions, Key: r.key,
		Pause: r.pause, Fresh: o.Fresh, StallTimeout: o.StallTimeout, Hold: o.Hold,
	}})
}

// startDecider starts clients that decide their sessions themselves.
func (r *run) startDecider(role string, first command) (err error) {
	if r.clients, err = startRole(r.net.clients, role, first); err != nil {
		return err
	}
	r.decider = r.clients
	_, err = r.clients.ready()
	return err
}

// startBalancer starts the load balancer of a node, with a new map if again is set. With
// attachLater the balancer has its map and its program, and attaches only at an attach command.
func (r *run) startBalancer(i int, again, attachLater bool) (err error) {
	node := r.net.nodes[i]
	if !r.byName && !again {
		if r.pins[i], err = r.workDir.pins(r.name, node.name); err != nil {
			return err
		}
	}
	o := r.balancerConfig(i)
	o.NewMap, o.AttachLater = again, attachLater
	if r.balancers[i], err = startRole(node.ns, roleBalancer, command{Balancer: o}); err != nil {
		return err
	}
	ready, err := r.balancers[i].ready()
	r.maps[i] = ready.MapID
	return err
}

// balancerConfig returns the configuration of a node's load balancer, with its existing map.
func (r *run) balancerConfig(i int) *balancerConfig {
	o := &balancerConfig{
		Interface: balancerLink, Mode: string(r.opts.XDP), Layout: r.opts.Layouts[i], Service: service(), Backends: backends(),
		Idle: r.idle, CollectEvery: r.opts.CollectEvery, PinDir: r.pins[i],
		MaxEntries: uint32(3*r.opts.connections() + 4096), // two per connection, and spare entries
	}
	if r.opts.Load == LoadNetperf {
		o.More = netperfServices(r.opts.Sessions)
	}
	if r.byName { // the nodes share a kernel, so their maps need different names
		o.Name = mapNameOf(r.net.nodes[i].name)
	}
	return o
}

// mapNameOf returns the kernel's name for the map of a node.
func mapNameOf(node string) string { return "ct_" + node }

// openMap opens the current map of a node. The caller closes it.
func (r *run) openMap(i int) (*ebpf.Map, error) {
	m, err := ebpf.NewMapFromID(ebpf.MapID(r.maps[i]))
	if err != nil {
		return nil, fmt.Errorf("open map of %s: %w", r.net.nodes[i].name, err)
	}
	return m, nil
}
