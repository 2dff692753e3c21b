package daemon

import (
	"errors"
	"fmt"
	"maps"
	"sync"
)

// errDuplicate is wrapped by the error of a map whose kernel map another name stands for.
var errDuplicate = errors.New("one kernel map cannot be replicated under two names")

// claims records which replica uses which kernel map. Two names for one kernel map would
// write over each other, and one's refusal would take the hooks away from the other.
type claims struct {
	mu   sync.Mutex
	byID map[uint32]*replica // by the kernel map's id
	// heirs wait for a kernel map that a later name held. Until the heir takes the map or
	// wants it no longer, no later name takes it.
	heirs map[uint32]*replica
}

// take claims a kernel map for m. The map that comes first in the settings is served,
// whichever was attached first, so that all nodes with these settings choose alike: a
// later one that holds the kernel map is made to release it, and m tries again.
func (c *claims) take(id uint32, m *replica) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disclaim(m)
	if c.byID == nil {
		c.byID, c.heirs = make(map[uint32]*replica), make(map[uint32]*replica)
	}
	holder, heir := c.byID[id], c.heirs[id]
	switch {
	case heir != nil && heir.order < m.order:
		return duplicate(id, heir)
	case holder == nil || holder == m:
		c.byID[id] = m
		return nil
	case m.order < holder.order:
		c.heirs[id] = m
		holder.abandon(duplicate(id, m))
	}
	return duplicate(id, holder)
}

// withdraw notes that m no longer waits for a kernel map.
func (c *claims) withdraw(m *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disclaim(m)
}

// disclaim is withdraw; the lock is held.
func (c *claims) disclaim(m *replica) {
	maps.DeleteFunc(c.heirs, func(_ uint32, heir *replica) bool { return heir == m })
}

// reorder gives each replica its place in the settings.
func (c *claims) reorder(list []*replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range list {
		m.order = i
	}
}

// release ends a claim of m; it does nothing if m has none.
func (c *claims) release(id uint32, m *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID[id] == m {
		delete(c.byID, id)
	}
}

func duplicate(id uint32, holder *replica) error {
	return fmt.Errorf("use kernel map %d: %w: map %s stands for it: remove one of the two from the settings", id, errDuplicate, holder.name)
}

// abandon detaches the kernel map because of err.
func (m *replica) abandon(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		m.fail(err)
	}
}
