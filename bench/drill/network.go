package drill

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mapsync/bench/lb"
	"mapsync/internal/netns"
)

// The addresses. The router sends traffic to the service's address, and all answers of the
// backends, to the active load balancer. Only the router stores which load balancer is active.
//
//	clients ---- router ---- backends
//	             /    \
//	          lb1 ---- lb2          (the link between them is for syncd)
const (
	clientsNet     = "10.10.0.0/16"
	clientsGateway = "10.10.255.254"
	backendsGate   = "10.12.255.254"
	serviceAddr    = "10.14.0.1"
	servicePort    = 80
	backendPort    = 8080
	backendCount   = 4
	replyTable     = 100 // routes of the backends' answers
	balancerLink   = "eth0"
	sessionsPerIP  = 10000
)

// node is the machine of one of the two load balancers.
type node struct {
	name   string
	ns     *netns.NS
	port   string // the router's interface to this node
	router string // the router's address on that link
	addr   string // the node's address on that link
	sync   string // the node's address on the link between the two nodes
}

// network is all namespaces of the drill. close removes them.
type network struct {
	clients, router, backends *netns.NS
	nodes                     [2]node
	polls                     []link.Link // make the router's links accept XDP_TX frames
}

// newNetwork builds the network for the given number of sessions. By default the load balancers'
// machines have the service's address as a local address. Then their kernels reset connections that
// their load balancers have no entry for. With dropUnknown the kernels drop such packets.
func newNetwork(sessions int, dropUnknown bool) (*network, error) {
	n := &network{nodes: [2]node{
		{name: "lb1", port: "lb1", router: "10.11.1.1", addr: "10.11.1.2", sync: "10.13.0.1"},
		{name: "lb2", port: "lb2", router: "10.11.2.1", addr: "10.11.2.2", sync: "10.13.0.2"},
	}}
	err := n.create()
	if err == nil {
		err = n.wire(sessions, dropUnknown)
	}
	if err == nil {
		err = n.routeTo(0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("build network: %w", err), n.close())
	}
	return n, nil
}

func (n *network) create() error {
	for _, place := range []struct {
		name string
		ns   **netns.NS
	}{
		{"clients", &n.clients},
		{"router", &n.router},
		{"backends", &n.backends},
		{"lb1", &n.nodes[0].ns},
		{"lb2", &n.nodes[1].ns},
	} {
		ns, err := netns.New(place.name)
		if err != nil {
			return err
		}
		*place.ns = ns
		if err := setSysctls(ns); err != nil {
			return err
		}
	}
	return errors.Join(
		n.router.Sysctl("net.ipv4.ip_forward", "1"),
		n.clients.Sysctl("net.ipv4.ip_local_port_range", "1024 65535"),
	)
}

