package schema

import "github.com/cilium/ebpf/btf"

// integer sets the kind of f, whose type is an integer or an array of integers.
func integer(f *Field, t *btf.Int, sh *shape) {
	if t.Size == 1 && sh.array && t.Encoding&btf.Bool == 0 {
		// Any array of bytes is sent as bytes: text, addresses and buffers.
		f.Kind, f.Size, f.Count = KindBytes, sh.count, 0
		if sh.count == 6 && sh.dims == 1 && t.Encoding == btf.Unsigned {
			f.Roles |= RoleMAC
		}
		return
	}
	f.Kind = integerKind(t)
	if sh.be && f.Kind == KindUint && t.Size > 1 {
		f.Roles |= RoleBE
	}
}

func integerKind(t *btf.Int) Kind {
	switch t.Size {
	case 1, 2, 4, 8:
	default:
		return KindBytes
	}
	switch {
	case t.Encoding&btf.Bool != 0 && t.Size == 1:
		return KindBool
	case t.Encoding&btf.Signed != 0:
		return KindSint
	}
	return KindUint
}

// bitfield sets the kind of f, which consists of some bits of its type.
func (b *builder) bitfield(f *Field, m *btf.Member, sh *shape, place string) error {
	bits := int(m.BitfieldSize)
	if sh.array || bits > 64 || bits > sh.size*8 {
		return b.fail("is a bitfield of %d bits of %s", bits, sh.spelt)
	}
	switch t := sh.typ.(type) {
	case *btf.Int:
		f.Kind = integerKind(t)
		if f.Kind == KindBytes { // of 128 bits: the used bits fit into 64
			f.Kind, f.Size = KindUint, 8
			if t.Encoding&btf.Signed != 0 {
				f.Kind = KindSint
			}
		}
	case *btf.Enum:
		f.Kind, f.Enum = KindEnum, b.enum(t, sh, place)
	default:
		return b.fail("is a bitfield of %s", sh.spelt)
	}
	if f.BitOffset = int(m.Offset % 8); f.BitOffset > 0 || bits != f.Size*8 {
		f.BitSize = bits
	}
	return nil
}

// enum returns the Enum of a type. All fields of the type share it, because it may have many
// values.
func (b *builder) enum(t *btf.Enum, sh *shape, place string) *Enum {
	if e := b.enums[t]; e != nil {
		return e
	}
	e := &Enum{Name: sh.structName(place), Signed: t.Signed, Values: make([]EnumValue, len(t.Values))}
	for i, v := range t.Values {
		e.Values[i] = EnumValue{Name: cleanName(v.Name), Value: v.Value}
	}
	b.enums[t] = e
	return e
}
