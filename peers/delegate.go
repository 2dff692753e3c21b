package peers

import (
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
)

// delegate is what memberlist calls. It calls with its own lock held, so nothing
// here may call back into it.
type delegate struct{ c *Cluster }

// NodeMeta returns what this node says about itself.
func (d delegate) NodeMeta(int) []byte {
	return meta{incarnation: d.c.opts.Incarnation, serviceAddr: d.c.opts.ServiceAddr}.encode()
}

// NotifyMsg ignores messages of an application: there are none.
func (d delegate) NotifyMsg([]byte) {}

// GetBroadcasts has nothing to add to gossip.
func (d delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState has nothing to add to a state exchange.
func (d delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState ignores what a later version may add.
func (d delegate) MergeRemoteState([]byte, bool) {}

// NotifyAlive refuses a sign of life of a node that does not introduce itself
// properly, which keeps it out of the membership.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.c.opts.NodeName {
		return nil
	}
	_, err := toMember(n)
	if err == nil {
		err = checkVersions(n)
	}
	if err == nil {
		err = d.c.nameFits(n.Name, time.Now())
	}
	if err != nil {
		d.c.counters.badMeta.Add(1)
		if d.c.gate.allow("meta " + n.Addr.String()) {
			d.c.log.Warn("ignored a node that does not introduce itself properly: is it another program, or another version?",
				"node", n.Name, "gossip_addr", gossipAddr(n), "error", err)
		}
	}
	return err
}

// checkVersions returns an error if a node does not speak the protocol versions
// that this package speaks. memberlist exchanges no membership at all while it has
// one node whose versions do not fit those of another.
func checkVersions(n *memberlist.Node) error {
	const protocol, delegate = memberlist.ProtocolVersion2Compatible, 0
	if n.PCur != protocol || n.PMin > protocol || n.PMax < protocol || n.DCur != delegate || n.DMin > delegate {
		return fmt.Errorf("gossip protocol version %d (%d to %d), delegate version %d (%d to %d): want %d and %d",
			n.PCur, n.PMin, n.PMax, n.DCur, n.DMin, n.DMax, protocol, delegate)
	}
	return nil
}

const (
	// maxNames bounds the names that gossip may have at a time: each costs memory
	// until it is found dead and forgotten.
	maxNames = 1024
	// nameTime is how long a name counts after its node was a member.
	nameTime = 2 * time.Minute
)

// nameFits returns an error if gossip has too many names already.
func (c *Cluster) nameFits(name string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.names[name]; !known && len(c.names) >= maxNames {
		for other, seen := range c.names {
			if _, member := c.members[other]; !member && now.Sub(seen) > nameTime {
				delete(c.names, other)
			}
		}
		if len(c.names) >= maxNames {
			return fmt.Errorf("gossip has %d names already", len(c.names))
		}
	}
	c.names[name] = now
	return nil
}

// NotifyJoin takes a node into the members.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.c.admit(n) }

// NotifyUpdate takes over what a member says about itself now.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.c.admit(n) }

// NotifyLeave drops a node from the members.
func (d delegate) NotifyLeave(n *memberlist.Node) { d.c.dismiss(n.Name) }

// NotifyConflict notes that a name is claimed at two addresses.
func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.c.contend(existing.Name, gossipAddr(existing), gossipAddr(other))
}

// toMember checks and converts what memberlist knows of a node.
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

// admit adds or replaces a member.
func (c *Cluster) admit(n *memberlist.Node) {
	if n.Name == c.opts.NodeName || c.over.Load() {
		return
	}
	m, err := toMember(n)
	if err != nil {
		// NotifyAlive saw the same data before, so this should not happen.
		c.counters.badMeta.Add(1)
		c.log.Error("ignored a node that was admitted unchecked", "node", n.Name, "error", err)
		return
	}
	c.mu.Lock()
	old, known := c.members[m.Name]
	c.members[m.Name] = m
	delete(c.lost, m.Name)
	c.joinErr = nil
	c.changed()
	c.mu.Unlock()

	log := c.log.With("peer", m.Name, "incarnation", m.Incarnation, "service_addr", m.ServiceAddr, "gossip_addr", m.GossipAddr)
	switch {
	case !known:
		c.counters.joined.Add(1)
		if c.moves.allow("joined " + m.Name) {
			log.Info("peer joined")
		}
	case old != m:
		c.counters.updated.Add(1)
		if c.moves.allow("updated " + m.Name) {
			log.Info("peer restarted or changed its address", "former_incarnation", old.Incarnation)
		}
	}
}

// dismiss removes a member and remembers where it was.
func (c *Cluster) dismiss(name string) {
	if c.over.Load() {
		return
	}
	c.mu.Lock()
	m, known := c.members[name]
	if known {
		delete(c.members, name)
		c.remember(m, time.Now())
		c.changed()
	}
	c.mu.Unlock()
	if known {
		c.counters.gone.Add(1)
	}
	if known && c.moves.allow("gone "+m.Name) {
		c.log.Info("peer left or died", "peer", m.Name, "incarnation", m.Incarnation, "gossip_addr", m.GossipAddr)
	}
}
