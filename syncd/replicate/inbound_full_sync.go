package replicate

import (
	"time"

	"mapsync/syncd/table"
)

// maxRepeatedFullSyncs bounds how often the delay before a repeated full sync is doubled.
const maxRepeatedFullSyncs = 4

// scheduleFullSync schedules a repeated full sync unless one is scheduled. It brings the records that
// were refused or too far ahead of the clock. The caller holds inboundStream.mu.
func (in *inboundMap) scheduleFullSync(now time.Time) {
	if in.repeatFullSyncAt.IsZero() {
		in.repeatFullSyncAt = now.Add(in.stream.r.opt.RepeatFullSyncDelay << in.repeatedFullSyncs)
		// The delay grows up to 16 times the initial one.
		in.repeatedFullSyncs = min(in.repeatedFullSyncs+1, maxRepeatedFullSyncs)
	}
}

// repeatFullSyncDue reports whether the next subscription begins at position 0.
func (in *inboundMap) repeatFullSyncDue(now time.Time) bool {
	return !in.repeatFullSyncAt.IsZero() && now.After(in.repeatFullSyncAt)
}

// allowSweep reports whether the map may be requested now, and counts the request if so. The peer decides whether it answers
// with a full sync, whose end may scan the whole table. The caller holds inboundStream.mu.
func (in *inboundMap) allowSweep(now time.Time) bool {
	return in.position == 0 || in.m.sweeps.allow(in.stream.peer.Node, now, in.stream.r.opt.digestInterval)
}

// sweepUnreceived deletes the peer's records that the full sync did not contain: the peer has
// deleted them, and this node did not receive the deletes. Records at or above sweepBefore
// stay. The full sync has moved its records there, and newer changes are there, too.
//
// Records of earlier incarnations of the peer stay, too, while the peer has not acknowledged them.
//
// The receiving goroutine calls it, without inboundStream.mu. The table is locked for
// recordsPerLock records at a time.
func (in *inboundMap) sweepUnreceived() {
	_, in.result.head = in.infer(&table.Absence{Before: in.sweepBefore, Acknowledged: in.fullSyncAcknowledged}, &in.fullSyncCoverage)
}

// beginFullSync starts the reception of a full sync from a position. known reports that it is the same map
// as before. The caller holds inboundStream.mu.
func (in *inboundMap) beginFullSync(known bool, position uint64) {
	// If it is the same map as before, records that this full sync does not contain no longer
	// exist at the peer. For another map this does not follow: see table.Options.SameMap.
	in.sweep = known && (in.sweep || in.position > 0)
	// Records merged since the request stay, too: the peer may have made them afterwards,
	// and another peer may have sent them.
	in.sweepBefore, in.fullSyncAcknowledged = in.nextSweepBefore, in.nextAcknowledged
	in.position = position
	in.repeatFullSyncAt, in.fullSyncRecords = time.Time{}, 0
	in.comparison.beginFullSync()
	in.owners.token = 0
	in.exceptions.beginSync()
	in.fullSyncCoverage.Reset(in.m.table)
	in.unheld.Store(false)
	in.fullSyncOpen = true
	in.lacksOwn.Store(false)
}
