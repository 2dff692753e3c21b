package daemon

import "mapsync/syncd/table"

// holdDeletes sets whether deletes of peers' entries by bpf(2) are undone in spite of the setting deletes. They are held
// until all maps of this node are ready: a collector may find an entry useless because a related map lacks its
// entries. A drained node holds none.
func (d *Daemon) holdDeletes(held bool) {
	for _, m := range d.replicas() {
		if t, _ := m.current(); t != nil {
			t.View(func(tx *table.Tx) { tx.HoldDeletes(held) })
		}
	}
}
