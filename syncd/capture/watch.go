package capture

import (
	"errors"
	"fmt"

	"mapsync/bpf"
	"mapsync/syncd/table"
)

// target is a watched map and the table that its changes go to.
type target struct {
	table     *table.Table
	keySize   int
	valueSize int
}

// Watch sends the changes of the kernel map id to t, from the next write on. It
// fails with ErrEntryTooLarge when an event could not carry an entry.
func (c *Capture) Watch(id uint32, t *table.Table) error {
	if err := CheckEntry(t.KeySize(), t.ValueSize()); err != nil {
		return fmt.Errorf("watch map %d: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter == nil {
		return errors.New("watch a map: capture is closed")
	}
	if c.targets[id] != nil {
		return fmt.Errorf("watch map %d: it is watched already", id)
	}
	if len(c.targets) == MaxMaps {
		return fmt.Errorf("watch map %d: %d maps are watched already, the most there can be", id, MaxMaps)
	}
	w := bpf.CaptureWatch{KeySize: uint32(t.KeySize()), ValueSize: uint32(t.ValueSize())}
	if err := c.objects.Maps["watched"].Put(id, &w); err != nil {
		return fmt.Errorf("watch map %d: %w", id, err)
	}
	c.targets[id] = &target{table: t, keySize: t.KeySize(), valueSize: t.ValueSize()}
	c.filter.set(id, true)
	return nil
}

// Unwatch stops reporting the changes of the kernel map id. What the buffer
// still holds of them is discarded.
func (c *Capture) Unwatch(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter == nil || c.targets[id] == nil {
		return nil
	}
	c.filter.set(id, false)
	delete(c.targets, id)
	if err := c.objects.Maps["watched"].Delete(id); err != nil {
		return fmt.Errorf("stop watching map %d: %w", id, err)
	}
	return nil
}

// CheckEntry says whether an event can carry keys and values of these sizes, in bytes.
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
