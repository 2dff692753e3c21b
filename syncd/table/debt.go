package table

import (
	"math/bits"
	"slices"
)

// Debt is what was dirty at one moment and is still to be written to the kernel map. The
// applied position does not tell that: a record that changes before the writer has come to it
// moves beyond any position, and the map lacks it until then, whatever it was before.
type Debt struct {
	owed  []uint64 // a bit for each slot
	open  int      // of these, not given to the writer yet
	taken int      // given to it in the burst under way
}

// Owe returns a debt of what is dirty now. It looks at all records that the writer has not
// passed. Until it is paid, or Forgive is called, each dirty record costs a little more.
func (tx *Tx) Owe() *Debt {
	t := tx.t
	d := &Debt{owed: make([]uint64, t.allocated/64+1)}
	for s := t.meta(order).prev; s != order && t.stats.Dirty > d.open; s = t.meta(s).prev {
		if t.meta(s).is(flagDirty) {
			d.add(s)
		}
	}
	t.debts = append(t.debts, d)
	return d
}

// Owes returns how many records of a debt are still to be written. None is left once each
// was written as it was when the debt was made, or as it has become since, or was
// changed by the data plane. Forgive is then no longer needed.
func (tx *Tx) Owes(d *Debt) int {
	if d.open+d.taken == 0 {
		tx.Forgive(d)
	}
	return d.open + d.taken
}

// Forgive gives a debt up. It may be nil.
func (tx *Tx) Forgive(d *Debt) {
	tx.t.debts = slices.DeleteFunc(tx.t.debts, func(o *Debt) bool { return o == d })
}

// add puts a record into a debt.
func (d *Debt) add(s uint32) {
	i, bit := int(s/64), uint64(1)<<(s%64)
	for i >= len(d.owed) {
		d.owed = append(d.owed, 0)
	}
	if d.owed[i]&bit == 0 {
		d.owed[i] |= bit
		d.open++
	}
}

// settle takes a record out of a debt, and reports whether it was in there.
func (d *Debt) settle(s uint32) bool {
	i, bit := s/64, uint64(1)<<(s%64)
	if int(i) >= len(d.owed) || d.owed[i]&bit == 0 {
		return false
	}
	d.owed[i] &^= bit
	d.open--
	return true
}

// paid notes that a record is no longer dirty.
func (t *Table) paid(s uint32) {
	for _, d := range t.debts {
		d.settle(s)
	}
}

// take notes that the writer has got a record as it is now.
func (t *Table) take(s uint32) {
	for _, d := range t.debts {
		if d.settle(s) {
			d.taken++
		}
	}
}

// refused notes that the kernel map did not take a record that the writer had.
func (t *Table) refused(s uint32) {
	for _, d := range t.debts {
		d.add(s)
	}
}

// delivered notes that the writer has written all that it took.
func (t *Table) delivered() {
	for _, d := range t.debts {
		d.taken = 0
	}
}

// OwesFailed returns how many records of a debt the kernel map refused when they were written last.
func (tx *Tx) OwesFailed(d *Debt) (n int) {
	for i, word := range d.owed {
		for ; word != 0; word &= word - 1 {
			if tx.t.meta(uint32(i*64 + bits.TrailingZeros64(word))).is(flagFailed) {
				n++
			}
		}
	}
	return n
}
