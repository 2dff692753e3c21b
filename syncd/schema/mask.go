package schema

// Carried returns a mask over a value with the bits that are sent.
func (s *Schema) Carried() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool { return f.Sent() })
	return mask
}

// Significant returns a mask over a value with the bits whose change alone counts as a difference:
// the bits that are sent, except those of volatile fields.
func (s *Schema) Significant() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool { return f.Sent() && !f.allVolatile() })
	s.clearVolatile(mask)
	return mask
}

// allVolatile reports whether the role volatile concerns all bits of the field.
func (f *Field) allVolatile() bool { return f.Roles&RoleVolatile != 0 && f.VolatileBits == 0 }

// clearVolatile clears the volatile bits of numbers in a mask over a value.
func (s *Schema) clearVolatile(mask []byte) {
	s.Value.eachElement(0, func(f *Field, at int) {
		for i := range f.Size {
			mask[at+i] &^= byte(f.VolatileBits >> (8 * min(i, 7)))
		}
	}, func(f *Field) bool { return f.VolatileBits != 0 })
}

// Stable returns a mask over a value with the bits that only the load balancer and syncd change: all fields except pointers
// and those that the kernel owns.
func (s *Schema) Stable() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool { return f.Kind != KindNone })
	return mask
}

// mark sets the bits of the fields for which want is true, and for whose enclosing messages want is
// true. mask covers a value in which the message starts at offset base.
func (m *Message) mark(mask []byte, base int, want func(*Field) bool) {
	for i := range m.Fields {
		f := &m.Fields[i]
		switch {
		case !want(f):
		case f.Kind == KindMessage || f.Kind == KindUnion: // of a union, the bits of all members
			for e := range max(f.Count, 1) {
				f.Message.mark(mask, base+f.Offset+e*f.Size, want)
			}
		default:
			f.fill(mask, base, nil)
		}
	}
}

// fill sets the field's bits in dst to those of src, whose first byte is the first byte of the
// field. A nil src stands for all ones.
func (f *Field) fill(dst []byte, base int, src []byte) {
	dst = dst[base+f.Offset:][:f.Bytes()]
	for i := range dst {
		mask := f.maskAt(i)
		if src != nil {
			dst[i] = dst[i]&^mask | src[i]&mask
		} else {
			dst[i] |= mask
		}
	}
}

// maskAt returns the bits of the field in byte i of the field.
func (f *Field) maskAt(i int) byte {
	if f.BitSize == 0 {
		return 0xff
	}
	first, end := f.BitOffset-8*i, f.BitOffset+f.BitSize-8*i
	var mask byte
	for b := max(first, 0); b < min(end, 8); b++ {
		mask |= 1 << b
	}
	return mask
}

// gap is bytes of a key that contain bits outside all fields.
type gap struct {
	off  uint32
	size uint32 // 1 or 8
	mask uint64
}

// gaps returns the positions of the padding of a message, in words as large as possible.
func (m *Message) gaps() []gap {
	mask := make([]byte, m.Size)
	m.mark(mask, 0, func(*Field) bool { return true })
	var gaps []gap
	for at := 0; at < len(mask); {
		g := gap{off: uint32(at), size: 1, mask: uint64(^mask[at])}
		if at+8 <= len(mask) {
			g.size, g.mask = 8, 0
			for i := range 8 {
				g.mask |= uint64(^mask[at+i]) << (8 * i)
			}
		}
		if g.mask != 0 {
			gaps = append(gaps, g)
		}
		at += int(g.size)
	}
	return gaps
}
