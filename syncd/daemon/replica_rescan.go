package daemon

import (
	"context"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// rescan finds the changes that were made while no hook watched the map. Records that peers sent
// meanwhile are not yet written to the map, and stay.
func (m *replica) rescan(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	t.Update(func(tx *table.Tx) { tx.BeginScan(m.daemon.clock.now()) })
	var reading table.Reading
	err = m.eachEntry(ctx, k, t, &reading, func(tx *table.Tx, c *table.Change) {
		c.Context = table.ContextReread
		tx.Scanned(c)
		n++
	})
	t.Update(func(tx *table.Tx) { tx.EndReading(&reading) })
	for more := err == nil; more; {
		t.Update(func(tx *table.Tx) { more = tx.EndScan(adoptChunk) })
	}
	return n, err
}

// eachEntry calls fn with every entry of the map. The time of a change is read before the entry,
// so that changes that the hooks report meanwhile are later. fn must not keep the change. If
// reading is not nil, it begins before each read.
func (m *replica) eachEntry(
	ctx context.Context, k *kmap.Map, t *table.Table, reading *table.Reading, fn func(*table.Tx, *table.Change),
) error {
	ks, vs := t.KeySize(), t.ValueSize()
	begin := func() int64 {
		if reading != nil {
			t.View(func(tx *table.Tx) { tx.BeginReading(reading) })
		}
		return m.daemon.clock.now()
	}
	return k.Read(ctx, begin, func(at int64, keys, values []byte) error {
		t.Update(func(tx *table.Tx) {
			tx.AdvanceClock(m.daemon.clock.now())
			for ; len(keys) > 0; keys, values = keys[ks:], values[vs:] {
				fn(tx, &table.Change{Key: keys[:ks], Value: values[:vs], Time: at, Op: table.OpUpdate, Read: reading})
			}
		})
		return nil
	})
}
