package table

import "math/bits"

// slotSet is a set of slots, with one bit for each slot up to the highest one that was added. The lock of the table protects it.
type slotSet []uint64

// has reports whether a slot is in the set.
func (x slotSet) has(s uint32) bool { return int(s/64) < len(x) && x[s/64]&(1<<(s%64)) != 0 }

// add adds a slot.
func (x *slotSet) add(s uint32) {
	if n := int(s/64) + 1; n > len(*x) {
		*x = append(*x, make(slotSet, n-len(*x))...)
	}
	(*x)[s/64] |= 1 << (s % 64)
}

// remove removes a slot.
func (x slotSet) remove(s uint32) {
	if x.has(s) {
		x[s/64] &^= 1 << (s % 64)
	}
}

// len returns the number of slots.
func (x slotSet) len() (n int) {
	for _, word := range x {
		n += bits.OnesCount64(word)
	}
	return n
}

// bytes returns the memory of the set in bytes.
func (x slotSet) bytes() uint64 { return 8 * uint64(cap(x)) }
