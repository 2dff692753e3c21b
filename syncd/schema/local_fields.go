package schema

// Local returns the byte ranges of a value that the receiver's kernel map keeps, in ascending
// order: local fields, pointers, and fields that the kernel owns. A byte that also contains bits of
// a sent field is not kept.
func (s *Schema) Local() []Range {
	k := newKeepFinder(s.Value.Size)
	k.message(s.Value, s.Value, 0)
	return k.ranges()
}

// keepFinder determines the parts of a value that a sender does not send.
type keepFinder struct {
	sent, kept []byte // masks
	image      []byte // a value before the sender's fields are decoded into it
	fields     map[*Message]map[string]*Field
}

func newKeepFinder(size int) *keepFinder {
	return &keepFinder{
		sent: make([]byte, size), kept: make([]byte, size), image: make([]byte, size),
		fields: map[*Message]map[string]*Field{},
	}
}

// message processes a message at offset base here, which the sender sends as from.
func (k *keepFinder) message(from, to *Message, base int) {
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
			f.fill(k.sent, base, nil)
		}
	}
}

// defaults writes the default of a field, or the defaults of its nested fields, into the image.
func (k *keepFinder) defaults(f *Field, base int) {
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

// ranges returns the ranges of bytes that are kept: those of which the sender sends no bits.
func (k *keepFinder) ranges() []Range {
	var runs []Range
	for i := range k.kept {
		if k.kept[i] == 0 || k.sent[i] != 0 {
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
