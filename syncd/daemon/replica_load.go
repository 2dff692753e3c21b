package daemon

import (
	"context"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// load reads the content of the kernel map into the table and returns the number of entries.
// There are three cases. In a new table, entries are unversioned, because an earlier incarnation
// may have written them. If a new kernel map replaces the former one, its entries are changes of
// the load balancer, and the table refills the map. If the same kernel map returns (it was
// unpinned, or could not be written), load compares it with the table like a scan.
func (m *replica) load(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	info := k.Info()
	again := m.loaded == identityOf(&info) && m.offered == t
	if !again {
		// Kept if the same map returns: after a failed rescan, the next load must rescan it, too.
		// Otherwise the entries of peers in it would become changes of this node.
		m.loaded = mapIdentity{}
	}
	switch {
	case !m.wasOffered:
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

// rescan finds the changes that were made while no hook watched the map. Records that peers sent
// meanwhile are not yet written to the map, and stay.
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
	return k.Scan(ctx, begin, func(at int64, keys, values []byte) error {
		t.Update(func(tx *table.Tx) {
			for ; len(keys) > 0; keys, values = keys[ks:], values[vs:] {
				fn(tx, &table.Change{Key: keys[:ks], Value: values[:vs], Time: at, Op: table.OpUpdate, Read: reading})
			}
		})
		return nil
	})
}
