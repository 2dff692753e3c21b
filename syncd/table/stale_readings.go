package table

import "slices"

// Reading is one pass of reading the kernel map. It begins before the map is read and ends after the values
// that were read have been entered. While it is open, the table notes which records change and which
// records the writer writes. A value that was read for such a record may be outdated. The table then
// ignores the value and requests a reread.
//
// One reader and one table at a time may use a Reading. The lock of the table protects its fields. The zero
// Reading is ready for use, and a reading that has ended may begin again.
type Reading struct {
	// marks has a bit for each slot that was changed or written since the reading began. Slots beyond its
	// end are not marked.
	marks []uint64
	// log has the marked slots, each once, in order. If len(log) equals cap(log), it may lack later ones.
	log []uint32
	// absent has bits for hashes of keys without a record that were deleted, or whose tombstone the table
	// forgot, since the reading began. Several keys share a bit.
	absent [8]uint64
}

// BeginReading begins a reading, or restarts an open one. The caller calls it before it reads the map. The
// table keeps a reference to r until EndReading.
func (tx *Tx) BeginReading(r *Reading) {
	t := tx.t
	if !slices.Contains(t.readings, r) {
		t.readings = append(t.readings, r)
	}
	if len(r.log) < cap(r.log) || len(r.marks) == 0 {
		for _, s := range r.log {
			r.marks[s/64] = 0
		}
	} else {
		clear(r.marks)
	}
	r.log, r.absent = r.log[:0], [8]uint64{}
	if n := int(t.allocated/64) + 1; len(r.marks) < n {
		r.marks = make([]uint64, 2*n)
		r.log = make([]uint32, 0, 2*n)
	}
}

// EndReading ends a reading. The caller must not enter its values after that. A reading that is left open
// makes changes slightly slower and has no other effect.
func (tx *Tx) EndReading(r *Reading) {
	tx.t.readings = slices.DeleteFunc(tx.t.readings, func(o *Reading) bool { return o == r })
}

// mark marks a slot as changed.
func (r *Reading) mark(s uint32) {
	for int(s/64) >= len(r.marks) {
		r.marks = append(r.marks, 0)
	}
	word, bit := &r.marks[s/64], uint64(1)<<(s%64)
	if *word&bit == 0 {
		*word |= bit
		if len(r.log) < cap(r.log) {
			r.log = append(r.log, s)
		}
	}
}

// isStale reports whether a record was changed or written since the reading began.
func (r *Reading) isStale(s uint32) bool {
	return int(s/64) < len(r.marks) && r.marks[s/64]&(1<<(s%64)) != 0
}

// invalidateReadings notes in all open readings that their values of a record may be older than the record,
// or older than the writer's last write.
func (t *Table) invalidateReadings(s uint32) {
	for _, r := range t.readings {
		r.mark(s)
	}
}

// noteAbsent notes that a key has no record since a time. The value of an open reading or an event that
// arrives later may be older than that time. packet is true if the data plane has deleted the key.
func (t *Table) noteAbsent(hash uint32, at int64, cpu uint16, packet bool) {
	t.earlyDeletes.note(hash, at, cpu, packet)
	for _, r := range t.readings {
		r.markAbsent(hash)
	}
}

// noteForgotten notes that a tombstone is forgotten, of which an older event may still arrive. packet is true if the data plane
// has deleted the entry, and written if syncd has, which may have been after that event.
func (t *Table) noteForgotten(hash uint32, seen int64, cpu uint16, packet, written bool) {
	if written {
		seen, cpu = max(seen, t.now), cpuNone
	}
	t.noteAbsent(hash, seen, cpu, packet && !written)
}

// invalidateAbsent marks a key as absent in all readings that treat its record as changed. The record
// leaves its slot.
func (t *Table) invalidateAbsent(s, hash uint32) {
	for _, r := range t.readings {
		if r.isStale(s) {
			r.markAbsent(hash)
		}
	}
}

// markAbsent marks a key without a record as changed.
func (r *Reading) markAbsent(hash uint32) { r.absent[hash>>29] |= 1 << (hash >> 23 & 63) }

// markedAbsent reports whether a key without a record had one, or was deleted, since the reading began. It
// may also return true because of another key. It returns false for a nil reading.
func (r *Reading) markedAbsent(hash uint32) bool {
	return r != nil && r.absent[hash>>29]&(1<<(hash>>23&63)) != 0
}

// predates reports whether a reread may have been made before the newest evidence for the record, or before
// the last write of the record by syncd.
func (t *Table) predates(c *Change, s uint32) bool {
	return t.predatesWrite(c, s) || c.Time < t.meta(s).seen
}

// predatesWrite reports whether a reread may have been made before the last change of the record, or before
// the last write of the record by syncd.
func (t *Table) predatesWrite(c *Change, s uint32) bool {
	if c.Read != nil {
		return c.Read.isStale(s)
	}
	return t.meta(s).is(flagWritten)
}
