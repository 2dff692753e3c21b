package capture

import "mapsync/syncd/table"

// WatchKeys is Watch for a per-CPU map. A hook sees the value of only one CPU, so an update is not
// applied as a change. The table rereads the whole entry instead (table.Tx.RequestReread). Values
// may have any size.
func (c *Capture) WatchKeys(id uint32, t *table.Table) error {
	return c.watch(id, t, 0)
}

// keysOnly reports whether the events of updates carry no value, because the value of a per-CPU map has a
// part for each CPU and an update changes one. The pump then requests a reread.
func (t *target) keysOnly() bool { return t.valueSize == 0 }
