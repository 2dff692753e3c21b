package table

import (
	"bytes"
	"encoding/binary"
)

// Range is a run of bytes of a value.
type Range struct {
	// Offset and Size are in bytes.
	Offset, Size int
}

// same reports whether a record's value and another are no different by
// themselves: equal but for what Options.Significant leaves out.
func (t *Table) same(s uint32, value []byte) bool {
	return equalUnder(t.opt.Significant, t.value(s), value)
}

// held reports whether a value is what a record says in all that is replicated.
func (t *Table) held(s uint32, value []byte) bool {
	return equalUnder(t.opt.Carried, t.value(s), value)
}

// equalUnder reports whether two values of the same size are equal in the bits
// of a mask, nil for all.
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

// keep puts what a delta does not tell into its value, as the record has it.
func (t *Table) keep(s uint32, d *Delta) {
	if d.Delete || len(d.Keep) == 0 || !t.meta(s).live() {
		return
	}
	own := t.value(s)
	for _, r := range d.Keep {
		copy(d.Value[r.Offset:r.Offset+r.Size], own[r.Offset:r.Offset+r.Size])
	}
}
