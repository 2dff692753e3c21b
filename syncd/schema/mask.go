package schema

// Carried returns a mask over a value: the bits that are sent.
func (s *Schema) Carried() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool { return f.Sent() })
	return mask
}

// Significant returns a mask over a value: the bits whose change is a difference by
// itself. They are those that are sent, but for volatile fields.
func (s *Schema) Significant() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool { return f.Sent() && f.Roles&RoleVolatile == 0 })
	return mask
}

// Local returns the byte ranges of a value that the receiver's kernel map keeps, in
// ascending order: fields that are local, pointers, and what the kernel owns. A byte
// that also holds bits of a field that is sent is not kept.
func (s *Schema) Local() []Range {
	k := newKeeper(s.Value.Size)
	k.message(s.Value, s.Value, 0)
	return k.ranges()
}

// mark sets the bits of the fields of which want is true, and so is that of the
// messages that they are in. mask is that of a value, in which the message lies at base.
func (m *Message) mark(mask []byte, base int, want func(*Field) bool) {
	for i := range m.Fields {
		f := &m.Fields[i]
		switch {
		case !want(f):
		case f.Kind == KindMessage:
			for e := range max(f.Count, 1) {
				f.Message.mark(mask, base+f.Offset+e*f.Size, want)
			}
		default:
			f.fill(mask, base, nil)
		}
	}
}

// fill sets the field's bits in dst to those of src, whose first byte is the field's first;
// a src of nil has nothing but ones.
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

// maskAt returns the bits of the field in the byte that is i after its first.
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

// keeper finds out what of a value a sender does not tell.
type keeper struct {
	told, kept []byte // masks
	image      []byte // a value before the sender's fields are in it
	fields     map[*Message]map[string]*Field
}

func newKeeper(size int) *keeper {
	return &keeper{
		told: make([]byte, size), kept: make([]byte, size), image: make([]byte, size),
		fields: map[*Message]map[string]*Field{},
	}
}

// message looks at a message that lies at base here and is sent as from.
func (k *keeper) message(from, to *Message, base int) {
	sender := k.fields[from]
	if sender == nil {
		sender = fieldsByName(from)
		k.fields[from] = sender
	}
	for i := range to.Fields {
		f := &to.Fields[i]
		switch remote := sender[f.Name]; {
		case !f.Sent() || remote == nil || !remote.Sent():
			f.fill(k.kept, base, nil)
			k.defaults(f, base)
		case f.Kind == KindMessage:
			for e := range max(f.Count, 1) {
				k.message(remote.Message, f.Message, base+f.Offset+e*f.Size)
			}
		default:
			f.fill(k.told, base, nil)
		}
	}
}

// defaults puts the default of a field, or those of what is in it, into the image.
func (k *keeper) defaults(f *Field, base int) {
	if f.Default != nil {
		f.fill(k.image, base, f.Default)
		return
	}
	if f.Kind != KindMessage {
		return
	}
	for e := range max(f.Count, 1) {
		for i := range f.Message.Fields {
			k.defaults(&f.Message.Fields[i], base+f.Offset+e*f.Size)
		}
	}
}

// ranges returns the runs of bytes that are kept as they are: those of which the sender
// tells no bit.
func (k *keeper) ranges() []Range {
	var runs []Range
	for i := range k.kept {
		if k.kept[i] == 0 || k.told[i] != 0 {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].Offset+runs[n-1].Size == i {
			runs[n-1].Size++
		} else {
			runs = append(runs, Range{Offset: i, Size: 1})
		}
	}
	return runs
}

// gap is bytes of a key that hold no field's bits.
type gap struct {
	off  uint32
	size uint32 // 1 or 8
	mask uint64
}

// gaps returns where the padding of a message is, in words as large as possible.
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
