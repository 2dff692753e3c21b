package peers

import (
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"

	"mapsync/printable"
)

// delegate implements memberlist's callbacks. memberlist calls them with its lock held, so they must
// not call memberlist.
type delegate struct{ c *Cluster }

// NodeMeta returns this node's encoded metadata.
func (d delegate) NodeMeta(int) []byte {
	return meta{incarnation: d.c.opts.Incarnation, serviceAddr: d.c.opts.ServiceAddr}.encode()
}

// NotifyMsg ignores application messages, because syncd sends none.
func (d delegate) NotifyMsg([]byte) {}

// GetBroadcasts returns nil, because syncd adds nothing to gossip.
func (d delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState returns nil, because syncd adds nothing to a state exchange.
func (d delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState ignores user state, which a later version may add.
func (d delegate) MergeRemoteState([]byte, bool) {}

// NotifyAlive refuses an alive message with an invalid name, metadata or protocol version. memberlist
// then does not add the node to the membership.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.c.opts.NodeName {
		return nil
	}
	_, err := toMember(n)
	if err == nil {
		err = checkVersions(n)
	}
	if err == nil {
		err = d.c.checkNameLimit(n.Name, time.Now())
	}
	if err != nil {
		d.c.counters.badMeta.Add(1)
		if d.c.logLimit.allow("meta " + n.Addr.String()) {
			d.c.log.Warn("ignored gossip member with invalid metadata",
				"node", printable.Truncated(n.Name, maxName), "gossip_addr", gossipAddr(n), "error", err, "problem", "gossip-invalid",
				"hint", "stop that program, or use the same version of syncd; separate clusters need different gossip keys")
		}
	}
	return err
}

// checkVersions returns an error if a node does not support the protocol versions of this package. A
// single node with incompatible versions stops all membership exchange of memberlist.
func checkVersions(n *memberlist.Node) error {
	const protocol, delegate = memberlist.ProtocolVersion2Compatible, 0
	if n.PCur != protocol || n.PMin > protocol || n.PMax < protocol || n.DCur != delegate || n.DMin > delegate {
		return fmt.Errorf("gossip protocol version %d (%d to %d), delegate version %d (%d to %d): want %d and %d",
			n.PCur, n.PMin, n.PMax, n.DCur, n.DMin, n.DMax, protocol, delegate)
	}
	return nil
}

const (
	// maxNames bounds the number of names present in gossip. Each name uses memory until memberlist
	// detects that its node is dead and removes it.
	maxNames = 1024
	// seenNameTTL is the time for which the name of a non-member counts after its last alive message.
	seenNameTTL = 2 * time.Minute
)

// checkNameLimit returns an error if gossip already contains the maximum number of names.
func (c *Cluster) checkNameLimit(name string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.seenNames[name]; !known && len(c.seenNames) >= maxNames {
		for other, seen := range c.seenNames {
			if _, member := c.members[other]; !member && now.Sub(seen) > seenNameTTL {
				delete(c.seenNames, other)
			}
		}
		if len(c.seenNames) >= maxNames {
			return fmt.Errorf("too many node names in gossip: %d", len(c.seenNames))
		}
	}
	c.seenNames[name] = now
	return nil
}

// NotifyJoin adds a node to the members.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.c.addMember(n) }

// NotifyUpdate replaces a member's data with its current metadata.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.c.addMember(n) }

// NotifyLeave removes a node from the members.
func (d delegate) NotifyLeave(n *memberlist.Node) { d.c.removeMember(n.Name) }

// NotifyConflict records that two addresses use one name.
func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.c.noteConflict(existing.Name, gossipAddr(existing), gossipAddr(other))
}

// toMember validates and converts memberlist's data of a node.
func toMember(n *memberlist.Node) (Member, error) {
	if err := CheckNodeName(n.Name); err != nil {
		return Member{}, err
	}
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return Member{}, err
	}
	return Member{
		Name:        n.Name,
		Incarnation: m.incarnation,
		ServiceAddr: m.serviceAddr,
		GossipAddr:  gossipAddr(n),
	}, nil
}

// addMember adds or replaces a member.
func (c *Cluster) addMember(n *memberlist.Node) {
	if n.Name == c.opts.NodeName || c.stopped.Load() {
		return
	}
	m, err := toMember(n)
	if err != nil {
		// NotifyAlive has validated the same data before, so this is not expected.
		c.counters.badMeta.Add(1)
		c.log.Error("ignored admitted member with invalid metadata", "node", n.Name, "error", err,
			"hint", "use the same version of syncd on all nodes; if the versions are equal, report it")
		return
	}
	c.mu.Lock()
	old, known := c.members[m.Name]
	c.members[m.Name] = m
	delete(c.lost, m.Name)
	c.joinErr = nil
	c.notifySubscribers()
	c.mu.Unlock()

	c.logMember(&old, &m, known)
}

// logMember counts and logs a member that has joined, or has changed if it was known before.
func (c *Cluster) logMember(old, m *Member, known bool) {
	log := c.log.With("peer", m.Name, "incarnation", m.Incarnation, "service_addr", m.ServiceAddr, "gossip_addr", m.GossipAddr)
	switch {
	case !known:
		c.counters.joined.Add(1)
		if c.memberLogLimit.allow("joined " + m.Name) {
			log.Info("peer joined")
		}
	case *old != *m:
		c.counters.updated.Add(1)
		if c.memberLogLimit.allow("updated " + m.Name) {
			log.Info("peer restarted or changed its address", "former_incarnation", old.Incarnation)
		}
	}
}

// removeMember removes a member and stores its last address.
func (c *Cluster) removeMember(name string) {
	if c.stopped.Load() {
		return
	}
	c.mu.Lock()
	m, known := c.members[name]
	if known {
		delete(c.members, name)
		c.rememberLost(m, time.Now())
		c.notifySubscribers()
	}
	c.mu.Unlock()
	if known {
		c.counters.gone.Add(1)
	}
	if known && c.memberLogLimit.allow("gone "+m.Name) {
		c.log.Info("peer left or died", "peer", m.Name, "incarnation", m.Incarnation, "gossip_addr", m.GossipAddr)
	}
}
