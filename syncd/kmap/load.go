package kmap

import (
	"context"
	"fmt"

	"mapsync/syncd/table"
)

// LoadAll enters the content of the map into the table as its first content:
// unversioned, until the table claims it. The map's hooks must report to the table already. It returns the number of entries loaded;
// those that the table refused are counted there.
func LoadAll(ctx context.Context, m *Map, t *table.Table) (n int, err error) {
	t.Update(func(tx *table.Tx) { tx.BeginLoad() })
	defer t.Update(func(tx *table.Tx) { tx.EndLoad() })
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
