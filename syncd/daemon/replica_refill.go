package daemon

import (
	"context"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// refill makes the writer fill a new map from the table, and enters the entries that the map holds already. An entry
// without a record counts as the load balancer's only if the table has the records of all peers. A converted table
// lacks those that arrived since its conversion.
func (m *replica) refill(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	complete := m.offered == t && m.daemon.waitingFor(m.name) == ""
	t.Update(func(tx *table.Tx) { tx.Refill() })
	var reading table.Reading
	err = m.eachEntry(ctx, k, t, &reading, func(tx *table.Tx, c *table.Change) {
		tx.LoadNewMap(c, complete)
		n++
	})
	t.Update(func(tx *table.Tx) { tx.EndReading(&reading) })
	return n, err
}
