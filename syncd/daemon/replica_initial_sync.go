package daemon

import "mapsync/syncd/table"

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

// saveIdentityWhenApplied saves the identity of the kernel map for the next incarnation when the
// map holds the records that peers have sent. Only from then on does an absent key mean a delete.
// Without a peer the identity is not saved: peers may hold records of this node's earlier
// incarnations. It also waits for peers that have not adopted their own entries yet, because these
// send no records before.
func (m *replica) saveIdentityWhenApplied() {
	m.mu.Lock()
	saved, synced := m.identitySaved || m.kernel == nil || m.state != MapReplicating, m.syncBarrier != nil
	m.mu.Unlock()
	if saved {
		return
	}
	synced = synced || m.daemon.replicator.Stats().Peers > 0 && m.daemon.waitingUntil(m.daemon.replicator.AllReceived, m.name) == ""
	m.mu.Lock()
	defer m.mu.Unlock()
	// Another kernel map may have been attached between the locks.
	if !synced || m.kernel == nil || m.identitySaved || m.state != MapReplicating {
		return
	}
	if m.syncBarrier == nil {
		m.table.View(func(tx *table.Tx) { m.syncBarrier = tx.AddBarrier() })
	}
	if m.barrierPending(m.syncBarrier) > 0 {
		return // a record that did not fit was not deleted
	}
	m.identitySaved = true
	info := m.kernel.m.Info()
	m.daemon.state.setIdentity(m.name, identityOf(&info))
}
