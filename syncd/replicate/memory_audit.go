package replicate

import (
	"context"
	"log/slog"

	"mapsync/syncd/table"
)

// audit recomputes a part of each map's digests from its records. Within Options.auditInterval it
// covers all records. Peers detect the differences that it finds.
//
// A digest that is updated with each change proves that the same changes were made. It does not
// prove that the records are still there: a bit that flips in memory changes a record and not the
// digest.
//
// Only the goroutine of Run calls audit, without a lock. Each step holds the lock of one table for
// recordsPerLock records at most.
func (r *Replicator) audit(ctx context.Context) {
	for _, m := range r.localMaps() {
		was := m.table.Stats()
		// Run calls audit once in housekeepingInterval, so each call covers one of these parts.
		turns := max(1, int(r.opt.auditInterval/housekeepingInterval))
		for n := (was.Live + was.Tombstones + turns - 1) / turns; n >= 0 && ctx.Err() == nil; n -= recordsPerLock {
			more := true
			m.table.View(func(tx *table.Tx) { more = tx.Audit(recordsPerLock) })
			// Another call would begin the next audit at once.
			if !more {
				break
			}
		}
		// The end of an audit replaces the digests by the recomputed sums. The next comparison with
		// a peer then finds the difference.
		if found := m.table.Stats().AuditFound - was.AuditFound; found > 0 {
			r.opt.Logger.Error("records changed in memory without an event, repair from peers follows",
				slog.String("map", m.name), slog.Uint64("buckets", found), slog.String("problem", "memory-corrupt"),
				slog.String("hint", "syncd drain, then test the memory of the host"))
		}
	}
}
