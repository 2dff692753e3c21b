package table

import (
	"math/bits"
	"slices"
)

// WriteBarrier is the set of records that were dirty at one moment and that are not yet in the kernel map.
// The applied position is not sufficient for this purpose. A record that changes before the writer takes it
// moves beyond any given position, and the map lacks it until then, even if it held an older entry. The
// lock of the table protects the fields.
type WriteBarrier struct {
	// slots has a bit for each slot whose record is pending.
	slots []uint64
	// pending is the number of bits in slots: records that the writer has not taken yet.
	pending int
	// inFlight is the number of records that the writer took in the current burst. SetApplied resets it.
	inFlight int
}

// AddBarrier returns a barrier for all records that are dirty now. It looks at the records that the writer
// has not passed. Until the barrier is empty or RemoveBarrier is called, each write costs slightly more.
func (tx *Tx) AddBarrier() *WriteBarrier {
	t := tx.t
	d := &WriteBarrier{slots: make([]uint64, t.allocated/64+1)}
	for s := t.meta(order).prev; s != order && t.stats.Dirty > d.pending; s = t.meta(s).prev {
		if t.meta(s).is(flagDirty) {
			d.add(s)
		}
	}
	t.barriers = append(t.barriers, d)
	return d
}

// PendingWrites returns the number of records of a barrier that are not written yet. It returns 0 after
// each record was written, in its old or in a newer state, or was changed by the data plane. PendingWrites
// removes an empty barrier, so RemoveBarrier is not necessary then.
func (tx *Tx) PendingWrites(d *WriteBarrier) int {
	if d.pending+d.inFlight == 0 {
		tx.RemoveBarrier(d)
	}
	return d.pending + d.inFlight
}

// RemoveBarrier removes a barrier. d may be nil.
func (tx *Tx) RemoveBarrier(d *WriteBarrier) {
	tx.t.barriers = slices.DeleteFunc(tx.t.barriers, func(o *WriteBarrier) bool { return o == d })
}

// add adds a record to a barrier.
func (d *WriteBarrier) add(s uint32) {
	i, bit := int(s/64), uint64(1)<<(s%64)
	for i >= len(d.slots) {
		d.slots = append(d.slots, 0)
	}
	if d.slots[i]&bit == 0 {
		d.slots[i] |= bit
		d.pending++
	}
}

// remove removes a record from a barrier and reports whether the barrier had it.
func (d *WriteBarrier) remove(s uint32) bool {
	i, bit := s/64, uint64(1)<<(s%64)
	if int(i) >= len(d.slots) || d.slots[i]&bit == 0 {
		return false
	}
	d.slots[i] &^= bit
	d.pending--
	return true
}

// barrierWritten notes that a record is clean now.
func (t *Table) barrierWritten(s uint32) {
	for _, d := range t.barriers {
		d.remove(s)
	}
}

// barrierTaken notes that the writer has taken a record in its current state.
func (t *Table) barrierTaken(s uint32) {
	for _, d := range t.barriers {
		if d.remove(s) {
			d.inFlight++
		}
	}
}

// barrierFailed notes that the kernel map refused a record that the writer took.
func (t *Table) barrierFailed(s uint32) {
	for _, d := range t.barriers {
		d.add(s)
	}
}

// barrierFlushed notes that the writer has written all records that it took.
func (t *Table) barrierFlushed() {
	for _, d := range t.barriers {
		d.inFlight = 0
	}
}

// FailedWrites returns the number of records of a barrier that the kernel map refused at the last write.
func (tx *Tx) FailedWrites(d *WriteBarrier) (n int) {
	for i, word := range d.slots {
		for ; word != 0; word &= word - 1 {
			if tx.t.meta(uint32(i*64 + bits.TrailingZeros64(word))).is(flagFailed) {
				n++
			}
		}
	}
	return n
}
