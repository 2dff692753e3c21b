package table

import (
	"bytes"
	"encoding/binary"
)

// Range is a range of bytes of a value.
type Range struct {
	// Offset and Size are in bytes.
	Offset, Size int
}

// equalSignificant reports whether a record's value and another one are equal in the bits of
// Options.Significant.
func (t *Table) equalSignificant(s uint32, value []byte) bool {
	if t.opt.Variants != nil {
		m, ok := t.opt.masksOf(t.key(s), t.value(s), value)
		return ok && equalUnder(m.Significant, t.value(s), value)
	}
	return equalUnder(t.opt.Significant, t.value(s), value)
}

// equalCarried reports whether a record's value and another one are equal in the bits of Options.Carried,
// which are all replicated bits.
func (t *Table) equalCarried(s uint32, value []byte) bool {
	return equalUnder(t.opt.Carried, t.value(s), value)
}

// equalUnder reports whether two values of the same size are equal in the bits of a mask. A nil mask has
// all bits.
func equalUnder(mask, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if mask == nil {
		return false
	}
	n := len(mask)
	a, b = a[:n], b[:n]
	i := 0
	for ; i+8 <= n; i += 8 {
		diff := binary.NativeEndian.Uint64(a[i:]) ^ binary.NativeEndian.Uint64(b[i:])
		if diff&binary.NativeEndian.Uint64(mask[i:]) != 0 {
			return false
		}
	}
	for ; i < n; i++ {
		if (a[i]^b[i])&mask[i] != 0 {
			return false
		}
	}
	return true
}

// IsZero reports whether the bits of Options.Carried are all zero in a value of ValueSize bytes.
func (tx *Tx) IsZero(value []byte) bool {
	mask := tx.t.opt.Carried
	for i, b := range value {
		if mask != nil {
			b &= mask[i]
		}
		if b != 0 {
			return false
		}
	}
	return true
}

// copyKept copies the ranges Delta.Keep, which the delta does not carry, from the live record to the
// delta's value.
func (t *Table) copyKept(s uint32, d *Delta) {
	if d.Delete || len(d.Keep) == 0 || !t.meta(s).live() {
		return
	}
	own := t.value(s)
	for _, r := range d.Keep {
		copy(d.Value[r.Offset:r.Offset+r.Size], own[r.Offset:r.Offset+r.Size])
	}
}
