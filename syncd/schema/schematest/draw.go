package schematest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"mapsync/syncd/schema"
)

// DrawSchema draws a valid schema of a map m with fields of all kinds, nested messages, arrays and
// padding. Its enums have no values.
func DrawSchema(t *rapid.T) *schema.Schema {
	key, value := layout{t: t, key: true}, layout{t: t}
	return &schema.Schema{Map: "m", Key: key.place(key.fields(1, 0)), Value: value.place(value.fields(0, 0))}
}

// DrawNextSchema draws another layout of the same map: fields of s become wider or longer, offsets
// and numbers change, and the value gets additional fields.
func DrawNextSchema(t *rapid.T, s *schema.Schema) *schema.Schema {
	key, value := layout{t: t, key: true}, layout{t: t}
	return &schema.Schema{
		Map: s.Map, Key: key.place(key.evolve(s.Key.Fields, 1)),
		Value: value.place(value.evolve(s.Value.Fields, 0)),
	}
}

// DrawStruct draws struct bytes of m that a peer with the same schema decodes unchanged. The padding
// is zero, clocks read less than 2^31, and the indexes of interfaces are 0 to 3.
func DrawStruct(t *rapid.T, m *schema.Message) []byte {
	b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 0, 1, 2, 0x7f, 0x80, 0xff}), m.Size, m.Size).Draw(t, "struct")
	for i, mask := range FieldBits(m) {
		b[i] &= mask
	}
	restrictValues(t, m, b)
	return b
}

// FieldBits returns a mask over m. The bits of its fields are 1, those of the padding are 0.
func FieldBits(m *schema.Message) []byte {
	mask := make([]byte, m.Size)
	for i := range m.Fields {
		f := &m.Fields[i]
		if f.Kind == schema.KindMessage {
			for e := range max(f.Count, 1) {
				copy(mask[f.Offset+e*f.Size:], FieldBits(f.Message))
			}
			continue
		}
		for bit := f.FirstBit(); bit < f.EndBit(); bit++ {
			mask[bit/8] |= 1 << (bit % 8)
		}
	}
	return mask
}

// restrictValues draws the elements that cannot have any value: time stamps and interfaces.
func restrictValues(t *rapid.T, m *schema.Message, b []byte) {
	for i := range m.Fields {
		f := &m.Fields[i]
		for e := range max(f.Count, 1) {
			element := b[f.Offset+e*f.Size:]
			switch f.Kind {
			case schema.KindMessage:
				restrictValues(t, f.Message, element[:f.Size])
			case schema.KindIfname, schema.KindReference:
				putNumber(element[:f.Size], rapid.Uint64Range(0, 3).Draw(t, "ifindex"))
			case schema.KindTime:
				putNumber(element[:f.Size], rapid.Uint64Range(0, 1<<31-1).Draw(t, "reading"))
			}
		}
	}
}

// putNumber stores n in a number of at most 8 bytes.
func putNumber(number []byte, n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	copy(number, b[:])
}

// layout draws layouts: the fields first, then their offsets.
type layout struct {
	t *rapid.T
	// key is true for the layout of a key: it has no time stamps and no fields that are not sent.
	key bool
}

func (l layout) upTo(n int, what string) int { return rapid.IntRange(0, n).Draw(l.t, what) }

func (l layout) fields(depth, first int) []schema.Field {
	fields := make([]schema.Field, 1+l.upTo(6, "fields"))
	number := 0
	for i := range fields {
		f := l.field(depth)
		number += 1 + l.upTo(1, "gap")
		if i == 4 {
			number += rapid.SampledFrom([]int{0, 20, 30000, 1 << 22, 1 << 28}).Draw(l.t, "pinned")
		}
		f.Name, f.Number = fmt.Sprintf("f%d", first+i), number
		fields[i] = f
	}
	if rapid.Bool().Draw(l.t, "numbers do not ascend") {
		fields[0].Number, fields[len(fields)-1].Number = fields[len(fields)-1].Number, fields[0].Number
	}
	return fields
}

