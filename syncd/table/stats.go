package table

// Stats is a snapshot of the gauges and counters of a table.
type Stats struct {
	// Live is the number of records that are not tombstones, unversioned records included.
	Live int
	// Tombstones is the number of tombstones, in slots and compact.
	Tombstones int
	// Unversioned is the number of records that were loaded from the map and that the node has not adopted
	// yet.
	Unversioned int
	// Dirty is the number of records that the writer has yet to write to the kernel map, failed ones
	// included.
	Dirty int
	// Failed is the number of dirty records whose last write failed, displaced records included.
	Failed int
	// Released is the number of tombstones of expired records whose entry the kernel map may still hold.
	Released int
	// HeldDeletes is the number of deletes that wait. See Options.HoldClears.
	HeldDeletes int
	// PendingRereads is the number of records that wait for a reread from the kernel map.
	PendingRereads int

	// MemoryBytes is the memory of the table on the Go heap in bytes.
	MemoryBytes uint64
	// Head is the position of the newest change.
	Head uint64
	// Applied is the position up to which the kernel map has the content of the table.
	Applied uint64
	// Floor is the highest position of a forgotten tombstone.
	Floor uint64

	// LocalAccepted counts local changes that were accepted.
	LocalAccepted uint64
	// LocalUnchanged counts local changes that did not modify the record.
	LocalUnchanged uint64
	// LocalStale counts local changes that were older than the record.
	LocalStale uint64
	// LocalOwn counts events of syncd's own writes.
	LocalOwn uint64
	// Evictions counts LRU evictions, whether or not they count as deletes. A reread that finds no entry
	// counts here too if Options.LRU is set.
	Evictions uint64
	// EvictionsExpired counts records that this node expired after an eviction.
	EvictionsExpired uint64
	// TakeoversExpired counts records that ExpireTakenOver deleted.
	TakeoversExpired uint64
	// TakeoversUsed counts records of owners that have left which this node took over because of a use without a
	// change.
	TakeoversUsed uint64
	// Clears counts clears of the map, and Cleared the entries that were restored after them.
	Clears, Cleared uint64
	// Scanned counts entries that scans read. ScanFound counts those of them that were entered or read
	// again, and records without an entry.
	Scanned, ScanFound uint64
	// Refreshed counts changes without a significant difference that were sent because of Options.Refresh.
	Refreshed uint64
	// Withdrawn counts records of this incarnation that Withdraw gave a new version.
	Withdrawn uint64
	// Unsent counts changes without a significant difference that were kept and not sent yet.
	Unsent uint64
	// Unsettled counts new keys that were not reread until stable because Options.SettleKeys others were
	// waiting.
	Unsettled uint64
	// RereadsDropped counts keys without a record that were not reread because too many others were
	// waiting.
	RereadsDropped uint64
	// Restored counts local expiries of a peer's record, whose entry syncd restored.
	Restored uint64
	// KeptDeletes counts deletes by bpf(2) and absences that did not end a record, because this node is drained. See
	// handover.go.
	KeptDeletes uint64
	// RemoteAccepted counts deltas that were accepted.
	RemoteAccepted uint64
	// RemoteStale counts deltas that were not newer than the record.
	RemoteStale uint64
	// RemoteConflictOwn counts deltas that have this incarnation as their owner and are newer than its own
	// record.
	RemoteConflictOwn uint64
	// Refused counts changes and deltas that were refused because of a wrong size, an impossible version or
	// owner, or a full table.
	Refused uint64
	// WriteFailed counts kernel writes that failed.
	WriteFailed uint64
	// Defended counts deltas of unverified owners that did not replace a record. See unverified_owners.go.
	Defended uint64
	// Displaced counts entries that were removed from a full kernel map in favour of others.
	Displaced uint64
	// Swept counts records that were deleted because their owner no longer has them.
	Swept uint64
	// Expired counts tombstones that were forgotten at the end of their lifetime.
	Expired uint64
	// Replaced counts records that a peer repaired without a newer version: see Replace.
	Replaced uint64
	// DeletesResent counts deletes of other nodes that this node resent: see RemoteOptions.Repair.
	DeletesResent uint64
	// Rejected counts records of peers that did not enter because of Options.MaxLive.
	Rejected uint64
	// Audits counts completed audits, which recompute the digests from the records. AuditFound counts the
	// buckets in which the recomputed digest differed.
	Audits, AuditFound uint64
	// Acknowledged counts tombstones that were forgotten because every node had acknowledged them.
	Acknowledged uint64
	// ExpiredEarly counts tombstones that were forgotten early to make room.
	ExpiredEarly uint64
}

// Stats returns a snapshot of the table's gauges and counters. It takes the lock of the table.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.HeldDeletes = t.clears.held + t.clears.absentHeld
	s.Head, s.Applied, s.Floor = t.seq, t.applied, t.floor
	s.MemoryBytes = t.slabBytes() + t.index.bytes + t.owners.bytes() + t.digester.bytes() +
		t.log.bytes() + t.earlyDeletes.bytes() + t.unknownRereads.bytes() + t.settling.bytes() + t.recent.bytes() +
		t.refusals.bytes(t.opt.KeySize) + uint64(t.replaced.bytes) + copyBytes*uint64(len(t.copies)) +
		t.clears.queue.bytes(40) + t.clears.absent.bytes(40) + t.clears.late.bytes(40) + t.clears.seen.bytes() + uint64(cap(t.clears.joins.of)) + t.clears.absentOf.bytes() + t.clears.loadedOf.bytes() + t.tombs.bytes(16) + t.newTombs.bytes(16) + t.evicted.bytes(16) + t.released.bytes(4) +
		t.rereads.bytes(4) + t.failures.bytes(4) + t.retries.bytes(4) + t.withVictim.bytes(4) + t.deferred.bytes(4)
	return s
}
