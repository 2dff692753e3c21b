package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// Profile chooses the pace of gossip.
type Profile string

// The profiles, by the network between the nodes.
const (
	// ProfileLAN is the default: a dead node is noticed after about 4 s.
	ProfileLAN Profile = "lan"
	// ProfileLocal is for nodes on one host, such as in tests: about 1 s.
	ProfileLocal Profile = "local"
	// ProfileWAN tolerates slow and lossy paths: about 20 s.
	ProfileWAN Profile = "wan"
)

// Options describe this node and how it finds the others. The zero value of
// every field but NodeName, Incarnation, BindAddr and ServiceAddr is usable.
type Options struct {
	// NodeName is unique among the nodes; see CheckNodeName.
	NodeName string
	// Incarnation tells this process from an earlier one of the same name: the
	// wall clock at its start, in nanoseconds. Not zero.
	Incarnation uint64
	// BindAddr is the IP:port on which gossip is served by TCP and UDP. Port 0
	// takes a free one.
	BindAddr string
	// AdvertiseAddr is the IP:port at which others reach this node's gossip;
	// the bind address by default. Needed when BindAddr is a wildcard, and may
	// not be one itself.
	AdvertiseAddr string
	// Join names nodes to join (host:port); one that is reached suffices. A host
	// name that has many addresses stands for all of them. This node's own
	// address may be among them.
	Join []string
	// GossipKeys encrypt gossip with AES: 16, 24 or 32 bytes each. The first
	// encrypts, all decrypt, so that keys can be changed node by node. Without a
	// key gossip is plain.
	GossipKeys [][]byte
	// ServiceAddr is the host:port at which others dial this node's streams.
	ServiceAddr string
	// Profile is the pace of gossip; ProfileLAN by default.
	Profile Profile
	// DeadTime is about how long an unreachable node is thought alive, at least
	// 400 ms; by default what Profile says. Shorter means that a node which is
	// merely slow is more often taken for dead.
	DeadTime time.Duration
	// Logger gets what an operator should know; nothing is logged by default.
	Logger *slog.Logger
}

// minDeadTime keeps a probe's time limit above scheduling noise.
const minDeadTime = 400 * time.Millisecond

// withDefaults returns o with its defaults filled in.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Profile == "" {
		o.Profile = ProfileLAN
	}
	if o.DeadTime == 0 {
		switch o.Profile {
		case ProfileLAN:
			o.DeadTime = 4 * time.Second
		case ProfileLocal:
			o.DeadTime = time.Second
		case ProfileWAN:
			o.DeadTime = 20 * time.Second
		}
	}
	return o
}

// Check returns all that is wrong with o, without opening anything.
func (o Options) Check() error { return o.withDefaults().check() }

// check returns all that is wrong with o.
func (o Options) check() error {
	var errs []error
	if err := CheckNodeName(o.NodeName); err != nil {
		errs = append(errs, err)
	}
	if o.Incarnation == 0 {
		errs = append(errs, errors.New("incarnation is zero"))
	}
	if err := checkDialable(o.ServiceAddr); err != nil {
		errs = append(errs, fmt.Errorf("advertised service address: %w", err))
	}
	if !slices.Contains([]Profile{ProfileLAN, ProfileLocal, ProfileWAN}, o.Profile) {
		errs = append(errs, fmt.Errorf("gossip profile %q is unknown, want lan, local or wan", o.Profile))
	} else if o.DeadTime < minDeadTime {
		errs = append(errs, fmt.Errorf("dead time %v is shorter than %v", o.DeadTime, minDeadTime))
	}
	errs = append(errs, CheckGossipKeys(o.GossipKeys))
	for _, addr := range o.Join {
		if err := checkDialable(addr); err != nil {
			errs = append(errs, fmt.Errorf("join: %w", err))
		}
	}
	_, _, err := o.addresses()
	return errors.Join(append(errs, err)...)
}

// addresses parses the gossip addresses. The advertised one is the zero value
// if it follows from the bind address.
func (o Options) addresses() (bind, advertise netip.AddrPort, err error) {
	bind, err = parseGossipAddr(o.BindAddr)
	if err != nil {
		return bind, advertise, fmt.Errorf("gossip address: %w", err)
	}
	if o.AdvertiseAddr == "" {
		if bind.Addr().IsUnspecified() {
			return bind, advertise, fmt.Errorf("gossip address %s is a wildcard: set the address to advertise to the other nodes", o.BindAddr)
		}
		return bind, advertise, nil
	}
	advertise, err = parseGossipAddr(o.AdvertiseAddr)
	if err == nil {
		err = checkDialable(o.AdvertiseAddr)
	}
	if err != nil {
		return bind, advertise, fmt.Errorf("advertised gossip address: %w", err)
	}
	return bind, advertise, nil
}

// parseGossipAddr parses an IP:port. memberlist takes a host name for a
// wildcard without a word, so names are refused here.
func parseGossipAddr(addr string) (netip.AddrPort, error) {
	host, port, err := splitPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port), nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("address %q has no plain IP address", addr)
	}
	return netip.AddrPortFrom(ip, port), nil
}

// memberlistConfig derives the library's settings. A node is suspected when a
// probe and its detours fail for one probe interval, and dead when it has not
// contradicted for four more; each node is probed once a round over all nodes.
// An eighth of the dead time an interval makes that true for a handful of nodes.
func (o Options) memberlistConfig() (*memberlist.Config, error) {
	conf := memberlist.DefaultLANConfig()
	if o.Profile == ProfileWAN {
		conf = memberlist.DefaultWANConfig()
	}
	conf.Name = o.NodeName
	conf.ProbeInterval = o.DeadTime / 8
	conf.ProbeTimeout = conf.ProbeInterval / 2
	conf.SuspicionMult = 4
	// The library waits up to six times as long for other nodes to confirm.
	conf.SuspicionMaxTimeoutMult = 2
	// How much a node that doubts its own health slows its probes.
	conf.AwarenessMaxMultiplier = 3
	conf.GossipInterval = max(conf.ProbeInterval/5, 20*time.Millisecond)
	conf.PushPullInterval = 4 * o.DeadTime
	conf.GossipToTheDeadTime = max(8*o.DeadTime, 30*time.Second)
	conf.TCPTimeout = max(o.DeadTime, 2*time.Second)
	// A node that came back with another address is taken as soon as its old
	// address is known to be dead.
	conf.DeadNodeReclaimTime = time.Nanosecond
	// Messages here are small, and decompressing what a stranger sends is risk.
	conf.EnableCompression = false
	if len(o.GossipKeys) > 0 {
		ring, err := memberlist.NewKeyring(o.GossipKeys, o.GossipKeys[0])
		if err != nil {
			return nil, fmt.Errorf("install gossip keys: %w", err)
		}
		conf.Keyring = ring
	}
	return conf, nil
}
