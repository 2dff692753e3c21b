package capture

import (
	"errors"
	"fmt"

	"mapsync/syncd/table"
)

// target is a watched map and the table that receives its changes.
type target struct {
	table     *table.Table
	keySize   int
	valueSize int // 0: events carry only the key
	// suffix follows each key of the map in the table's keys. With a suffix, each event leads to a reread.
	suffix []byte
	key    []byte // a key with the suffix
	entry  []byte // a translated entry
}

// translate replaces the ids of other maps in a key and a value, which may be nil, by the numbers that the table has. The results are
// valid until the next call.
func (t *target) translate(key, value []byte) (k, v []byte) {
	meanings := t.table.Meanings()
	if meanings == nil {
		return key, value
	}
	t.entry = append(append(t.entry[:0], key...), value...)
	k = t.entry[:len(key):len(key)]
	if value != nil {
		v = t.entry[len(key):]
	}
	meanings.FromKernel(k, v)
	return k, v
}

// tableKey returns the table's key for a key of the map, until the next call.
func (t *target) tableKey(key []byte) []byte {
	if t.suffix == nil {
		key, _ = t.translate(key, nil)
		return key
	}
	t.key = append(append(t.key[:0], key...), t.suffix...)
	return t.key
}

// Watch sends the changes of the kernel map id to t, from the next write on. It returns
// ErrEntryTooLarge if an event cannot carry an entry of the map.
func (c *Capture) Watch(id uint32, t *table.Table) error {
	return c.watch(id, &target{table: t, keySize: t.KeySize(), valueSize: t.ValueSize()})
}

func (c *Capture) watch(id uint32, t *target) error {
	if err := CheckEntry(t.keySize, t.valueSize); err != nil {
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
	if !c.watches.add(id, t.keySize, t.valueSize) {
		return fmt.Errorf("watch map %d: the hooks find at most %d maps whose ids are alike. Create the map again, with another id", id, watchProbes)
	}
	c.targets[id] = t
	return nil
}

// Unwatch stops reporting the changes of the kernel map id. It discards events of the map that are
// still in the buffer. After Unwatch returns, the table receives no further changes.
func (c *Capture) Unwatch(id uint32) {
	c.unwatch(id)
	// Waits for the pump, which may be in the middle of a batch for that table.
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

// CheckEntry returns ErrEntryTooLarge if an event cannot carry keys and values of these sizes, in
// bytes. valueSize is 0 for a map that is watched with [Capture.WatchKeys].
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
