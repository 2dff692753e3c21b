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

// Profile selects the timing of gossip.
type Profile string

// The profiles for the networks between the nodes.
const (
	// ProfileLAN is the default. It detects a dead node after about 4 s.
	ProfileLAN Profile = "lan"
	// ProfileLocal is for nodes on one host, for example in tests. It detects a dead node after about
	// 1 s.
	ProfileLocal Profile = "local"
	// ProfileWAN tolerates slow and lossy paths. It detects a dead node after about 20 s.
	ProfileWAN Profile = "wan"
)

// Options configures this node and its join addresses. All fields except NodeName, Incarnation,
// BindAddr and ServiceAddr have usable zero values.
type Options struct {
	// NodeName is unique among the nodes; see CheckNodeName.
	NodeName string
	// Incarnation distinguishes this process from earlier ones with the same name. It is the wall
	// clock time at process start in nanoseconds. It must not be 0.
	Incarnation uint64
	// BindAddr is the IP:port on which this node serves gossip over TCP and UDP. Port 0 selects a free
	// port.
	BindAddr string
	// AdvertiseAddr is the IP:port at which other nodes reach this node's gossip. The default is the
	// bind address. It is required if BindAddr is a wildcard. It must not be a wildcard itself.
	AdvertiseAddr string
	// Join lists the nodes to join (host:port). One reachable node is sufficient. A host name stands
	// for all of its addresses. The list may include this node's own address.
	Join []string
	// GossipKeys encrypt gossip with AES and have 16, 24 or 32 bytes each. The first key encrypts and
	// all keys decrypt, so keys can be changed node by node. Without a key, gossip is not encrypted.
	GossipKeys [][]byte
	// ServiceAddr is the host:port at which other nodes dial this node's streams.
	ServiceAddr string
	// Profile is the timing of gossip. The default is ProfileLAN.
	Profile Profile
	// DeadTime is the approximate time after which an unreachable node counts as dead. The minimum is
	// 400 ms, and the default depends on Profile. With a shorter time, slow nodes are more often
	// detected as dead.
	DeadTime time.Duration
	// Logger receives messages for the operator. By default, nothing is logged.
	Logger *slog.Logger
}

// minDeadTime keeps the time limit of a probe above scheduling jitter.
const minDeadTime = 400 * time.Millisecond

// withDefaults returns o with defaults for unset fields.
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

// Check returns all validation errors of o. It opens no files or sockets.
func (o Options) Check() error { return o.withDefaults().check() }

// check returns all validation errors of o.
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

// addresses parses the gossip addresses. advertise is the zero value if it follows from the bind
// address.
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

// parseGossipAddr parses an IP:port. It refuses host names, because memberlist silently treats them as
// a wildcard.
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

// memberlistConfig returns the settings of memberlist. A node becomes suspect when a direct and the
// indirect probes fail for one probe interval. It counts as dead if it does not refute that for four
// more intervals. Each node is probed once per round over all nodes. A probe interval of an eighth of
// DeadTime achieves DeadTime for a handful of nodes.
func (o Options) memberlistConfig() (*memberlist.Config, error) {
	conf := memberlist.DefaultLANConfig()
	if o.Profile == ProfileWAN {
		conf = memberlist.DefaultWANConfig()
	}
	conf.Name = o.NodeName
	conf.ProbeInterval = o.DeadTime / 8
	conf.ProbeTimeout = conf.ProbeInterval / 2
	conf.SuspicionMult = 4
	// By default, memberlist waits up to six times as long for other nodes to confirm.
	conf.SuspicionMaxTimeoutMult = 2
	// The factor by which a node with a bad health score slows its probes.
	conf.AwarenessMaxMultiplier = 3
	conf.GossipInterval = max(conf.ProbeInterval/5, 20*time.Millisecond)
	conf.PushPullInterval = 4 * o.DeadTime
	conf.GossipToTheDeadTime = max(8*o.DeadTime, 30*time.Second)
	conf.TCPTimeout = max(o.DeadTime, 2*time.Second)
	// memberlist accepts a returning node with another address as soon as its former address counts as
	// dead.
	conf.DeadNodeReclaimTime = time.Nanosecond
	// Messages are small, and decompressing data of unauthenticated senders is a risk.
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
