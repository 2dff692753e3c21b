package table

import "bytes"

// A scan compares the whole kernel map with the table and finds changes that no hook reported. Such a
// change is an entry that differs from its record or has none, or a live record without an entry. The scan
// requests a reread for a live record without an entry. It enters an entry in the same way as the result of
// a reread.

// scan is the state of the current scan. The lock of the table protects it.
type scan struct {
	// on is true from BeginScan until EndScan returns false.
	on bool
	// began is the wall clock in nanoseconds at BeginScan.
	began int64
	// seen has a bit for each slot whose record the scan has found in the map, or that was written or
	// became live since BeginScan. Slots beyond its end are not marked.
	seen []uint64
	// slot is the next slot that EndScan looks at. All slots below were checked.
	slot uint32
}

// BeginScan starts a scan. The caller calls it before it reads the first entry. A scan in progress is
// restarted. now is the wall clock in nanoseconds.
func (tx *Tx) BeginScan(now int64) {
	t := tx.t
	s := &t.scan
	s.on, s.slot, s.began = true, firstSlot, now
	clear(s.seen)
	if n := int(t.allocated/64) + 1; len(s.seen) < n {
		s.seen = make([]uint64, n+n/4)
	}
}

// Scanned enters one entry of the kernel map. c is as for a reread: Context is ContextReread, Op is
// OpUpdate, and Time is the time before the read.
func (tx *Tx) Scanned(c *Change) Outcome {
	t := tx.t
	t.stats.Scanned++
	// Compact tombstones need no mark, because EndScan looks only at slots.
	if _, s := t.find(c.Key); s != 0 {
		t.markScanned(s)
		if t.meta(s).is(flagDirty | flagUncertain) {
			return Ignored // the entry waits for a write or a reread in any case
		}
	}
	refreshed := t.stats.Refreshed
	o := tx.Local(c)
	// A refresh is an accepted change, but not a difference that the hooks missed.
	if o == Stale || o == Accepted && t.stats.Refreshed == refreshed {
		t.stats.ScanFound++
	}
	return o
}

// ScannedAll enters many entries like Scanned. keys has their keys one after the other, and values has
// their values. Argument at is the wall clock in nanoseconds before the read. Argument r is the reading,
// see Change.Read. The caller calls AdvanceClock after the read, as for Scanned. The slices are borrowed for the call.
func (tx *Tx) ScannedAll(r *Reading, at int64, keys, values []byte) {
	t := tx.t
	t.lastRead = t.now
	ks, vs := t.opt.KeySize, t.opt.ValueSize
	c := Change{Time: at, Op: OpUpdate, Context: ContextReread, Read: r}
	var slots [PrefetchBatch]uint32
	for n := min(len(keys)/ks, len(values)/vs); n > 0; {
		lot := min(n, PrefetchBatch)
		t.prefetchSlots(keys[:lot*ks], &slots)
		for _, s := range slots[:lot] {
			c.Key, c.Value = keys[:ks], values[:vs]
			keys, values = keys[ks:], values[vs:]
			if !t.scanUnchanged(s, &c) {
				tx.Scanned(&c)
			}
		}
		n -= lot
	}
}

// prefetchSlots finds the likely slots of keys and reads them ahead like Prefetch. It does not read the
// neighbours in the list, because few records will move.
func (t *Table) prefetchSlots(keys []byte, slots *[PrefetchBatch]uint32) {
	var hashes [PrefetchBatch]uint32
	size := t.opt.KeySize
	n := len(keys) / size
	var sum uint64
	for i := range n {
		hashes[i] = t.hash(keys[i*size:][:size])
		sum += uint64(t.index.homeEntry(hashes[i]).slot)
	}
	for i := range n {
		slots[i] = t.index.candidate(hashes[i])
		sum += t.meta(slots[i]).seq + t.prefetchRecord(slots[i])
	}
	t.prefetchSink += sum
}

// scanUnchanged is the fast path for an entry that equals its record. It returns false if the entry needs
// Scanned.
func (t *Table) scanUnchanged(s uint32, c *Change) bool {
	m := t.meta(s)
	if s < firstSlot || m.is(flagFree|flagTombstone|flagDirty|flagUncertain|flagEvicted|flagUnsent|flagHeld) ||
		!bytes.Equal(t.key(s), c.Key) || !bytes.Equal(t.value(s), c.Value) || t.showsTimer(c, m) {
		return false
	}
	t.markScanned(s)
	m.noteEvidence(c)
	t.stats.Scanned++
	t.stats.LocalUnchanged++
	return true
}

// EndScan searches for live records without an entry and requests a reread of their keys. It looks at up to
// limit records and returns true while there are more. The caller calls it after all entries were passed to
// Scanned.
func (tx *Tx) EndScan(limit int) (more bool) {
	t := tx.t
	s := &t.scan
	for ; s.on && s.slot < t.allocated && limit > 0; s.slot++ {
		limit--
		m := t.meta(s.slot)
		if m.is(flagEvicted) {
			t.queueEvicted(s.slot) // the owner may have left since
		}
		// The map must have the entries of live and of released records, unless they are dirty or evicted, or their
		// delete waits.
		if m.is(flagFree|flagDirty|flagEvicted|flagHeld) || (!m.live() && !m.is(flagReleased)) || s.has(s.slot) {
			continue
		}
		t.stats.ScanFound++
		t.requestReread(s.slot)
	}
	if s.on && s.slot >= t.allocated {
		s.on, t.unscanned = false, false
		t.takeover.scanned = s.began
	}
	return s.on
}

// markScanned marks a record as present in the map for the current scan. Records that are written or become
// live during the scan are marked too, because the scan may have passed their place.
func (t *Table) markScanned(s uint32) {
	if !t.scan.on {
		return
	}
	for int(s/64) >= len(t.scan.seen) {
		t.scan.seen = append(t.scan.seen, 0)
	}
	t.scan.seen[s/64] |= 1 << (s % 64)
}

// has reports whether a record is marked as present.
func (c *scan) has(s uint32) bool {
	return int(s/64) < len(c.seen) && c.seen[s/64]&(1<<(s%64)) != 0
}
