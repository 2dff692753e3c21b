package tabletest

import "mapsync/syncd/table"

// SaveMapID stores the id of the map in the state file once the map holds the records of the initial
// sync. A restart before that treats absent keys as unknown, and refills them from the peers. The same holds while the map
// does not hold a record of this node.
func (d *Daemon) SaveMapID() {
	if d.m == nil || d.state != stateReplicating {
		return
	}
	held, unheld := false, table.Unheld{}
	d.tab.View(func(tx *table.Tx) {
		restores, _ := tx.RestoresClear()
		held, unheld = tx.OwnNotHeld() == 0 && !tx.UnheldOverflow() && !restores, tx.Unheld()
	})
	d.saveReturn()
	defer d.noteLacking()
	if d.inStateFile {
		if d.n.stateUnheld = unheld; !held {
			d.inStateFile, d.n.StateFileMap, d.initialSyncDone = false, 0, false
		}
		return
	}
	if !d.initialSyncDone && !d.restores && (d.alone() || !d.allReceived()) || d.restores && !held {
		return
	}
	if !d.initialSyncDone {
		d.initialSyncDone, d.restores = true, false
		d.tab.View(func(tx *table.Tx) { d.syncBarrier = tx.AddBarrier() })
	}
	pending := 0
	d.tab.View(func(tx *table.Tx) { pending = tx.PendingWrites(d.syncBarrier) })
	if pending == 0 && held {
		d.inStateFile, d.n.StateFileMap, d.n.stateUnheld = true, d.m.ID, unheld
	}
}

// noteLacking notes the keys of this node whose records the daemon knows, or has filtered, and that the map which the state file
// names lacks.
func (d *Daemon) noteLacking() {
	clear(d.n.lacking)
	if !d.inStateFile {
		return
	}
	if d.n.unheldKeys |= d.awaited; len(d.n.stateUnheld.Hashes) == 0 {
		d.n.unheldKeys = 0
	}
	d.tab.View(func(tx *table.Tx) {
		for key := range d.m.entries {
			c := d.n.content(tx, key)
			refused := c.Live() && c.version != 0 && c.Owner.Node == d.n.Name && tx.OwnNotHeld() > 0
			filtered := d.awaited&(1<<(key%64)) != 0 && len(d.m.entries) <= 64
			d.n.lacking[key] = !d.m.entries[key].live && (refused || filtered)
		}
	})
}

// settleDeletes settles the deletes that wait. The state file does not name the map while the entries of a clear are being
// restored.
func (d *Daemon) settleDeletes(tx *table.Tx) {
	for awaited := true; awaited; {
		for tx.SettleDeletes(d.n.clock(), nil, 2) {
		}
		if _, awaited = tx.RestoresClear(); awaited {
			d.restores = d.restores || d.inStateFile || d.initialSyncDone
			d.inStateFile, d.n.StateFileMap, d.initialSyncDone = false, 0, false
			tx.AllowRestore()
		}
	}
}
