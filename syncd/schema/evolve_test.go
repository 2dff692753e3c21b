package schema_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
)

// sameFields compares the fields that both messages have, without the codec. Elements and fields
// that only b has must be zero.
func sameFields(t rapid.TB, a, b *schema.Message, x, y []byte, path string) {
	for i := range a.Fields {
		f := &a.Fields[i]
		at := slices.IndexFunc(b.Fields, func(g schema.Field) bool { return g.Name == f.Name })
		if at < 0 || !f.Sent() || !b.Fields[at].Sent() {
			continue
		}
		g := &b.Fields[at]
		for e := range max(f.Count, g.Count, 1) {
			sameElement(t, f, g, x, y, e, path+"."+f.Name)
		}
	}
}

func sameElement(t rapid.TB, f, g *schema.Field, x, y []byte, e int, path string) {
	from, to := elementOf(f, x, e), elementOf(g, y, e)
	switch f.Kind {
	case schema.KindMessage:
		if from == nil || to == nil {
			if len(bytes.Trim(schema.Masked(slices.Concat(from, to), carriedBy(f, g, from == nil)), "\x00")) > 0 {
				t.Fatalf("%s: element %d: got a value, want zero", path, e)
			}
			return
		}
		sameFields(t, f.Message, g.Message, from, to, path)
	case schema.KindBytes:
		if !bytes.Equal(bytes.TrimRight(from, "\x00"), bytes.TrimRight(to, "\x00")) {
			t.Fatalf("%s: got % x, want % x with any number of zeros at the end", path, to, from)
		}
	case schema.KindTime:
		sameInstant(t, f, g, from, to, path)
	default:
		if a, b := plainNumber(f, from), plainNumber(g, to); a != b {
			t.Fatalf("%s: got %d, want %d", path, int64(b), int64(a))
		}
	}
}

// carriedBy returns a mask of the sent bits of an element that only one of two arrays of messages
// has.
func carriedBy(f, g *schema.Field, onlyTo bool) []byte {
	if onlyTo {
		f = g
	}
	s := schema.Schema{Value: &schema.Message{Size: f.Size, Fields: f.Message.Fields}}
	return s.Carried()
}

func sameInstant(t rapid.TB, f, g *schema.Field, from, to []byte, path string) {
	a, b := plainNumber(f, from), plainNumber(g, to)
	if a == 0 || b == 0 {
		if a != b {
			t.Fatalf("%s: time: got %d, want %d", path, b, a)
		}
		return
	}
	x, _ := schema.UnixOf(f, a, &schema.CodecTimes)
	y, _ := schema.UnixOf(g, b, &schema.CodecTimes)
	if x != y && b != 1 { // 1 is before the boot of the other clock
		t.Fatalf("%s: time: got %d, want %d", path, y, x)
	}
}

// elementOf returns the bytes of an element, or nil if the array is shorter.
func elementOf(f *schema.Field, b []byte, e int) []byte {
	if e >= max(f.Count, 1) {
		return nil
	}
	if f.BitSize > 0 {
		return b[f.Offset:][:f.Bytes()]
	}
	return b[f.Offset+e*f.Size:][:f.Size]
}

// plainNumber reads a number bit by bit.
func plainNumber(f *schema.Field, b []byte) uint64 {
	if b == nil {
		return 0
	}
	if f.Swapped() {
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
	if (f.Kind == schema.KindSint || f.Kind == schema.KindEnum && f.Enum.Signed) && v>>(width-1) != 0 {
		v |= ^uint64(0) << (width - 1)
	}
	return v
}

// TestEvolution checks that fields that two layouts share keep their values, in both directions.
// Values that do not fit must be refused.
func TestEvolution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schematest.DrawSchema(t)
		next := schematest.DrawNextSchema(t, s)
		enc, dec := schema.NewCodec(t, s, next)
		key, value := schematest.DrawStruct(t, s.Key), schematest.DrawStruct(t, s.Value)
		wireKey, err := enc.AppendKey(nil, key)
		if err != nil {
			t.Fatal(err)
		}
		gotKey, got := make([]byte, next.Key.Size), make([]byte, next.Value.Size)
		if err := dec.Key(gotKey, wireKey); err != nil {
			t.Fatal(err)
		}
		sameFields(t, s.Key, next.Key, key, gotKey, "key")
		if err := dec.Value(got, nil, enc.AppendValue(nil, nil, value, &schema.CodecTimes), &schema.CodecTimes); err != nil {
			t.Fatal(err)
		}
		sameFields(t, s.Value, next.Value, value, got, "value")

		enc, dec = schema.NewCodec(t, next, s)
		value = schematest.DrawStruct(t, next.Value)
		got = make([]byte, s.Value.Size)
		err = dec.Value(got, nil, enc.AppendValue(nil, nil, value, &schema.CodecTimes), &schema.CodecTimes)
		if errors.Is(err, schema.ErrRange) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		sameFields(t, next.Value, s.Value, value, got, "value")
	})
}
