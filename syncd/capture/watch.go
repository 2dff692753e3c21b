package capture

import (
	"errors"
	"fmt"

	"mapsync/syncd/table"
)

// target is a watched map and the table that its changes go to.
type target struct {
	table     *table.Table
	keySize   int
	valueSize int // 0: events carry the key alone
}

// Watch sends the changes of the kernel map id to t, from the next write on. It
// fails with ErrEntryTooLarge when an event could not carry an entry.
func (c *Capture) Watch(id uint32, t *table.Table) error {
	return c.watch(id, t, t.ValueSize())
}

// WatchKeys is Watch for a per-CPU map, of which a hook sees the value of one CPU
// only: an update is no change of the table, which is asked to have the key read
// again whole (table.Tx.Reread). Values may have any size.
func (c *Capture) WatchKeys(id uint32, t *table.Table) error {
	return c.watch(id, t, 0)
}

func (c *Capture) watch(id uint32, t *table.Table, valueSize int) error {
	if err := CheckEntry(t.KeySize(), valueSize); err != nil {
		return fmt.Errorf("watch map %d: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches == nil {
		return errors.New("watch a map: capture is closed")
	}
	if c.targets[id] != nil {
		return fmt.Errorf("watch map %d: it is watched already", id)
	}
	if len(c.targets) == MaxMaps {
		return fmt.Errorf("watch map %d: %d maps are watched already, the most there can be", id, MaxMaps)
	}
	c.targets[id] = &target{table: t, keySize: t.KeySize(), valueSize: valueSize}
	c.watches.add(id, t.KeySize(), valueSize)
	return nil
}

// Unwatch stops reporting the changes of the kernel map id. What the buffer
// still holds of them is discarded: after Unwatch the table gets nothing of them.
func (c *Capture) Unwatch(id uint32) {
	c.unwatch(id)
	// The pump may be in the middle of a batch for that table.
	c.pump.mu.Lock()
	defer c.pump.mu.Unlock()
}

func (c *Capture) unwatch(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches == nil || c.targets[id] == nil {
		return
	}
	c.watches.remove(id)
	delete(c.targets, id)
}

// CheckEntry says whether an event can carry keys and values of these sizes, in
// bytes: values of 0 for a map that [Capture.WatchKeys] is for.
func CheckEntry(keySize, valueSize int) error {
	if keySize > MaxKeySize || valueSize > MaxValueSize {
		return fmt.Errorf("%w: key %d and value %d bytes, at most %d and %d can be carried",
			ErrEntryTooLarge, keySize, valueSize, MaxKeySize, MaxValueSize)
	}
	return nil
}

func (c *Capture) target(id uint32) *target {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.targets[id]
}
