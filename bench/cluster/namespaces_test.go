package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"mapsync/internal/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// namespaces is a place with one process per node. Each node has a network namespace with one link
// to a router. The router can drop the packets from one node to another. Control requests do not
// use this network.
type namespaces struct {
	t      *testing.T
	hooks  bool
	dir    string
	router *netns.NS
	spaces []*netns.NS       // of the nodes, in the order of their starts
	cuts   map[direction]int // number of active cuts of each direction
	absent map[int]int       // number of active faults of each node's interface
}

// direction is the path of the packets from one node to another.
type direction struct{ from, to int }

func newNamespaces(t *testing.T, hooks bool) *namespaces {
	t.Helper()
	dir, err := os.MkdirTemp("", "cluster") // keeps the path of a socket short
	if err != nil {
		t.Fatal(err)
	}
	router, err := netns.New("router")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if err := router.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	return &namespaces{t: t, hooks: hooks, dir: dir, router: router, cuts: make(map[direction]int), absent: make(map[int]int)}
}

func (n *namespaces) address(i int) string { return fmt.Sprintf("10.30.%d.2", i) }

func (n *namespaces) start(_ context.Context, i int, m mapSettings) (address, control string, err error) {
	ns, err := n.connect(i)
	if err == nil && m.Links {
		err = n.addLink(i)
	}
	if err != nil {
		return "", "", err
	}
	control = filepath.Join(n.dir, fmt.Sprintf("n%d.sock", i))
	s := settings{Number: uint32(i), Map: m, Hooks: n.hooks, Control: control, Dir: filepath.Join(n.dir, fmt.Sprintf("n%d", i))}
	return n.address(i), control, startNode(n.t, s, ns.Start)
}

// connect creates namespace number i, with its link to the router.
func (n *namespaces) connect(i int) (*netns.NS, error) {
	ns, err := netns.New(fmt.Sprintf("n%d", i))
	if err != nil {
		return nil, err
	}
	n.t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			n.t.Error(err)
		}
	})
	gate, port := fmt.Sprintf("10.30.%d.1", i), fmt.Sprintf("n%d", i)
	err = errors.Join(netns.Veth(n.router, port, ns, "eth0"),
		n.router.Addr(port, gate+"/30"), ns.Addr("eth0", n.address(i)+"/30"),
		n.router.Up(port), ns.Up("eth0"), ns.Route("default", gate))
	n.spaces = append(n.spaces, ns)
	return ns, err
}

// cut makes the router drop packets in one direction, until heal has been called as often as cut.
// The other direction still works.
func (n *namespaces) cut(d direction) error {
	if n.cuts[d]++; n.cuts[d] > 1 {
		return nil
	}
	return n.rule("cut", n.router.Handle().RuleAdd, d)
}

func (n *namespaces) heal(d direction) error {
	if n.cuts[d]--; n.cuts[d] > 0 {
		return nil
	}
	return n.rule("heal", n.router.Handle().RuleDel, d)
}

func (n *namespaces) rule(verb string, change func(*netlink.Rule) error, d direction) error {
	rule := netlink.NewRule()
	rule.Family, rule.Type, rule.Priority = netlink.FAMILY_V4, unix.RTN_BLACKHOLE, 100
	rule.Src, rule.Dst = host(n.address(d.from)), host(n.address(d.to))
	if err := change(rule); err != nil {
		return fmt.Errorf("%s the way from n%d to n%d: %w", verb, d.from, d.to, err)
	}
	return nil
}

// addLink creates the interface that entries name.
func (n *namespaces) addLink(i int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = linkName, linkIndex
	link := netlink.NewVeth(attrs)
	link.PeerName = "lan1"
	if err := n.spaces[i].Handle().LinkAdd(link); err != nil {
		return fmt.Errorf("create interface of n%d: %w", i, err)
	}
	return nil
}

// removeLink removes that interface, until restoreLink has been called as often.
func (n *namespaces) removeLink(i int) error {
	if n.absent[i]++; n.absent[i] > 1 {
		return nil
	}
	link, err := n.spaces[i].Link(linkName)
	if err == nil {
		err = n.spaces[i].Handle().LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove interface of n%d: %w", i, err)
	}
	return nil
}

func (n *namespaces) restoreLink(i int) error {
	if n.absent[i]--; n.absent[i] > 0 {
		return nil
	}
	return n.addLink(i)
}

func host(address string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(32, 32)}
}
