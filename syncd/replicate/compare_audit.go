package replicate

import (
	"context"
	"log/slog"

	"mapsync/syncd/table"
)

// audit makes a part of each map's digests anew from its records, so much that all have
// had their turn within Options.audit. What it finds to be wrong, peers see.
func (r *Replicator) audit(ctx context.Context) {
	for _, m := range r.localMaps() {
		was := m.table.Stats()
		turns := max(1, int(r.opt.audit/housekeeping))
		for n := (was.Live + was.Tombstones + turns - 1) / turns; n >= 0 && ctx.Err() == nil; n -= touchChunk {
			more := true
			m.table.View(func(tx *table.Tx) { more = tx.Audit(touchChunk) })
			if !more {
				break
			}
		}
		if found := m.table.Stats().AuditFound - was.AuditFound; found > 0 {
			r.opt.Logger.Error("records of a map have changed in memory without an event: peers will repair them",
				slog.String("map", m.name), slog.Uint64("buckets", found))
		}
	}
}
