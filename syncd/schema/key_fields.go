package schema

import "unsafe"

// This file composes a key from the contents of its fields.

// message returns the message that has the field, within a half of an entry. Enclosing arrays have one element.
func (p *Path) message(half []byte) []byte {
	for _, f := range p.Fields[:len(p.Fields)-1] {
		half = f.BytesAt(half, 0)
	}
	return half
}

// SetNumber sets the field to n, truncated to its width. half has the full size, and Count is 1.
func (p *Path) SetNumber(half []byte, n uint64) {
	message, l := p.message(half), accessorOf(p.Last(), 0)
	l.store(unsafe.Pointer(&message[l.off : l.off+l.size][0]), n)
}

// SetBytes sets the field to b, which has its size. half has the full size, and Count is 1.
func (p *Path) SetBytes(half, b []byte) { copy(p.Last().BytesAt(p.message(half), 0), b) }

// Mark sets the bits of the field in mask, which has the size of the half.
func (p *Path) Mark(mask []byte) { p.Last().fill(p.message(mask), 0, nil) }

// KeyFields reports whether mask has the bits of all fields of the key, and whether the key has padding besides them.
func (s *Schema) KeyFields(mask []byte) (all, padded bool) {
	fields := make([]byte, s.Key.Size)
	s.Key.mark(fields, 0, func(*Field) bool { return true })
	all = true
	for i, bits := range fields {
		all = all && bits&^mask[i] == 0
		padded = padded || bits != 0xff
	}
	return all, padded
}
