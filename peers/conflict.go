package peers

import (
	"net"
	"net/netip"
	"time"
)

const (
	// maxConflicts bounds the name conflicts that wait for a check; one more is
	// left out, and noted again when it is next heard of.
	maxConflicts = 32
	// contestTime is for how long after a conflict about its own name a node
	// introduces itself again and again: the others take it with its new address
	// only after its old one was found dead.
	contestTime = 15 * time.Second
)

// conflict is a name that is claimed at two addresses: either two nodes were
// given the same name, or one came back at another address before the others
// noticed its death.
type conflict struct {
	name, known, claimed string
}

// contend notes a conflict to be checked later: here memberlist holds its lock.
func (c *Cluster) contend(name, known, claimed string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == c.opts.NodeName {
		c.contested = time.Now()
	}
	if len(c.conflicts) < maxConflicts {
		c.conflicts[conflict{name, known, claimed}] = struct{}{}
	}
}

// checkConflicts pings both addresses of each conflict. A node answers only to
// its own name, so two answers mean two nodes.
func (c *Cluster) checkConflicts() {
	c.mu.Lock()
	noted := c.conflicts
	c.conflicts = make(map[conflict]struct{})
	c.mu.Unlock()
	for it := range noted {
		if c.answers(it.name, it.known) && c.answers(it.name, it.claimed) {
			c.counters.nameConflicts.Add(1)
			if c.gate.allow("conflict " + it.name) {
				c.log.Error("two live nodes have the same name: give each node a name of its own, only one of them takes part",
					"name", it.name, "gossip_addr", it.known, "other_gossip_addr", it.claimed)
			}
			continue
		}
		if c.gate.allow("moved " + it.name + it.claimed) {
			c.log.Info("node moved to another address, which counts once its former one is found dead",
				"name", it.name, "gossip_addr", it.known, "other_gossip_addr", it.claimed)
		}
	}
}

// answers reports whether a node of that name answers at addr.
func (c *Cluster) answers(name, addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	if name == c.opts.NodeName {
		if ap == c.self {
			return true
		}
		if ap.Port() == c.self.Port() && isOwnAddr(ap.Addr()) {
			// A former address of this node, at which it still listens.
			return false
		}
	}
	_, err = c.list.Ping(name, net.UDPAddrFromAddrPort(ap))
	return err == nil
}

// isContested reports whether another node claimed this node's name of late.
func (c *Cluster) isContested() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.contested.IsZero() && time.Since(c.contested) < contestTime
}
