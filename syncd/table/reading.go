package table

import "slices"

// Reading is one reading of the kernel map: it begins before the map is read and ends
// when what was read has been entered. While it is open the table notes which records change and
// which the writer writes. A value that was read of such a record may be older than
// that. It does not count, and the key is read again.
//
// A Reading belongs to one reader and one table at a time. The zero Reading is ready for
// use, and one that has ended may begin again.
type Reading struct {
	marks []uint64 // a bit for each slot that was changed or written since
	log   []uint32 // these slots, or the first of them
	// absent has bits for keys without a record that were deleted, or whose tombstone was
	// forgotten, since the reading began, by their hash.
	absent [8]uint64
}

// BeginReading begins a reading, or begins it anew. It must come before the map is read.
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

// EndReading ends a reading. Its values must not be entered after that. A reading that is left open
// makes changes a little slower, and that is all.
func (tx *Tx) EndReading(r *Reading) {
	tx.t.readings = slices.DeleteFunc(tx.t.readings, func(o *Reading) bool { return o == r })
}

// mark notes a record. A reading whose log is full treats all records as changed.
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

// outdates reports whether a record was changed or written since the reading began.
func (r *Reading) outdates(s uint32) bool {
	return int(s/64) < len(r.marks) && r.marks[s/64]&(1<<(s%64)) != 0
}

// outdate notes that what open readings bring of a record may be older than the record, or
// than what the writer wrote.
func (t *Table) outdate(s uint32) {
	for _, r := range t.readings {
		r.mark(s)
	}
}

// vanished notes that a key has no record, and since when that is known: what a reading
// that is open brings of it, or an event that is on its way, may be older.
func (t *Table) vanished(hash uint32, at int64, cpu uint16) {
	t.strays.note(hash, at, cpu)
	for _, r := range t.readings {
		r.miss(hash)
	}
}

// outdateAbsent has readings that treat a record as changed treat its key so, which leaves its slot.
func (t *Table) outdateAbsent(s, hash uint32) {
	for _, r := range t.readings {
		if r.outdates(s) {
			r.miss(hash)
		}
	}
}

func (r *Reading) miss(hash uint32) { r.absent[hash>>29] |= 1 << (hash >> 23 & 63) }

// missed reports whether a key without a record had one, or was deleted, since the reading
// began. Another key may be taken for it.
func (r *Reading) missed(hash uint32) bool {
	return r != nil && r.absent[hash>>29]&(1<<(hash>>23&63)) != 0
}
