package schema

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

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
			t.Errorf("new decoder with %s: %v", test.name, err)
		case test.want != "" && (!errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("new decoder with %s: got %v, want %s", test.name, err, test.want)
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
		t.Errorf("NewDecoder with other key fields: got error %v, want ErrIncompatible with zone and vlan as the missing fields", err)
	}
	remote, local = opaqueSchema(4, 8), opaqueSchema(4, 16)
	if _, err := NewDecoder(remote, local, nil); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "value: 16 bytes here, 8 at the sender") {
		t.Errorf("NewDecoder with values of other sizes: got error %v, want ErrIncompatible with the sizes 16 and 8", err)
	}
	local.Opaque = false
	if _, err := NewDecoder(remote, local, nil); !errors.Is(err, ErrIncompatible) {
		t.Errorf("NewDecoder with one opaque side: got error %v, want ErrIncompatible", err)
	}
}

func opaqueSchema(key, value int) *Schema {
	half := func(size int) *Message {
		return &Message{Size: size, Fields: []Field{{Name: "data", Number: 1, Size: size, Kind: KindBytes}}}
	}
	return &Schema{Map: "m", Key: half(key), Value: half(value), Opaque: true}
}

func TestDecodeOutOfRange(t *testing.T) {
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
			ErrRange, // the smallest possible time, without Tick
		},
	}
	for _, test := range tests {
		test.remote.Name, test.local.Name = "a", "a"
		remote, local := oneValue(test.remote), oneValue(test.local)
		enc, dec := newCodec(t, remote, local)
		got := make([]byte, local.Value.Size)
		err := dec.Value(got, nil, enc.AppendValue(nil, nil, test.value, nil), nil)
		if !errors.Is(err, test.want) {
			t.Errorf("decode %s % x: got %v, want %v", test.name, test.value, err, test.want)
		}
	}
}

// TestDecoderKeepsUnsentFields checks that fields that a sender does not send keep their default,
// and that Keep returns them.
func TestDecoderKeepsUnsentFields(t *testing.T) {
	u8 := func(name string) Field { return Field{Name: name, Size: 1, Kind: KindUint} }
	local := u8("cpu")
	local.Roles, local.Default = RoleLocal, []byte{9}
	fresh := Field{Name: "fresh", Size: 2, Kind: KindUint, Default: []byte{7, 8}}
	here := oneValue(u8("a"), local, fresh, Field{Name: "lock", Size: 4, Kind: KindNone}, u8("b"), u8("c"))
	gone := u8("gone")
	gone.Number = 9
	sentField := u8("c")
	sentField.Number = 8
	there := oneValue(u8("b"), local, gone, sentField, u8("a"))
	enc, dec := newCodec(t, there, here)
	got := make([]byte, here.Value.Size)
	if err := dec.Value(got, nil, enc.AppendValue(nil, nil, []byte{1, 2, 3, 4, 5}, nil), nil); err != nil {
		t.Fatal(err)
	}
	if want := []byte{5, 9, 7, 8, 0, 0, 0, 0, 1, 4}; !bytes.Equal(got, want) {
		t.Errorf("value: got % x, want % x", got, want)
	}
	if want := []Range{{1, 7}}; !slices.Equal(dec.Keep(), want) {
		t.Errorf("Keep: got %v, want %v", dec.Keep(), want)
	}
	if want := []Range{{1, 1}, {4, 4}}; !slices.Equal(here.Local(), want) {
		t.Errorf("Local: got %v, want %v", here.Local(), want)
	}
	if dec.Same() || Equal(here, there) || !Equal(here, here) {
		t.Error("Same and Equal of different layouts: got true, want false")
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
	wire := enc.AppendValue(nil, nil, value, nil)
	got := make([]byte, 24)
	if err := dec.Value(got, nil, wire, nil); err != nil || !bytes.Equal(got, masked(value, three.Carried())) {
		t.Fatalf("decode % x: got % x, error %v, want % x and nil", value, got, err, masked(value, three.Carried()))
	}
	_, dec = newCodec(t, three, two)
	got = make([]byte, 16)
	if err := dec.Value(got, nil, wire, nil); err != nil {
		t.Fatal(err)
	}
	if want := append([]byte{6}, make([]byte, 15)...); !bytes.Equal(got, want) { // the sum wraps
		t.Errorf("sum: got % x, want % x", got, want)
	}
	if want := []Range{{4, 2}, {12, 2}}; !slices.Equal(dec.Keep(), want) {
		t.Errorf("Keep: got %v, want %v", dec.Keep(), want)
	}
	packets.Roles = 0
	if _, err := NewDecoder(three, perCPUSchema(2, packets), nil); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "cpu.packets") {
		t.Errorf("NewDecoder without a sum role here: got error %v, want ErrIncompatible with cpu.packets", err)
	}
	if _, err := NewDecoder(oneValue(packets), perCPUSchema(2, packets), nil); !errors.Is(err, ErrIncompatible) {
		t.Errorf("NewDecoder with a sender without CPUs: got error %v, want ErrIncompatible", err)
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
		t.Errorf("Significant: got % x, want % x", s.Significant(), want)
	}
	if want := []byte{7, 255, 255, 0, 255, 255}; !bytes.Equal(s.Carried(), want) {
		t.Errorf("Carried: got % x, want % x", s.Carried(), want)
	}
}
