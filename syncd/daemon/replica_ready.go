package daemon

import (
	"fmt"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// readiness returns the state of the map, and the reason at this node why it is not ready. The
// reason is empty if the map only waits for peers.
func (m *replica) readiness() (readyState, string) {
	ignoreFailed := m.ignoreFailedWrites()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return notReady, m.err.Error()
	case m.state == MapWaiting && m.absent && m.daemon.config.IsOptional(m.name):
		return readyConfirmed, ""
	case m.state != MapReplicating && m.state != MapSyncing:
		return notReady, string(m.state)
	case m.readyState == readyConfirmed:
		return readyConfirmed, ""
	}
	if reason := m.tooSmallReason(ignoreFailed); reason != "" {
		return m.readyState, reason
	}
	if reason := m.missingRoles(); reason != "" {
		return notReady, reason
	}
	if m.readyBarrier != nil {
		if n := m.entriesToWrite(ignoreFailed); n > 0 {
			return m.readyState, fmt.Sprintf("received entries are being written to the kernel map, %d to go", n)
		}
	}
	return m.readyState, ""
}

// setAbsent records whether the reference means no kernel map.
func (m *replica) setAbsent(absent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.absent = absent
}

// mapReplaced reports whether the reference now means another kernel map than the attached one.
func (m *replica) mapReplaced() bool {
	m.mu.Lock()
	a := m.kernel
	m.mu.Unlock()
	if a == nil {
		return false // not attached: readiness returns the reason
	}
	means, err := kmap.RefersTo(m.ref, a.source, m.daemon.pinOwners...)
	return err == nil && !means // the watcher reports errors
}

// mayBecomeReady reports whether the map is replicating and not ready yet.
func (m *replica) mayBecomeReady() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == MapReplicating && m.readyState != readyConfirmed
}

// becomingReady reports whether the map is about to become ready, or its identity about to be
// saved. A daemon that is killed before the identity is saved cannot detect the deletes that
// follow. After sync-timeout, the identity may wait for a peer for ever.
func (m *replica) becomingReady() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.state {
	case MapLoading, MapSyncing:
		return true
	case MapReplicating:
		return m.readyState != readyConfirmed || !m.identitySaved && !m.daemon.pastSyncTimeout(m.since) && m.daemon.replicator.Stats().Peers > 0 && m.table.Stats().Failed == 0
	}
	return false
}

// checkReadiness updates the state of a map that is not ready. complete means that every peer had
// sent all its records just now. agreed means that the digests agreed, too. After that only the
// kernel map counts: if digests disagree later, changes in flight are the cause.
func (m *replica) checkReadiness(complete, agreed bool) {
	if m.awaitsRefill() {
		return
	}
	if m.daemon.config.StrictRoles {
		m.sampleFields(time.Now(), time.Second, m.daemon.host)
	}
	ignoreFailed := m.ignoreFailedWrites()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != MapReplicating || m.missingRoles() != "" {
		return
	}
	switch {
	case !complete:
		m.removeBarrier(&m.readyBarrier)
	case m.readyBarrier == nil && agreed:
		m.table.View(func(tx *table.Tx) {
			if tx.PendingCopies() == 0 {
				m.readyBarrier = tx.AddBarrier()
			}
		})
	}
	switch {
	case m.readyBarrier != nil && m.entriesToWrite(ignoreFailed) == 0:
		m.readyState = readyConfirmed
		m.removeBarrier(&m.readyBarrier)
	case m.daemon.config.OnReadyTimeout == config.ReadyOpen && m.daemon.pastSyncTimeout(m.since):
		m.readyState = readyUnproven
	}
}

func (s *MapStatus) fill(t table.Stats) {
	s.Live, s.Tombstones, s.Unversioned = t.Live, t.Tombstones, t.Unversioned
	s.Pending, s.Failed = t.Dirty, t.Failed
	s.Position, s.Applied, s.Memory = t.Head, t.Applied, t.MemoryBytes
}
