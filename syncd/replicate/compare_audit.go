package replicate

import (
	"context"
	"log/slog"

	"mapsync/syncd/table"
)

// audit recomputes a part of each map's digests from its records. Within Options.auditInterval it
// covers all records. Peers detect the differences that it finds.
func (r *Replicator) audit(ctx context.Context) {
	for _, m := range r.localMaps() {
		was := m.table.Stats()
		turns := max(1, int(r.opt.auditInterval/housekeepingInterval))
		for n := (was.Live + was.Tombstones + turns - 1) / turns; n >= 0 && ctx.Err() == nil; n -= recordsPerLock {
			more := true
			m.table.View(func(tx *table.Tx) { more = tx.Audit(recordsPerLock) })
			if !more {
				break
			}
		}
		if found := m.table.Stats().AuditFound - was.AuditFound; found > 0 {
			r.opt.Logger.Error("records changed in memory without an event, repair from peers follows",
				slog.String("map", m.name), slog.Uint64("buckets", found))
		}
	}
}
