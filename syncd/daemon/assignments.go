package daemon

import (
	"errors"
	"fmt"
	"maps"
	"sync"
)

// errDuplicate is wrapped by the error of a map whose kernel map is in use under another name.
var errDuplicate = errors.New("a kernel map can be replicated under one name only")

// assignments records which replica uses which kernel map. Two names for one kernel map would
// overwrite each other's entries, and the refusal of one would remove the hooks of the other.
type assignments struct {
	mu   sync.Mutex
	byID map[uint32]*replica // the replica that uses a kernel map, by the kernel map's id
	// waiters are the replicas that wait for a kernel map in use by a later name, by the kernel
	// map's id. No later name acquires the kernel map until the waiter acquires it or cancels its
	// wait.
	waiters map[uint32]*replica
}

// acquire assigns a kernel map to m. Of several names for one kernel map, the first in the
// settings gets it, in any order of attachment. All nodes with these settings therefore make the
// same choice. If a later name uses the kernel map, acquire makes it release the kernel
// map. It then returns an error that wraps errDuplicate, and m tries again.
func (c *assignments) acquire(id uint32, m *replica) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancelWaitLocked(m)
	if c.byID == nil {
		c.byID, c.waiters = make(map[uint32]*replica), make(map[uint32]*replica)
	}
	holder, waiter := c.byID[id], c.waiters[id]
	switch {
	case waiter != nil && waiter.order < m.order:
		return duplicate(id, waiter)
	case holder == nil || holder == m:
		c.byID[id] = m
		return nil
	case m.order < holder.order:
		c.waiters[id] = m
		holder.cancelFollow(duplicate(id, m))
	}
	return duplicate(id, holder)
}

// cancelWait records that m no longer waits for a kernel map.
func (c *assignments) cancelWait(m *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancelWaitLocked(m)
}

// cancelWaitLocked is cancelWait for callers that hold c.mu.
func (c *assignments) cancelWaitLocked(m *replica) {
	maps.DeleteFunc(c.waiters, func(_ uint32, waiter *replica) bool { return waiter == m })
}

// reorder sets the order of each replica to its position in list, which is the order of the
// settings.
func (c *assignments) reorder(list []*replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range list {
		m.order = i
	}
}

// release ends the use of a kernel map by m. It does nothing if m does not use the kernel map.
func (c *assignments) release(id uint32, m *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID[id] == m {
		delete(c.byID, id)
	}
}

func duplicate(id uint32, holder *replica) error {
	return fmt.Errorf("use kernel map %d: %w: map %s uses it: remove one of the two from the settings", id, errDuplicate, holder.name)
}

// cancelFollow ends follow with err, which detaches the kernel map.
func (m *replica) cancelFollow(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		m.fail(err)
	}
}
