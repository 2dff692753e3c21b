package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Veth connects two namespaces, or one with itself, by a pair of Ethernet links. Both links are down
// and without addresses. Removing one end removes both.
func Veth(a *NS, nameA string, b *NS, nameB string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	attrs.Namespace = netlink.NsFd(int(a.fd))
	pair := netlink.NewVeth(attrs)
	pair.PeerName = nameB
	pair.PeerNamespace = netlink.NsFd(int(b.fd))
	if err := a.handle.LinkAdd(pair); err != nil {
		return fmt.Errorf("create veth %s/%s - %s/%s: %w", a.name, nameA, b.name, nameB, err)
	}
	return nil
}

// Join connects two namespaces by a pair of Ethernet links with the addresses, such as 10.0.0.1/24, and sets them up. Each
// has the hardware address of the other.
func Join(a *NS, linkA, addrA string, b *NS, linkB, addrB string) error {
	if err := Veth(a, linkA, b, linkB); err != nil {
		return err
	}
	return errors.Join(a.Addr(linkA, addrA), b.Addr(linkB, addrB), a.Up(linkA), b.Up(linkB),
		a.PinNeighbour(linkA, b, linkB, addrB), b.PinNeighbour(linkB, a, linkA, addrA))
}

// PinNeighbour sets the hardware address of an address of peer, on a link to peer. A very busy machine would let the
// resolution of the address time out, where that of a real network would succeed.
func (n *NS) PinNeighbour(link string, peer *NS, peerLink, addr string) error {
	mac, err := peer.MAC(peerLink)
	if err != nil {
		return err
	}
	ip, _, _ := strings.Cut(addr, "/")
	return n.Neigh(link, ip, mac)
}

// Link returns the named link.
func (n *NS) Link(name string) (netlink.Link, error) {
	link, err := n.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %s/%s: %w", n.name, name, err)
	}
	return link, nil
}

// MAC returns the named link's hardware address.
func (n *NS) MAC(name string) (net.HardwareAddr, error) {
	link, err := n.Link(name)
	if err != nil {
		return nil, err
	}
	return link.Attrs().HardwareAddr, nil
}

// withLink runs f on the named link. It adds the link's name to an error.
func (n *NS) withLink(verb, name string, f func(netlink.Link) error) error {
	link, err := n.Link(name)
	if err != nil {
		return err
	}
	if err := f(link); err != nil {
		return fmt.Errorf("%s %s/%s: %w", verb, n.name, name, err)
	}
	return nil
}

// Up sets the link up.
func (n *NS) Up(link string) error { return n.withLink("set up", link, n.handle.LinkSetUp) }

// Down sets the link down. The other end of a veth pair loses its carrier, and the kernel removes the
// routes over the link.
func (n *NS) Down(link string) error { return n.withLink("set down", link, n.handle.LinkSetDown) }

// Addr adds an address in prefix notation ("10.0.0.1/24"). IPv6 addresses are usable immediately,
// because duplicate address detection is disabled for them.
func (n *NS) Addr(link, cidr string) error {
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return fmt.Errorf("parse address %q: %w", cidr, err)
	}
	if addr.IP.To4() == nil {
		addr.Flags |= unix.IFA_F_NODAD
	}
	return n.withLink("add address "+cidr+" to", link, func(l netlink.Link) error {
		return n.handle.AddrAdd(l, addr)
	})
}

// Route adds a route for dst ("10.1.0.0/16", "default") to the next hop via. It atomically replaces an
// existing route.
func (n *NS) Route(dst, via string) error {
	route, err := parseRoute(dst)
	if err != nil {
		return err
	}
	if route.Gw = net.ParseIP(via); route.Gw == nil {
		return fmt.Errorf("parse next hop %q: not an IP address", via)
	}
	if err := n.handle.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s via %s in namespace %s: %w", dst, via, n.name, err)
	}
	return nil
}

// RouteDev adds a route for dst over the link itself. It replaces an existing route.
func (n *NS) RouteDev(dst, link string) error {
	route, err := parseRoute(dst)
	if err != nil {
		return err
	}
	return n.withLink("route "+dst+" to", link, func(l netlink.Link) error {
		route.LinkIndex = l.Attrs().Index
		route.Scope = netlink.SCOPE_LINK
		return n.handle.RouteReplace(route)
	})
}

func parseRoute(dst string) (*netlink.Route, error) {
	if dst == "default" {
		dst = "0.0.0.0/0"
	}
	_, prefix, err := net.ParseCIDR(dst)
	if err != nil {
		return nil, fmt.Errorf("parse destination %q: %w", dst, err)
	}
	return &netlink.Route{Dst: prefix}, nil
}

// Neigh adds a permanent neighbour entry, so that no ARP or neighbour discovery is needed.
func (n *NS) Neigh(link, ip string, mac net.HardwareAddr) error {
	addr := net.ParseIP(ip)
	if addr == nil {
		return fmt.Errorf("parse neighbour %q: not an IP address", ip)
	}
	return n.withLink("pin neighbour "+ip+" on", link, func(l netlink.Link) error {
		return n.handle.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr, HardwareAddr: mac,
		})
	})
}

// ethtoolValue is struct ethtool_value of include/uapi/linux/ethtool.h.
type ethtoolValue struct{ cmd, data uint32 }

// ifreqData is struct ifreq with ifr_data, of include/uapi/linux/if.h.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// TxChecksum enables or disables the link's transmit checksum offload (SIOCETHTOOL, ETHTOOL_STXCSUM).
// With offload, a veth pair leaves the TCP checksum unfinished. A program that rewrites headers
// incrementally then produces an invalid checksum. Without offload, the sender computes complete
// checksums, and the kernel also disables segmentation offload. Set it on the sending link.
func (n *NS) TxChecksum(link string, on bool) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	return n.ethtool(link, &value)
}

// TxChecksumOn reports whether transmit checksum offload is enabled on the link.
func (n *NS) TxChecksumOn(link string) (bool, error) {
	value := ethtoolValue{cmd: unix.ETHTOOL_GTXCSUM}
	err := n.ethtool(link, &value)
	return value.data != 0, err
}

func (n *NS) ethtool(link string, value *ethtoolValue) error {
	req := ifreqData{data: unsafe.Pointer(value)}
	if copy(req.name[:unix.IFNAMSIZ-1], link) < len(link) {
		return fmt.Errorf("set offload of %s/%s: link name too long", n.name, link)
	}
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket in namespace %s: %w", n.name, err)
		}
		defer unix.Close(fd) //nolint:errcheck // a socket without data has nothing to report
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		if errno != 0 {
			return fmt.Errorf("set offload of %s/%s: %w", n.name, link, os.NewSyscallError("ioctl SIOCETHTOOL", errno))
		}
		return nil
	})
}
