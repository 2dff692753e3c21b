package daemon

import (
	"fmt"

	"mapsync/syncd/table"
)

// tooSmallReason returns why a map is not ready whose kernel map refuses entries, or "". The lock is
// held.
func (m *replica) tooSmallReason(ignoreFailed bool) string {
	if failed := m.table.Stats().Failed; failed > 0 && !ignoreFailed {
		return fmt.Sprintf("%d entries do not go into the kernel map", failed)
	}
	return ""
}

// ignoreFailedWrites reports whether the map becomes ready although entries do not fit into the
// kernel map. This is true if a peer has more records than the table may hold, because a map of
// this size cannot hold all of them. It is true for an LRU map, which is full in normal operation.
func (m *replica) ignoreFailedWrites() bool {
	return m.attachedLRU() || len(m.daemon.replicator.PeersAboveLimit(m.name)) > 0
}

func (m *replica) attachedLRU() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kernel == nil {
		return false
	}
	info := m.kernel.m.Info()
	return isLRU(&info)
}

// entriesToWrite returns the number of entries to write before the map is ready. The lock is
// held.
func (m *replica) entriesToWrite(ignoreFailed bool) (n int) {
	m.table.View(func(tx *table.Tx) {
		if n = tx.PendingWrites(m.readyBarrier); n > 0 && ignoreFailed {
			n -= tx.FailedWrites(m.readyBarrier)
		}
	})
	return n
}
