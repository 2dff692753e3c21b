package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"mapsync/bench/lb"
	"mapsync/internal/netns"
)

// The addresses of the network for the pings. The router sends the load balancer the packets to the
// service and the answers of the backend.
//
//	client ---- router ---- backend
//	              |
//	          balancer
const (
	clientAddr, clientGate     = "10.10.0.1", "10.10.0.254"
	backendAddr, backendGate   = "10.12.0.1", "10.12.0.254"
	balancerAddr, balancerGate = "10.11.0.2", "10.11.0.1"
	serviceAddr                = "10.14.0.1"
	servicePort, backendPort   = 80, 8080
	replyTable                 = 100 // routes of the backend's answers
)

// network is the load balancer under test and its environment.
type network struct {
	client, router, backend, node *netns.NS
	poll                          link.Link // makes the router's link accept XDP_TX frames
	balancer                      *lb.Balancer
}

// newNetwork builds the network, with room for n entries in the connection-tracking map.
func newNetwork(n int) (_ *network, err error) {
	w := &network{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("build network: %w", err), w.close())
		}
	}()
	for name, ns := range map[string]**netns.NS{
		"client": &w.client, "router": &w.router, "backend": &w.backend, "balancer": &w.node,
	} {
		if *ns, err = netns.New(name); err != nil {
			return nil, err
		}
		for _, key := range []string{"rp_filter", "send_redirects"} {
			err = errors.Join(err, (*ns).Sysctl("net.ipv4.conf.all."+key, "0"), (*ns).Sysctl("net.ipv4.conf.default."+key, "0"))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.wire(); err != nil {
		return nil, err
	}
	return w, w.startBalancer(n)
}

func (w *network) wire() error {
	return errors.Join(
		w.connect("client", clientGate, w.client, clientAddr),
		w.connect("backend", backendGate, w.backend, backendAddr),
		w.connect("balancer", balancerGate, w.node, balancerAddr),
		w.router.Sysctl("net.ipv4.ip_forward", "1"),
		w.router.Route(serviceAddr+"/32", balancerAddr),
		w.divert(),
		// Checksums are complete on the load balancer's link, as on a wire.
		w.router.TxChecksum("balancer", false),
	)
}

// connect links the router and another namespace, and makes the router its default route.
func (w *network) connect(port, gate string, ns *netns.NS, addr string) error {
	if err := netns.Veth(w.router, port, ns, "eth0"); err != nil {
		return err
	}
	pinNeighbour := func(a *netns.NS, dev string, b *netns.NS, other, ip string) error {
		mac, err := b.MAC(other)
		if err != nil {
			return err
		}
		return a.Neigh(dev, ip, mac)
	}
	return errors.Join(
		w.router.Addr(port, gate+"/24"), ns.Addr("eth0", addr+"/24"), w.router.Up(port), ns.Up("eth0"),
		pinNeighbour(w.router, port, ns, "eth0", addr), pinNeighbour(ns, "eth0", w.router, port, gate),
		ns.Route("default", gate),
	)
}

// divert routes the backend's answers to the load balancer.
func (w *network) divert() error {
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family, rule.Priority = "backend", replyTable, netlink.FAMILY_V4, replyTable
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	h := w.router.Handle()
	return errors.Join(h.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(balancerAddr), Table: replyTable}), h.RuleAdd(rule))
}

func addrPort(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

// startBalancer creates the load balancer with room for n entries and attaches it.
func (w *network) startBalancer(n int) (err error) {
	w.balancer, err = lb.New(lb.Config{
		Service:    lb.Service{VIP: addrPort(serviceAddr, servicePort), Backends: []netip.AddrPort{addrPort(backendAddr, backendPort)}},
		MaxEntries: uint32(n + n/8 + 1024), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if err := w.node.Do(func() error { return w.balancer.Attach("eth0", lb.ModeAuto) }); err != nil {
		return err
	}
	return w.router.Do(func() error {
		dev, err := net.InterfaceByName("balancer")
		if err != nil {
			return fmt.Errorf("find link: %w", err)
		}
		w.poll, err = lb.AttachPass(dev.Index)
		return err
	})
}

func (w *network) close() error {
	var errs []error
	if w.poll != nil {
		errs = append(errs, w.poll.Close())
	}
	if w.balancer != nil {
		errs = append(errs, w.balancer.Close())
	}
	for _, ns := range []*netns.NS{w.client, w.router, w.backend, w.node} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}
