package schema

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// evolve returns another layout of the same fields: widened, lengthened, at other places
// and with other numbers, with new ones among them.
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

// sameFields compares the fields that both messages have, read without the codec, and
// wants the elements and fields that only b has to be zero.
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
				t.Fatalf("%s: element %d is not zero", path, e)
			}
			return
		}
		sameFields(t, f.Message, g.Message, from, to, path)
	case KindBytes:
		if !bytes.Equal(bytes.TrimRight(from, "\x00"), bytes.TrimRight(to, "\x00")) {
			t.Fatalf("%s: % x became % x", path, from, to)
		}
	case KindTime:
		sameInstant(t, f, g, from, to, path)
	default:
		if a, b := plainNumber(f, from), plainNumber(g, to); a != b {
			t.Fatalf("%s: %d became %d", path, int64(a), int64(b))
		}
	}
}

// carriedBy returns a mask of what is sent of the element that only one of two arrays of
// messages has.
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
			t.Fatalf("%s: time %d became %d", path, a, b)
		}
		return
	}
	x, _ := codecTimes.toWall(clockOf(f), a)
	y, _ := codecTimes.toWall(clockOf(g), b)
	if x != y && b != 1 { // 1: before the boot of the other clock
		t.Fatalf("%s: time %d became %d", path, x, y)
	}
}

// elementOf returns the bytes of an element, nil when there are fewer.
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

// TestEvolution: between two layouts of a map, fields that both have keep their values, in both
// directions; what does not fit is refused.
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

func oneValue(fields ...Field) *Schema {
	size := 0
	for i := range fields {
		fields[i].Offset = size
		if fields[i].Number == 0 {
			fields[i].Number = i + 1
		}
		size += fields[i].Bytes()
	}
	return &Schema{
		Map:   "m",
		Key:   &Message{Name: "key", Size: 4, Fields: []Field{{Name: "id", Number: 1, Size: 4, Kind: KindUint}}},
		Value: &Message{Name: "value", Size: size, Fields: fields},
	}
}

func TestIncompatible(t *testing.T) {
	num := Field{Name: "a", Size: 4, Kind: KindUint}
	inner := &Message{Name: "in", Size: 4, Fields: []Field{{Name: "sport", Number: 1, Size: 4, Kind: KindUint}}}
	nested := &Message{Name: "in", Size: 4, Fields: []Field{{
		Name: "sport", Number: 1, Size: 4, Kind: KindMessage, Message: inner,
	}}}
	with := func(change func(*Field)) Field {
		f := num
		change(&f)
		return f
	}
	tests := []struct {
		name          string
		remote, local Field
		want          string
	}{
		{"sign", num, with(func(f *Field) { f.Kind = KindSint }), "value field a: int32 here, uint32 at the sender"},
		{"enum", num, with(func(f *Field) { f.Kind, f.Enum = KindEnum, &Enum{} }), "value field a: enum here"},
		{"address", num, with(func(f *Field) { f.Roles = RoleIPv4 }), "value field a: IPv4 address here, uint32 at the sender"},
		{"array", with(func(f *Field) { f.Count = 2 }), num, "value field a: uint32 here, array of 2 × uint32 at the sender"},
		{"time", num, with(func(f *Field) { f.Kind, f.Roles = KindTime, RoleSeconds }), "time here"},
		{"bytes", num, with(func(f *Field) { f.Kind = KindBytes }), "4 bytes here"},
		{"interface", num, with(func(f *Field) { f.Kind = KindIfname }), "interface here"},
		{"float", num, with(func(f *Field) { f.Kind = KindFloat }), "float here"},
		{"double", with(func(f *Field) { f.Kind, f.Size = KindFloat, 8 }), with(func(f *Field) { f.Kind = KindFloat }), "float here, double at"},
		{
			"nested",
			Field{Name: "nat", Size: 4, Kind: KindMessage, Message: nested},
			Field{Name: "nat", Size: 4, Kind: KindMessage, Message: inner},
			"value field nat.sport: uint32 here, message at the sender",
		},
		{"sign", num, with(func(f *Field) { f.Kind, f.Roles = KindSint, RoleLocal }), ""},
		{"order", num, with(func(f *Field) { f.Roles = RoleBE }), ""},
		{"bool", num, with(func(f *Field) { f.Kind, f.Size = KindBool, 1 }), ""},
	}
	for _, test := range tests {
		_, err := NewDecoder(oneValue(test.remote), oneValue(test.local), nil)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (!errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
}

func TestIncompatibleKeys(t *testing.T) {
	remote, local := oneValue(Field{Name: "a", Size: 4, Kind: KindUint}), oneValue(Field{Name: "a", Size: 4, Kind: KindUint})
	remote.Key.Fields = []Field{{Name: "vlan", Number: 1, Size: 2, Kind: KindUint}}
	local.Key.Fields = []Field{{Name: "zone", Number: 1, Size: 2, Kind: KindUint}}
	_, err := NewDecoder(remote, local, nil)
	if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "key field zone is missing at the sender") ||
		!strings.Contains(err.Error(), "key field vlan is missing here") {
		t.Error(err)
	}
	remote, local = opaqueSchema(4, 8), opaqueSchema(4, 16)
	if _, err := NewDecoder(remote, local, nil); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "value: 16 bytes here, 8 at the sender") {
		t.Error(err)
	}
	local.Opaque = false
	if _, err := NewDecoder(remote, local, nil); !errors.Is(err, ErrIncompatible) {
		t.Error(err)
	}
}

