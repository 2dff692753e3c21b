package peers

import (
	"net"
	"net/netip"
	"time"
)

const (
	// maxConflicts bounds the name conflicts that wait for a check. Additional conflicts are dropped.
	// They are recorded again when memberlist reports them again.
	maxConflicts = 32
	// nameConflictRejoinTime is the time for which a node announces itself repeatedly after a conflict
	// about its own name. The other nodes accept its new address only after they have detected its
	// former address as dead.
	nameConflictRejoinTime = 15 * time.Second
)

// conflict is a node name in use at two addresses. Either two nodes have the same name, or a node
// returned with another address before the others detected its death.
type conflict struct {
	name, addr, otherAddr string
}

// noteConflict records a conflict for a later check, because memberlist holds its lock here.
func (c *Cluster) noteConflict(name, addr, otherAddr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == c.opts.NodeName {
		c.ownNameConflictAt = time.Now()
	}
	if len(c.conflicts) < maxConflicts {
		c.conflicts[conflict{name, addr, otherAddr}] = struct{}{}
	}
}

// checkConflicts pings both addresses of each conflict. A node answers only to its own name, so two
// answers mean two nodes.
func (c *Cluster) checkConflicts() {
	c.mu.Lock()
	noted := c.conflicts
	c.conflicts = make(map[conflict]struct{})
	c.mu.Unlock()
	for it := range noted {
		if c.answers(it.name, it.addr) && c.answers(it.name, it.otherAddr) {
			c.counters.nameConflicts.Add(1)
			if c.logLimit.allow("conflict " + it.name) {
				c.log.Error("two live nodes have the same name",
					"name", it.name, "gossip_addr", it.addr, "other_gossip_addr", it.otherAddr,
					"problem", "name-conflict", "hint", "give each node its own node-name")
			}
			continue
		}
		if c.logLimit.allow("moved " + it.name + it.otherAddr) {
			c.log.Info("node moved to another address, waiting until the former one fails",
				"name", it.name, "gossip_addr", it.addr, "other_gossip_addr", it.otherAddr)
		}
	}
}

// answers reports whether a node with that name answers at addr.
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
			// This is a former address of this node, on which it still listens.
			return false
		}
	}
	_, err = c.list.Ping(name, net.UDPAddrFromAddrPort(ap))
	return err == nil
}

// hasOwnNameConflict reports whether another node used this node's name within nameConflictRejoinTime.
func (c *Cluster) hasOwnNameConflict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ownNameConflictAt.IsZero() && time.Since(c.ownNameConflictAt) < nameConflictRejoinTime
}
