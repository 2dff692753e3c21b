package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
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
	// Cluster is the name of the cluster. Nodes with another name are not members.
	Cluster string
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

// withDefaults returns o with defaults for unset fields.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Profile == "" {
		o.Profile = ProfileLAN
	}
	if o.DeadTime == 0 {
		o.DeadTime = defaultDeadTime(o.Profile)
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
