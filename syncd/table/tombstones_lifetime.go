package table

// lateDelete is a delay in nanoseconds. If the table receives a delete with a longer delay, the time of the
// receipt counts instead of the time of the delete.
const lateDelete = 1_000_000_000

// makeTombstone makes a record a tombstone. Its lifetime starts when the table receives the delete, because
// an event may have waited for a long time.
func (t *Table) makeTombstone(s uint32, now int64) {
	m := t.meta(s)
	if m.live() {
		t.limitTombstones()
		t.clearNotHeld(m)
		t.unhold(s)
		t.endSuperseded(m)
		t.setFlags(m, flagUnsent|flagLoaded|flagEntry, flagTombstone)
		t.stats.Live--
		t.stats.Tombstones++
	}
	// The lifetime after a delayed delete starts at its receipt.
	if t.now-now > lateDelete {
		now = t.now
	}
	m.seen = max(m.seen, now)
}
