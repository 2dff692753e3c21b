package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"mapsync/internal/netns"
)

// The addresses. Only the router stores which server has the service's address, which is also the address
// of all relays.
//
//	clients ---- router ---- peers
//	             /    \
//	        turn1 ---- turn2          (the link between them is for syncd)
const (
	clientsGateway = "10.10.255.254"
	peersGateway   = "10.12.255.254"
	serverLink     = "eth0"
	routerMask     = "/16"
	nodeMask       = "/30"
)

var (
	clientAddr = netip.MustParseAddr("10.10.0.1")
	peerAddr   = netip.MustParseAddr("10.12.0.1")
	// permittedAddr is a peer with a permission and no channel.
	permittedAddr = netip.MustParseAddr("10.12.0.2")
	service       = netip.MustParseAddrPort("10.14.0.1:3478")
)

// place is the machine of one server.
type place struct {
	name   string
	ns     *netns.NS
	router string // the router's address on the link to this node
	addr   string // the node's address on that link
	sync   string // the node's address on the link between the nodes
}

// network is all namespaces. close removes them.
type network struct {
	clients, router, peers *netns.NS
	nodes                  [2]place
	polls                  []link.Link // make the router's links accept XDP_TX frames
}

func newNetwork() (*network, error) {
	n := &network{nodes: [2]place{
		{name: "turn1", router: "10.11.1.1", addr: "10.11.1.2", sync: "10.13.0.1"},
		{name: "turn2", router: "10.11.2.1", addr: "10.11.2.2", sync: "10.13.0.2"},
	}}
	err := n.create()
	if err == nil {
		err = n.wire()
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
	for name, ns := range map[string]**netns.NS{
		"clients": &n.clients, "router": &n.router, "peers": &n.peers, "turn1": &n.nodes[0].ns, "turn2": &n.nodes[1].ns,
	} {
		created, err := netns.New(name)
		if err != nil {
			return err
		}
		*ns = created
		for _, key := range []string{"conf.all.rp_filter", "conf.default.rp_filter", "conf.all.send_redirects", "ip_forward"} {
			if err := created.Sysctl("net.ipv4."+key, "0"); err != nil {
				return err
			}
		}
	}
	return n.router.Sysctl("net.ipv4.ip_forward", "1")
}

func (n *network) wire() error {
	err := errors.Join(
		join(n.router, "clients", clientsGateway+routerMask, n.clients, "eth0", clientAddr.String()+routerMask),
		join(n.router, "peers", peersGateway+routerMask, n.peers, "eth0", peerAddr.String()+routerMask),
		n.peers.Addr("eth0", permittedAddr.String()+routerMask),
		n.router.PinNeighbour("peers", n.peers, "eth0", permittedAddr.String()),
		join(n.nodes[0].ns, "sync", n.nodes[0].sync+nodeMask, n.nodes[1].ns, "sync", n.nodes[1].sync+nodeMask),
		n.clients.Route("default", clientsGateway), n.peers.Route("default", peersGateway),
	)
	for _, node := range n.nodes {
		err = errors.Join(err,
			join(n.router, node.name, node.router+nodeMask, node.ns, serverLink, node.addr+nodeMask),
			node.ns.Addr("lo", service.Addr().String()+"/32"))
		if err == nil {
			err = errors.Join(node.ns.Route("default", node.router), n.poll(node.name))
		}
	}
	return err
}

// join is netns.Join for senders that compute complete checksums, as on a wire.
func join(a *netns.NS, linkA, addrA string, b *netns.NS, linkB, addrB string) error {
	if err := netns.Join(a, linkA, addrA, b, linkB, addrB); err != nil {
		return err
	}
	return errors.Join(a.TxChecksum(linkA, false), b.TxChecksum(linkB, false))
}

// poll makes the router's end of a link to a server accept XDP_TX frames: before kernel 5.13, it polls
// for them only with an XDP program of its own.
func (n *network) poll(port string) error {
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load pass program: %w", err)
	}
	defer pass.Close() //nolint:errcheck // the link holds the program
	return n.router.Do(func() error {
		device, err := net.InterfaceByName(port)
		if err != nil {
			return fmt.Errorf("find link %s: %w", port, err)
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: device.Index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attach XDP program to a veth link in driver mode: %w", err)
		}
		n.polls = append(n.polls, l)
		return nil
	})
}

// routeTo makes the router send the packets to the service's address to one server, as a takeover of the
// address does.
func (n *network) routeTo(node int) error {
	return n.router.Route(service.Addr().String()+"/32", n.nodes[node].addr)
}

// cut sets all links of a node down, as a failure of its machine does. The offload of a server outlives
// its process, so that the death of the process alone does not end it.
func (n *network) cut(node int) error {
	return errors.Join(n.router.Down(n.nodes[node].name), n.nodes[node].ns.Down("sync"))
}

// interfaceIndex returns the index of the offload's interface.
func (p *place) interfaceIndex() (index int, err error) {
	l, err := p.ns.Link(serverLink)
	if err != nil {
		return 0, err
	}
	return l.Attrs().Index, nil
}

func (n *network) close() error {
	var errs []error
	for _, l := range n.polls {
		errs = append(errs, l.Close())
	}
	for _, ns := range []*netns.NS{n.clients, n.router, n.peers, n.nodes[0].ns, n.nodes[1].ns} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}
