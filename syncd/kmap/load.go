package kmap

import (
	"context"
	"fmt"

	"mapsync/syncd/table"
)

// LoadAll loads the content of the map into the table as unversioned entries, which the table
// adopts later. The map's hooks must already report to the table. LoadAll returns the number of
// entries loaded. The table counts the entries that it refused. now returns the wall clock in nanoseconds.
func LoadAll(ctx context.Context, m *Map, t *table.Table, now func() int64) (n int, err error) {
	t.Update(func(tx *table.Tx) { tx.BeginLoad() })
	defer t.Update(func(tx *table.Tx) {
		tx.AdvanceClock(now())
		tx.EndLoad()
	})
	err = m.ForEach(ctx, func(key, value []byte) error {
		t.Update(func(tx *table.Tx) {
			if tx.Load(key, value) == table.Accepted {
				n++
			}
		})
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("load first content: %w", err)
	}
	return n, nil
}