// setSysctls sets the sysctls that tens of thousands of small, long connections need. A new
// namespace may inherit the machine's settings, so that every needed setting is set explicitly.
func setSysctls(ns *netns.NS) error {
	for _, s := range [][2]string{
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		{"net.ipv4.conf.all.send_redirects", "0"},
		{"net.ipv4.conf.default.send_redirects", "0"},
		{"net.ipv4.ip_forward", "0"},
		{"net.ipv4.tcp_max_syn_backlog", "65535"},
		{"net.core.somaxconn", "65535"},
		{"net.ipv4.tcp_rmem", "4096 8192 32768"},
		{"net.ipv4.tcp_wmem", "4096 8192 32768"},
		{"net.ipv4.tcp_no_metrics_save", "1"},
	} {
		if err := ns.Sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) wire(sessions int, dropUnknown bool) error {
	err := errors.Join(
		netns.Join(n.router, "clients", clientsGateway+"/16", n.clients, "eth0", "10.10.0.1/16"),
		netns.Join(n.router, "backends", backendsGate+"/16", n.backends, "eth0", "10.12.0.1/16"),
		netns.Join(n.nodes[0].ns, "sync", n.nodes[0].sync+"/30", n.nodes[1].ns, "sync", n.nodes[1].sync+"/30"),
	)
	for _, lb := range n.nodes {
		err = errors.Join(err,
			netns.Join(n.router, lb.port, lb.router+"/30", lb.ns, balancerLink, lb.addr+"/30"))
		if !dropUnknown {
			err = errors.Join(err, lb.ns.Addr("lo", serviceAddr+"/32"))
		}
	}
	for _, addr := range sources(sessions)[1:] {
		err = errors.Join(err, n.clients.Addr("eth0", addr.String()+"/16"),
			n.router.PinNeighbour("clients", n.clients, "eth0", addr.String()))
	}
	for _, addr := range backends()[1:] {
		err = errors.Join(err, n.backends.Addr("eth0", addr.Addr().String()+"/16"),
			n.router.PinNeighbour("backends", n.backends, "eth0", addr.Addr().String()))
	}
	if err != nil {
		return err
	}
	for _, lb := range n.nodes {
		if err := errors.Join(lb.ns.Route("default", lb.router), n.prepareXDP(lb.port)); err != nil {
			return err
		}
	}
	return errors.Join(
		n.clients.Route("default", clientsGateway),
		n.backends.Route("default", backendsGate),
		n.divert(),
	)
}

// prepareXDP prepares the router's link to a load balancer for XDP. Checksums are complete on the
// link, as on a wire, and the link polls for frames.
func (n *network) prepareXDP(port string) error {
	if err := n.router.TxChecksum(port, false); err != nil {
		return err
	}
	return n.router.Do(func() error {
		dev, err := net.InterfaceByName(port)
		if err != nil {
			return fmt.Errorf("find link %s: %w", port, err)
		}
		l, err := lb.AttachPass(dev.Index)
		if err != nil {
			return err
		}
		n.polls = append(n.polls, l)
		return nil
	})
}

// divert routes packets from the backends by a separate routing table.
func (n *network) divert() error {
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family = "backends", replyTable, netlink.FAMILY_V4
	rule.Priority = replyTable
	// Between the loss of a link and the new route, these packets must not match other routes. A
	// client that received a packet from a backend's own address would send a reset.
	nowhere := &netlink.Route{Dst: everywhere(), Table: replyTable, Type: unix.RTN_BLACKHOLE, Priority: 1000}
	err := errors.Join(n.router.Handle().RouteAdd(nowhere), n.router.Handle().RuleAdd(rule))
	if err != nil {
		return fmt.Errorf("divert replies: %w", err)
	}
	return nil
}

// routeTo makes the router send the service's traffic, in both directions, to one load balancer, as
// a routing protocol or an address takeover does.
func (n *network) routeTo(active int) error {
	gateway := net.ParseIP(n.nodes[active].addr)
	if err := n.router.Route(serviceAddr+"/32", n.nodes[active].addr); err != nil {
		return err
	}
	if err := n.router.Handle().RouteReplace(&netlink.Route{Dst: everywhere(), Gw: gateway, Table: replyTable}); err != nil {
		return fmt.Errorf("route replies to %s: %w", n.nodes[active].name, err)
	}
	return nil
}

func everywhere() *net.IPNet {
	return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
}

// cut sets a load balancer's link to the router down. After that it forwards no packet.
func (n *network) cut(dead int) error { return n.router.Down(n.nodes[dead].port) }

// isolate sets the remaining links of a dead load balancer down, including the link to its peer.
func (n *network) isolate(dead int) error {
	return errors.Join(n.nodes[dead].ns.Down("sync"), n.nodes[dead].ns.Down(balancerLink))
}

// disconnectEnds sets the links of clients and backends down, so that tens of thousands of closing
// sockets send no packets through the network.
func (n *network) disconnectEnds() error {
	return errors.Join(n.clients.Down("eth0"), n.backends.Down("eth0"))
}

func (n *network) close() error {
	var errs []error
	for _, l := range n.polls {
		errs = append(errs, l.Close())
	}
	for _, ns := range []*netns.NS{n.clients, n.router, n.backends, n.nodes[0].ns, n.nodes[1].ns} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}

// sources returns the clients' addresses: enough for the sessions' ports, and at least 4.
func sources(sessions int) []netip.Addr {
	list := make([]netip.Addr, max(4, (sessions+sessionsPerIP-1)/sessionsPerIP))
	addr := netip.MustParsePrefix(clientsNet).Addr()
	for i := range list {
		addr = addr.Next()
		list[i] = addr
	}
	return list
}

// backends returns the addresses and ports of the backends.
func backends() []netip.AddrPort {
	list := make([]netip.AddrPort, backendCount)
	for i := range list {
		list[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 12, 0, byte(i + 1)}), backendPort)
	}
	return list
}

func service() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(serviceAddr), servicePort)
}