func opaqueSchema(key, value int) *Schema {
	half := func(size int) *Message {
		return &Message{Size: size, Fields: []Field{{Name: "data", Number: 1, Size: size, Kind: KindBytes}}}
	}
	return &Schema{Map: "m", Key: half(key), Value: half(value), Opaque: true}
}

func TestRange(t *testing.T) {
	tests := []struct {
		name          string
		remote, local Field
		value         []byte
		want          error
	}{
		{"narrow", Field{Size: 4, Kind: KindUint}, Field{Size: 1, Kind: KindUint}, []byte{0, 1, 0, 0}, ErrRange},
		{"narrow", Field{Size: 4, Kind: KindUint}, Field{Size: 1, Kind: KindUint}, []byte{255, 0, 0, 0}, nil},
		{"signed", Field{Size: 2, Kind: KindSint}, Field{Size: 1, Kind: KindSint}, []byte{0x80, 0xff}, nil},
		{"signed", Field{Size: 2, Kind: KindSint}, Field{Size: 1, Kind: KindSint}, []byte{0x7f, 0xff}, ErrRange},
		{"bits", Field{Size: 1, Kind: KindUint}, Field{Size: 1, BitSize: 3, Kind: KindUint}, []byte{8}, ErrRange},
		{"array", Field{Size: 1, Count: 3, Kind: KindUint}, Field{Size: 1, Count: 2, Kind: KindUint}, []byte{1, 1, 1}, ErrRange},
		{"array", Field{Size: 1, Count: 3, Kind: KindUint}, Field{Size: 1, Count: 2, Kind: KindUint}, []byte{1, 1, 0}, nil},
		{"bytes", Field{Size: 3, Kind: KindBytes}, Field{Size: 2, Kind: KindBytes}, []byte{1, 1, 1}, ErrRange},
		{"bytes", Field{Size: 3, Kind: KindBytes}, Field{Size: 2, Kind: KindBytes}, []byte{1, 1, 0}, nil},
		{
			"enum",
			Field{Size: 4, Kind: KindEnum, Enum: &Enum{Signed: true}},
			Field{Size: 4, Kind: KindEnum, Enum: &Enum{}},
			[]byte{255, 255, 255, 255},
			ErrRange,
		},
		{
			"jiffies",
			Field{Size: 8, Kind: KindTime, Roles: RoleKtime},
			Field{Size: 8, Kind: KindTime, Roles: RoleJiffies},
			[]byte{1, 0, 0, 0, 0, 0, 0, 0},
			ErrRange, // no Tick
		},
	}
	for _, test := range tests {
		test.remote.Name, test.local.Name = "a", "a"
		remote, local := oneValue(test.remote), oneValue(test.local)
		enc, dec := newCodec(t, remote, local)
		got := make([]byte, local.Value.Size)
		err := dec.Value(got, enc.AppendValue(nil, test.value, nil), nil)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: % x: %v, want %v", test.name, test.value, err, test.want)
		}
	}
}

