package capture

import "mapsync/syncd/table"

// WatchKeys is Watch for a per-CPU map or a map with values above MaxValueSize. A hook reads the value of only one
// CPU, and an event has no room for a larger value, so an update is not applied as a change. The table rereads the
// whole entry instead (table.Tx.RequestRereadOfChange). Values may have any size.
func (c *Capture) WatchKeys(id uint32, t *table.Table) error {
	return c.watch(id, &target{table: t, keySize: t.KeySize()})
}

// WatchSums is WatchKeys for a drained map, whose table has the sums: a key of the table is a key of the map, followed by
// suffix. Each write to the map makes the table reread the sum.
func (c *Capture) WatchSums(id uint32, t *table.Table, suffix []byte) error {
	return c.watch(id, &target{table: t, keySize: t.KeySize() - len(suffix), suffix: suffix})
}

// keysOnly reports whether the events of updates carry no value, see WatchKeys. The pump then requests a reread.
func (t *target) keysOnly() bool { return t.valueSize == 0 }