func (l layout) field(depth int) schema.Field {
	kinds := []schema.Kind{schema.KindUint, schema.KindUint, schema.KindUint, schema.KindSint, schema.KindBool, schema.KindEnum, schema.KindFloat, schema.KindBytes, schema.KindIfname, schema.KindReference}
	if !l.key {
		kinds = append(kinds, schema.KindTime, schema.KindNone)
	}
	if depth < 3 {
		kinds = append(kinds, schema.KindMessage, schema.KindMessage)
	}
	f := schema.Field{Kind: rapid.SampledFrom(kinds).Draw(l.t, "kind"), Size: 1 << l.upTo(3, "size")}
	switch f.Kind {
	case schema.KindBool:
		f.Size = 1
	case schema.KindEnum:
		f.Enum = &schema.Enum{Name: "e", Signed: rapid.Bool().Draw(l.t, "signed")}
	case schema.KindFloat:
		f.Size = max(4, f.Size)
	case schema.KindBytes:
		f.Size = rapid.SampledFrom([]int{1, 3, 6, 8, 15, 16, 17, 130}).Draw(l.t, "bytes")
	case schema.KindMessage:
		f.Message = l.place(l.fields(depth+1, 0))
		f.Size = f.Message.Size
	case schema.KindTime:
		f.Size = max(4, f.Size)
		f.Roles = rapid.SampledFrom([]schema.Role{schema.RoleKtime, schema.RoleBoottime, schema.RoleJiffies, schema.RoleSeconds}).Draw(l.t, "clock")
		f.Signed = rapid.Bool().Draw(l.t, "signed")
		if f.Roles&(schema.RoleKtime|schema.RoleBoottime) != 0 {
			f.Size = 8
		}
	}
	if f.Kind == schema.KindUint {
		f.Roles |= rapid.SampledFrom([]schema.Role{0, schema.RoleBE, schema.RoleIPv4}).Draw(l.t, "order")
	}
	if !l.key {
		f.Roles |= rapid.SampledFrom([]schema.Role{0, 0, 0, schema.RoleVolatile, schema.RoleLocal}).Draw(l.t, "role")
	}
	switch f.Kind {
	case schema.KindUint, schema.KindSint, schema.KindEnum, schema.KindBool:
		if l.upTo(2, "bitfield") == 0 {
			f.Roles &^= schema.RoleBE | schema.RoleIPv4
			f.BitSize = 1 + l.upTo(f.Size*8-1, "bits")
			return f
		}
	}
	if f.Kind == schema.KindReference {
		f.Reference = "other[a,b]"
		return f
	}
	if l.upTo(3, "array") == 0 {
		f.Count = 1 + l.upTo(5, "count")
	}
	return f
}

// place sets the offset of each field, with or without padding.
func (l layout) place(fields []schema.Field) *schema.Message {
	bit := 0
	for i := range fields {
		f := &fields[i]
		if f.BitSize == 0 || l.upTo(3, "new byte") == 0 {
			bit = (bit+7)/8*8 + 8*rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(l.t, "padding")
		}
		f.Offset, f.BitOffset = bit/8, bit%8
		if f.BitSize > 0 {
			bit += f.BitSize
		} else {
			bit += f.Bytes() * 8
		}
	}
	return &schema.Message{Name: "m", Size: (bit+7)/8 + rapid.SampledFrom([]int{0, 0, 2, 8}).Draw(l.t, "padding"), Fields: fields}
}

// evolve returns another layout of the same fields: wider, longer, with other offsets and numbers,
// and with additional fields.
func (l layout) evolve(fields []schema.Field, depth int) []schema.Field {
	fields = slices.Clone(fields)
	for i := range fields {
		f := &fields[i]
		switch f.Kind {
		case schema.KindUint, schema.KindSint, schema.KindEnum:
			if f.BitSize > 0 {
				f.BitSize += l.upTo(f.Size*8-f.BitSize, "wider")
			} else if !f.IsIPv4() {
				f.Size = min(8, f.Size<<l.upTo(2, "wider"))
				if f.IsIPv4() {
					f.Roles &^= schema.RoleIPv4
				}
			}
		case schema.KindBytes:
			f.Size += l.upTo(3, "longer")
		case schema.KindTime:
			if f.Count == 0 && f.Roles&(schema.RoleKtime|schema.RoleBoottime) != 0 {
				f.Roles ^= schema.RoleKtime | schema.RoleBoottime
			}
		case schema.KindMessage:
			f.Message = l.place(l.evolve(f.Message.Fields, depth+1))
			f.Size = f.Message.Size
		}
		if f.Count > 0 {
			f.Count += l.upTo(2, "longer")
		}
	}
	if !l.key {
		added := l.fields(3, 100)
		for i := range added {
			added[i].Number += 1 << 20
		}
		fields = append(fields, added...)
	}
	fields = rapid.Permutation(fields).Draw(l.t, "order")
	for i := range fields {
		fields[i].Number = i + 1
	}
	return fields
}
