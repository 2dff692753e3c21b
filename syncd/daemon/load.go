package daemon

import (
	"context"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// load enters the map's content: as what an earlier incarnation may have left
// when the table is new; as what the load balancer has written since when a new
// map came under a table that already knows more, and refills it; and when the same map
// comes again (it was unpinned, or could not be written) as what a scan finds.
func (m *replica) load(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	info := k.Info()
	again := m.loaded == identityOf(&info) && m.offered == t
	if !again {
		m.loaded = mapIdentity{} // a rescan that fails leaves it the same map: peers' entries in it are no news
	}
	switch {
	case !m.known:
		n, err = kmap.LoadAll(ctx, k, t)
	case again:
		n, err = m.rescan(ctx, k, t)
	default:
		n, err = m.refill(ctx, k, t)
	}
	if err == nil {
		m.loaded = identityOf(&info)
	}
	return n, err
}

func (m *replica) refill(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	t.Update(func(tx *table.Tx) { tx.Refill() })
	err = m.eachEntry(ctx, k, t, nil, func(tx *table.Tx, c *table.Change) {
		c.Context = table.ContextProcess
		tx.Local(c)
		n++
	})
	return n, err
}

// rescan finds what changed while nobody watched. What peers have told meanwhile
// is yet to be written, and stays.
func (m *replica) rescan(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	t.Update(func(tx *table.Tx) { tx.BeginScan() })
	var reading table.Reading
	err = m.eachEntry(ctx, k, t, &reading, func(tx *table.Tx, c *table.Change) {
		c.Context = table.ContextReread
		tx.Scanned(c)
		n++
	})
	t.Update(func(tx *table.Tx) { tx.EndReading(&reading) })
	for more := err == nil; more; {
		t.Update(func(tx *table.Tx) { more = tx.EndScan(claimChunk) })
	}
	return n, err
}

// eachEntry calls fn with every entry of the map, dated before it was read: what the
// hooks report meanwhile is later. The change is good during the call only. A reading that
// is not nil begins before each read.
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
	return k.Scan(ctx, begin, func(at int64, keys, values []byte) error {
		t.Update(func(tx *table.Tx) {
			for ; len(keys) > 0; keys, values = keys[ks:], values[vs:] {
				fn(tx, &table.Change{Key: keys[:ks], Value: values[:vs], Time: at, Op: table.OpUpdate, Read: reading})
			}
		})
		return nil
	})
}
