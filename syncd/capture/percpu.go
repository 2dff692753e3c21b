package capture

import "mapsync/syncd/table"

// WatchKeys is Watch for a per-CPU map. A hook sees the value of only one CPU, so an update is not
// applied as a change. The table rereads the whole entry instead (table.Tx.RequestReread). Values
// may have any size.
func (c *Capture) WatchKeys(id uint32, t *table.Table) error {
	return c.watch(id, t, 0)
}
