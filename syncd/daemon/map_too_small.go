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
// this size cannot hold all of them.
func (m *replica) ignoreFailedWrites() bool {
	return len(m.daemon.replicator.PeersAboveLimit(m.name)) > 0
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
