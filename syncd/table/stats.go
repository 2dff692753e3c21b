package table

// Stats is a snapshot of a table's gauges and counters.
type Stats struct {
	// Live is the number of records that are not tombstones, unversioned ones
	// included.
	Live int
	// Tombstones is the number of deleted keys that are remembered.
	Tombstones int
	// Unversioned is the number of records that were loaded from the map and not
	// claimed yet.
	Unversioned int
	// Dirty is the number of records still to be written to the kernel, failed
	// ones included.
	Dirty int
	// Failed is the number of dirty records whose last write failed.
	Failed int
	// Released is the number of tombstones of expired records whose entry the kernel map may
	// still hold.
	Released int
	// Rechecks is the number of records to be read again from the kernel.
	Rechecks int

	// MemoryBytes is what the table occupies on the Go heap.
	MemoryBytes uint64
	// Head is the position of the newest change.
	Head uint64
	// Applied is the position up to which the kernel map holds the table.
	Applied uint64
	// Floor is the highest position of a tombstone that was forgotten.
	Floor uint64

	// LocalAccepted counts local changes that entered the table.
	LocalAccepted uint64
	// LocalUnchanged counts local changes that brought nothing new.
	LocalUnchanged uint64
	// LocalStale counts local changes older than what the table held.
	LocalStale uint64
	// LocalOwn counts events of this daemon's own writes.
	LocalOwn uint64
	// Evictions counts LRU evictions, whether or not they count as deletes.
	Evictions uint64
	// EvictionsExpired counts records that this node gave up after an eviction.
	EvictionsExpired uint64
	// Scanned counts entries that scans read, and ScanFound those among them, and
	// records without one, that had to be looked at again or were entered.
	Scanned, ScanFound uint64
	// Refreshed counts touches that changed nothing significant and were told.
	Refreshed uint64
	// Unsettled counts new keys whose in-place changes were not followed because
	// Options.SettleKeys others were being followed.
	Unsettled uint64
	// RereadsDropped counts keys without a record that were not read again because
	// too many others waited.
	RereadsDropped uint64
	// Restored counts local expiries of a peer's record.
	Restored uint64
	// RemoteAccepted counts deltas that entered the table.
	RemoteAccepted uint64
	// RemoteStale counts deltas that were not newer than what the table held.
	RemoteStale uint64
	// RemoteConflictOwn counts deltas that claim to be this very incarnation's
	// and newer than what it knows.
	RemoteConflictOwn uint64
	// Refused counts changes and deltas that did not fit.
	Refused uint64
	// WriteFailed counts kernel writes that failed.
	WriteFailed uint64
	// Defended counts deltas of strangers that did not replace a record. See strangers.go.
	Defended uint64
	// Displaced counts records taken out of a full kernel map for others.
	Displaced uint64
	// Swept counts records deleted because their owner no longer has them.
	Swept uint64
	// Expired counts tombstones forgotten at the end of their lifetime.
	Expired uint64
	// Replaced counts records that a peer put right without a newer version: see Replace.
	Replaced uint64
	// Repeated counts deletes of other nodes that this node sends again: see RemoteOptions.Repair.
	Repeated uint64
	// Rejected counts records of peers that did not enter because of Options.MaxLive.
	Rejected uint64
	// Audits counts the times that the digests were made anew from the records, and
	// AuditFound the parts of them that were others than they should have been.
	Audits, AuditFound uint64
	// Acknowledged counts tombstones forgotten because every node had acknowledged them.
	Acknowledged uint64
	// ExpiredEarly counts tombstones forgotten before, to make room.
	ExpiredEarly uint64
}

// Stats returns a snapshot of the table's gauges and counters.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Head, s.Applied, s.Floor = t.seq, t.applied, t.floor
	s.MemoryBytes = t.slabBytes() + t.index.bytes + t.owners.bytes() + t.digester.bytes() +
		t.log.bytes() + t.strays.bytes() + t.rereads.bytes() + t.settling.bytes() + t.trail.bytes() +
		t.tombs.bytes(16) + t.evicted.bytes(16) + t.released.bytes(4) +
		t.rechecks.bytes(4) + t.failures.bytes(4) + t.retries.bytes(4)
	return s
}
