package drill

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mapsync/bench/lb"
	"mapsync/internal/netns"
)

// The plan of addresses. The router sends the service's address, and whatever
// the backends answer, to the active load balancer; nothing else knows which
// one that is.
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
	replyTable     = 100 // routes of what backends answer
	balancerLink   = "eth0"
	sessionsPerIP  = 10000
)

// node is one of the two load balancers' machines.
type node struct {
	name   string
	ns     *netns.NS
	port   string // the router's link to it
	router string // the router's address on that link
	addr   string // its own
	sync   string // its address on the link between the two
}

// network is everything that has a namespace. Closing it removes all of it.
type network struct {
	clients, router, backends *netns.NS
	nodes                     [2]node
	polls                     []link.Link // let the router's links take XDP_TX frames
}

// newNetwork builds it, for so many sessions. The load balancers' machines have the service's
// address as one of their own, so that they reset what their load balancers do not know, unless
// mute is set: then it is dropped.
func newNetwork(sessions int, mute bool) (*network, error) {
	n := &network{nodes: [2]node{
		{name: "lb1", port: "lb1", router: "10.11.1.1", addr: "10.11.1.2", sync: "10.13.0.1"},
		{name: "lb2", port: "lb2", router: "10.11.2.1", addr: "10.11.2.2", sync: "10.13.0.2"},
	}}
	err := n.create()
	if err == nil {
		err = n.wire(sessions, mute)
	}
	if err == nil {
		err = n.point(0)
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
		if err := tune(ns); err != nil {
			return err
		}
	}
	return errors.Join(
		n.router.Sysctl("net.ipv4.ip_forward", "1"),
		n.clients.Sysctl("net.ipv4.ip_local_port_range", "1024 65535"),
	)
}

// tune sets what tens of thousands of small, long connections need. A new
// namespace may inherit the machine's settings, so none is taken for granted.
func tune(ns *netns.NS) error {
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

func (n *network) wire(sessions int, mute bool) error {
	err := errors.Join(
		join(n.router, "clients", clientsGateway+"/16", n.clients, "eth0", "10.10.0.1/16"),
		join(n.router, "backends", backendsGate+"/16", n.backends, "eth0", "10.12.0.1/16"),
		join(n.nodes[0].ns, "sync", n.nodes[0].sync+"/30", n.nodes[1].ns, "sync", n.nodes[1].sync+"/30"),
	)
	for _, lb := range n.nodes {
		err = errors.Join(err,
			join(n.router, lb.port, lb.router+"/30", lb.ns, balancerLink, lb.addr+"/30"))
		if !mute {
			err = errors.Join(err, lb.ns.Addr("lo", serviceAddr+"/32"))
		}
	}
	for _, addr := range sources(sessions)[1:] {
		err = errors.Join(err, n.clients.Addr("eth0", addr.String()+"/16"),
			know(n.router, "clients", n.clients, "eth0", addr.String()))
	}
	for _, addr := range backends()[1:] {
		err = errors.Join(err, n.backends.Addr("eth0", addr.Addr().String()+"/16"),
			know(n.router, "backends", n.backends, "eth0", addr.Addr().String()))
	}
	if err != nil {
		return err
	}
	for _, lb := range n.nodes {
		if err := errors.Join(lb.ns.Route("default", lb.router), n.prepare(lb.port)); err != nil {
			return err
		}
	}
	return errors.Join(
		n.clients.Route("default", clientsGateway),
		n.backends.Route("default", backendsGate),
		n.divert(),
	)
}

// join makes a link between two namespaces that is up and has addresses.
func join(a *netns.NS, linkA, addrA string, b *netns.NS, linkB, addrB string) error {
	if err := netns.Veth(a, linkA, b, linkB); err != nil {
		return err
	}
	return errors.Join(a.Addr(linkA, addrA), b.Addr(linkB, addrB), a.Up(linkA), b.Up(linkB),
		know(a, linkA, b, linkB, addrB), know(b, linkB, a, linkA, addrA))
}

// know pins a neighbour's hardware address: on a machine that is too busy to
// answer in time, address resolution would fail where a real one's does not.
func know(ns *netns.NS, dev string, peer *netns.NS, peerDev, addr string) error {
	mac, err := peer.MAC(peerDev)
	if err != nil {
		return err
	}
	ip, _, _ := strings.Cut(addr, "/")
	return ns.Neigh(dev, ip, mac)
}

// prepare makes the router's link to a load balancer fit for XDP: checksums
// are complete on it, as on a wire, and it polls for frames.
func (n *network) prepare(port string) error {
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

// divert gives packets from the backends a routing table of their own.
func (n *network) divert() error {
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family = "backends", replyTable, netlink.FAMILY_V4
	rule.Priority = replyTable
	// Between the loss of a link and the new route nothing may fall through to
	// the other routes: a client that saw a backend's own address would reset.
	nowhere := &netlink.Route{Dst: everywhere(), Table: replyTable, Type: unix.RTN_BLACKHOLE, Priority: 1000}
	err := errors.Join(n.router.Handle().RouteAdd(nowhere), n.router.Handle().RuleAdd(rule))
	if err != nil {
		return fmt.Errorf("divert replies: %w", err)
	}
	return nil
}

// point makes the router send the service's traffic, both ways, to one of the
// load balancers: what a routing protocol or an address takeover does.
func (n *network) point(active int) error {
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

// cut takes a load balancer's link to the router away: nothing passes it any
// more.
func (n *network) cut(dead int) error { return n.router.Down(n.nodes[dead].port) }

// isolate takes what is left of a dead load balancer's links, the one to its
// peer included.
func (n *network) isolate(dead int) error {
	return errors.Join(n.nodes[dead].ns.Down("sync"), n.nodes[dead].ns.Down(balancerLink))
}

// silence cuts the ends off, so that sockets that close by the ten thousand
// send nothing through the whole network.
func (n *network) silence() error {
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

// sources returns the clients' addresses: enough for the sessions' ports, and
// several in any case.
func sources(sessions int) []netip.Addr {
	list := make([]netip.Addr, max(4, (sessions+sessionsPerIP-1)/sessionsPerIP))
	addr := netip.MustParsePrefix(clientsNet).Addr()
	for i := range list {
		addr = addr.Next()
		list[i] = addr
	}
	return list
}

// backends returns where the backends listen.
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
