package table

// A scan compares the whole kernel map with the table. It finds what no hook saw:
// what is in the map differs from the record, or is unknown; and what is in no entry
// of the map, but live in the table, is no longer there. Both become rereads like
// any other, so a scan decides nothing that a reread would not.

// scan is the state of the one that is under way.
type scan struct {
	on   bool
	lap  bool   // the mark that met records bear in this lap
	slot uint32 // where the search for those not met has got to
}

// BeginScan must come before the first entry is read. A scan that was not ended is
// begun anew.
func (tx *Tx) BeginScan() {
	s := &tx.t.scan
	s.on, s.lap, s.slot = true, !s.lap, firstSlot
}

// Scanned enters one entry that the kernel map holds. c is as for a reread: its
// Context is ContextReread, its Op OpUpdate and its Time the one before the read.
func (tx *Tx) Scanned(c *Change) Outcome {
	t := tx.t
	if _, s := t.find(c.Key); s != 0 {
		t.met(s)
	}
	t.stats.Scanned++
	o := tx.Local(c)
	if o == Accepted || o == Stale {
		t.stats.ScanFound++
	}
	return o
}

// EndScan looks, up to limit records at a time, for live records that no entry was
// met for, and has their keys read again. It returns true while there is more to
// look at. To be called once every entry was Scanned.
func (tx *Tx) EndScan(limit int) (more bool) {
	t := tx.t
	s := &t.scan
	for ; s.on && s.slot < t.allocated && limit > 0; s.slot++ {
		limit--
		m := t.meta(s.slot)
		if m.is(flagFree|flagDirty|flagEvicted) || !m.live() || m.is(flagMet) == s.lap {
			continue
		}
		t.stats.ScanFound++
		t.recheck(s.slot)
	}
	s.on = s.on && s.slot < t.allocated
	return s.on
}

// met marks a record as one that the map holds, as far as the scan under way goes.
// What is written or seen while it runs is met, too: the scan may have passed its place.
func (t *Table) met(s uint32) {
	m := t.meta(s)
	m.flags &^= flagMet
	if t.scan.lap {
		m.flags |= flagMet
	}
}
