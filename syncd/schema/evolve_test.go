package schema

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// evolve returns another layout of the same fields: wider, longer, with other offsets and numbers,
// and with additional fields.
func (g layoutGen) evolve(fields []Field, depth int) []Field {
	fields = slices.Clone(fields)
	for i := range fields {
		f := &fields[i]
		switch f.Kind {
		case KindUint, KindSint, KindEnum:
			if f.BitSize > 0 {
				f.BitSize += g.upTo(f.Size*8-f.BitSize, "wider")
			} else if !f.isIPv4() {
				f.Size = min(8, f.Size<<g.upTo(2, "wider"))
				if f.isIPv4() {
					f.Roles &^= RoleIPv4
				}
			}
		case KindBytes:
			f.Size += g.upTo(3, "longer")
		case KindTime:
			if f.Count == 0 && f.Roles&(RoleKtime|RoleBoottime) != 0 {
				f.Roles ^= RoleKtime | RoleBoottime
			}
		case KindMessage:
			f.Message = g.place(g.evolve(f.Message.Fields, depth+1))
			f.Size = f.Message.Size
		}
		if f.Count > 0 {
			f.Count += g.upTo(2, "longer")
		}
	}
	if !g.key {
		added := g.fields(3, 100)
		for i := range added {
			added[i].Number += 1 << 20
		}
		fields = append(fields, added...)
	}
	fields = rapid.Permutation(fields).Draw(g.t, "order")
	for i := range fields {
		fields[i].Number = i + 1
	}
	return fields
}

func evolved(t *rapid.T, s *Schema) *Schema {
	key, value := layoutGen{t: t, key: true}, layoutGen{t: t}
	return &Schema{
		Map: s.Map, Key: key.place(key.evolve(s.Key.Fields, 1)),
		Value: value.place(value.evolve(s.Value.Fields, 0)),
	}
}

// sameFields compares the fields that both messages have, without the codec. Elements and fields
// that only b has must be zero.
func sameFields(t rapid.TB, a, b *Message, x, y []byte, path string) {
	here := fieldsByName(b)
	for i := range a.Fields {
		f := &a.Fields[i]
		g := here[f.Name]
		if g == nil || !f.Sent() || !g.Sent() {
			continue
		}
		for e := range max(f.Count, g.Count, 1) {
			sameElement(t, f, g, x, y, e, path+"."+f.Name)
		}
	}
}

func sameElement(t rapid.TB, f, g *Field, x, y []byte, e int, path string) {
	from, to := elementOf(f, x, e), elementOf(g, y, e)
	switch f.Kind {
	case KindMessage:
		if from == nil || to == nil {
			if !allZero(masked(slices.Concat(from, to), carriedBy(f, g, from == nil))) {
				t.Fatalf("%s: element %d: got a value, want zero", path, e)
			}
			return
		}
		sameFields(t, f.Message, g.Message, from, to, path)
	case KindBytes:
		if !bytes.Equal(bytes.TrimRight(from, "\x00"), bytes.TrimRight(to, "\x00")) {
			t.Fatalf("%s: % x: got % x", path, from, to)
		}
	case KindTime:
		sameInstant(t, f, g, from, to, path)
	default:
		if a, b := plainNumber(f, from), plainNumber(g, to); a != b {
			t.Fatalf("%s: %d: got %d", path, int64(a), int64(b))
		}
	}
}

// carriedBy returns a mask of the sent bits of an element that only one of two arrays of messages
// has.
func carriedBy(f, g *Field, onlyTo bool) []byte {
	if onlyTo {
		f = g
	}
	s := Schema{Value: &Message{Size: f.Size, Fields: f.Message.Fields}}
	return s.Carried()
}

func sameInstant(t rapid.TB, f, g *Field, from, to []byte, path string) {
	a, b := plainNumber(f, from), plainNumber(g, to)
	if a == 0 || b == 0 {
		if a != b {
			t.Fatalf("%s: time %d: got %d", path, a, b)
		}
		return
	}
	x, _ := codecTimes.toWall(clockOf(f), a)
	y, _ := codecTimes.toWall(clockOf(g), b)
	if x != y && b != 1 { // 1 is before the boot of the other clock
		t.Fatalf("%s: time %d: got %d", path, x, y)
	}
}

// elementOf returns the bytes of an element, or nil if the array is shorter.
func elementOf(f *Field, b []byte, e int) []byte {
	if e >= max(f.Count, 1) {
		return nil
	}
	if f.BitSize > 0 {
		return b[f.Offset:][:f.Bytes()]
	}
	return b[f.Offset+e*f.Size:][:f.Size]
}

// plainNumber reads a number bit by bit.
func plainNumber(f *Field, b []byte) uint64 {
	if b == nil {
		return 0
	}
	if f.swapped() {
		b = slices.Clone(b)
		slices.Reverse(b)
	}
	width := f.BitSize
	if width == 0 {
		width = 8 * f.Size
	}
	var v uint64
	for i := range width {
		bit := f.BitOffset + i
		v |= uint64(b[bit/8]>>(bit%8)&1) << i
	}
	if (f.Kind == KindSint || f.Kind == KindEnum && f.Enum.Signed) && v>>(width-1) != 0 {
		v |= ^uint64(0) << (width - 1)
	}
	return v
}

// TestEvolution checks that fields that two layouts share keep their values, in both directions.
// Values that do not fit must be refused.
func TestEvolution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		next := evolved(t, s)
		enc, dec := newCodec(t, s, next)
		key, value := drawStruct(t, s.Key), drawStruct(t, s.Value)
		wireKey, err := enc.AppendKey(nil, key)
		if err != nil {
			t.Fatal(err)
		}
		gotKey, got := make([]byte, next.Key.Size), make([]byte, next.Value.Size)
		if err := dec.Key(gotKey, wireKey); err != nil {
			t.Fatal(err)
		}
		sameFields(t, s.Key, next.Key, key, gotKey, "key")
		if err := dec.Value(got, enc.AppendValue(nil, value, &codecTimes), &codecTimes); err != nil {
			t.Fatal(err)
		}
		sameFields(t, s.Value, next.Value, value, got, "value")

		enc, dec = newCodec(t, next, s)
		value = drawStruct(t, next.Value)
		got = make([]byte, s.Value.Size)
		err = dec.Value(got, enc.AppendValue(nil, value, &codecTimes), &codecTimes)
		if errors.Is(err, ErrRange) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		sameFields(t, next.Value, s.Value, value, got, "value")
	})
}
