package daemon

import (
	"context"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

func (m *replica) refill(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	t.Update(func(tx *table.Tx) { tx.Refill() })
	err = m.eachEntry(ctx, k, t, nil, func(tx *table.Tx, c *table.Change) {
		c.Context = table.ContextProcess
		tx.Local(c)
		n++
	})
	return n, err
}