// TestKeep: what a sender does not tell keeps its default, and is named.
func TestKeep(t *testing.T) {
	u8 := func(name string) Field { return Field{Name: name, Size: 1, Kind: KindUint} }
	local := u8("cpu")
	local.Roles, local.Default = RoleLocal, []byte{9}
	fresh := Field{Name: "fresh", Size: 2, Kind: KindUint, Default: []byte{7, 8}}
	here := oneValue(u8("a"), local, fresh, Field{Name: "lock", Size: 4, Kind: KindNone}, u8("b"), u8("c"))
	gone := u8("gone")
	gone.Number = 9
	told := u8("c")
	told.Number = 8
	there := oneValue(u8("b"), local, gone, told, u8("a"))
	enc, dec := newCodec(t, there, here)
	got := make([]byte, here.Value.Size)
	if err := dec.Value(got, enc.AppendValue(nil, []byte{1, 2, 3, 4, 5}, nil), nil); err != nil {
		t.Fatal(err)
	}
	if want := []byte{5, 9, 7, 8, 0, 0, 0, 0, 1, 4}; !bytes.Equal(got, want) {
		t.Errorf("got % x, want % x", got, want)
	}
	if want := []Range{{1, 7}}; !slices.Equal(dec.Keep(), want) {
		t.Errorf("keeps %v, want %v", dec.Keep(), want)
	}
	if want := []Range{{1, 1}, {4, 4}}; !slices.Equal(here.Local(), want) {
		t.Errorf("local are %v, want %v", here.Local(), want)
	}
	if dec.Same() || Equal(here, there) || !Equal(here, here) {
		t.Error("different layouts are the same")
	}
}

func perCPUSchema(cpus int, fields ...Field) *Schema {
	s := oneValue(fields...)
	size := (s.Value.Size + 7) / 8 * 8
	s.CPUs = cpus
	s.Value = &Message{Name: "percpu", Size: size * cpus, Fields: []Field{{
		Name: "cpu", Number: 1, Size: size, Count: cpus, Kind: KindMessage, Message: s.Value,
	}}}
	return s
}

func TestPerCPU(t *testing.T) {
	packets := Field{Name: "packets", Size: 4, Kind: KindUint, Roles: RoleSum}
	own := Field{Name: "own", Size: 2, Kind: KindUint, Roles: RoleLocal}
	three, two := perCPUSchema(3, packets, own), perCPUSchema(2, packets, own)
	enc, dec := newCodec(t, three, three)
	value := []byte{1, 0, 0, 0x80, 9, 9, 0, 0, 0, 0, 0, 0, 9, 9, 0, 0, 5, 0, 0, 0x80, 9, 9, 0, 0}
	wire := enc.AppendValue(nil, value, nil)
	got := make([]byte, 24)
	if err := dec.Value(got, wire, nil); err != nil || !bytes.Equal(got, masked(value, three.Carried())) {
		t.Fatalf("% x became % x, %v", value, got, err)
	}
	_, dec = newCodec(t, three, two)
	got = make([]byte, 16)
	if err := dec.Value(got, wire, nil); err != nil {
		t.Fatal(err)
	}
	if want := append([]byte{6}, make([]byte, 15)...); !bytes.Equal(got, want) { // it wraps
		t.Errorf("the sum is % x, want % x", got, want)
	}
	if want := []Range{{4, 2}, {12, 2}}; !slices.Equal(dec.Keep(), want) {
		t.Errorf("keeps %v, want %v", dec.Keep(), want)
	}
	packets.Roles = 0
	if _, err := NewDecoder(three, perCPUSchema(2, packets), nil); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "cpu.packets") {
		t.Error(err)
	}
	if _, err := NewDecoder(oneValue(packets), perCPUSchema(2, packets), nil); !errors.Is(err, ErrIncompatible) {
		t.Error(err)
	}
}

func TestSignificant(t *testing.T) {
	s := oneValue(
		Field{Name: "a", Size: 1, BitSize: 3, Kind: KindUint},
		Field{Name: "n", Size: 2, Kind: KindUint, Roles: RoleVolatile},
		Field{Name: "l", Size: 1, Kind: KindUint, Roles: RoleLocal},
		Field{Name: "z", Size: 2, Kind: KindSint},
	)
	if want := []byte{7, 0, 0, 0, 255, 255}; !bytes.Equal(s.Significant(), want) {
		t.Errorf("significant % x, want % x", s.Significant(), want)
	}
	if want := []byte{7, 255, 255, 0, 255, 255}; !bytes.Equal(s.Carried(), want) {
		t.Errorf("carried % x, want % x", s.Carried(), want)
	}
}
