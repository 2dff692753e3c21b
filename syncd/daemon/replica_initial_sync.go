package daemon

import (
	"time"

	"mapsync/syncd/table"
)

// adoptChunk is the number of records that are adopted while the table's lock is held once.
// Other users of the table therefore do not wait long.
const adoptChunk = 4096

func adoptAll(t *table.Table) {
	for more := true; more; {
		t.Update(func(tx *table.Tx) { more = tx.Adopt(adoptChunk) })
	}
}

// adopt ends the initial sync of the map when every live peer has sent its records, or after
// sync-timeout. Entries that were found in the kernel map and that no peer has then become
// changes of this node.
func (m *replica) adopt() {
	m.mu.Lock()
	state, t, since := m.state, m.table, m.since
	m.mu.Unlock()
	switch state {
	case MapSyncing:
	case MapReplicating:
		m.saveIdentityWhenApplied()
		m.decideAbsent(t)
		return
	default:
		return
	}
	// Not read earlier: before the map is offered to peers, the replicator waits for no peer.
	waiting := m.daemon.waitingFor(m.name)
	switch {
	case waiting != "" && !m.daemon.pastSyncTimeout(since):
		return
	case waiting != "":
		m.log.Warn("initial sync not complete within sync-timeout, continuing", "waiting_for", waiting,
			"hint", "restore the stream to these peers; if large maps need longer: raise sync-timeout")
	}
	unversioned := t.Stats().Unversioned
	adoptAll(t)
	m.mu.Lock()
	// Otherwise another kernel map was attached meanwhile, whose initial sync is not complete.
	same := m.state == MapSyncing && m.table == t && m.since.Equal(since)
	if same {
		m.state = MapReplicating
	}
	m.mu.Unlock()
	if !same {
		return
	}
	m.log.Info("map is replicating", "adopted", unversioned, "live", t.Stats().Live)
}

// decideAbsent decides about the entries of earlier incarnations that the kernel map lacks, once every live peer whose map fits
// has sent all its records. Peers that were restarted at the same time send theirs after the initial sync. decideAbsent waits for at
// most twice sync-timeout.
func (m *replica) decideAbsent(t *table.Table) {
	var wait bool
	t.View(func(tx *table.Tx) { wait = tx.AbsentWait() })
	switch {
	case !wait:
		m.absentSince = time.Time{}
		return
	case m.absentSince.IsZero():
		m.absentSince = time.Now()
	}
	if m.daemon.waitingUntil(m.daemon.replicator.FittingReceived, m.name) == "" || time.Since(m.absentSince) > 2*m.daemon.config.SyncTimeout {
		t.Update(func(tx *table.Tx) { tx.DecideAbsent() })
	}
}

// saveIdentityWhenApplied saves the identity of the kernel map for the next incarnation when the
// map holds the records that peers have sent. Only from then on does an absent key mean a delete.
// Without a peer the identity is not saved: peers may hold records of this node's earlier
// incarnations. It also waits for peers that have not adopted their own entries yet, because these
// send no records before.
//
// Records of this node that peers have sent or named, and that this node has filtered, are saved with the identity:
// their absence means nothing. If too many of them are unknown, or if the map does not hold some of this node's
// records, the identity is removed until that ends.
func (m *replica) saveIdentityWhenApplied() {
	m.mu.Lock()
	replicating, synced := m.kernel != nil && m.state == MapReplicating, m.syncBarrier != nil || m.identitySaved || m.restores
	m.mu.Unlock()
	if !replicating {
		return
	}
	synced = synced || m.daemon.replicator.Stats().Peers > 0 && m.daemon.waitingUntil(m.daemon.replicator.AllReceived, m.name) == ""
	m.mu.Lock()
	defer m.mu.Unlock()
	// Another kernel map may have been attached between the locks.
	if !synced || m.kernel == nil || m.state != MapReplicating {
		return
	}
	serial, complete, restores := m.heldOrNamed()
	switch {
	case complete && m.identitySaved && serial == m.unheldSerial:
		return
	case !complete && m.identitySaved:
		m.identitySaved, m.restores = false, m.restores || restores
		m.daemon.state.removeIdentity(m.name)
	case complete && !m.identitySaved && m.syncBarrier == nil:
		m.table.View(func(tx *table.Tx) { m.syncBarrier = tx.AddBarrier() })
	}
	// A record that did not fit was not deleted.
	if !complete || (!m.identitySaved && m.barrierPending(m.syncBarrier) > 0) {
		return
	}
	m.saveIdentity()
}

// maxRestoreWait bounds the wait for the state file before entries of a clear are restored: a disk may hang.
const maxRestoreWait = 10 * time.Second

// beforeRestore removes the identity of the kernel map until the entries of a clear are restored. A syncd that is killed
// meanwhile would take the absence of the rest for deletes at its next start. It reports whether the state file is written,
// and is called again until then.
func (m *replica) beforeRestore() (done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.restoreAsked.IsZero() {
		m.restoreAsked = time.Now()
		m.restores = m.restores || m.identitySaved || m.syncBarrier != nil
		m.identitySaved = false
		m.removeBarrier(&m.syncBarrier)
		m.daemon.state.removeIdentity(m.name)
	}
	if !m.daemon.state.written() && time.Since(m.restoreAsked) < maxRestoreWait {
		return false
	}
	m.restoreAsked = time.Time{}
	return true
}

// heldOrNamed reports whether the kernel map holds all records of this node, except for the unheld keys, and for entries of a
// clear that are not restored yet. serial is table.Tx.UnheldSerial. The lock is held.
func (m *replica) heldOrNamed() (serial uint64, complete, restores bool) {
	m.table.View(func(tx *table.Tx) {
		serial, _ = tx.UnheldSerial()
		restores, _ = tx.RestoresClear()
		complete = tx.OwnNotHeld() == 0 && !tx.UnheldOverflow() && !restores
	})
	return serial, complete, restores
}

// saveIdentity saves the identity of the kernel map and the unheld keys. The lock is held.
func (m *replica) saveIdentity() {
	var unheld table.Unheld
	m.table.View(func(tx *table.Tx) {
		unheld = tx.Unheld()
		m.unheldSerial, _ = tx.UnheldSerial()
	})
	m.identitySaved, m.restores, m.restoreAsked = true, false, time.Time{}
	m.removeBarrier(&m.syncBarrier)
	info := m.kernel.m.Info()
	m.daemon.state.setIdentity(m.name, identityOf(&info), &unheld)
}
