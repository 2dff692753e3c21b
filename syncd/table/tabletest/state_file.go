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
