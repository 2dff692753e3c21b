package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestTypesOfNewerCompilers checks types that clang 14 does not emit.
func TestTypesOfNewerCompilers(t *testing.T) {
	wide := &btf.Enum{Name: "wide", Size: 8, Signed: true, Values: []btf.EnumValue{{Name: "MINUS", Value: ^uint64(0)}, {Name: "BIG", Value: 1 << 40}}}
	kptr := &btf.Pointer{Target: &btf.TypeTag{Value: "kptr", Type: &btf.Struct{Name: "task"}}}
	odd := &btf.Int{Name: "_BitInt(24)", Size: 3}
	v := structOf("v", 56,
		member("e", 0, wide), member("p", 64, kptr), member("odd", 128, odd),
		member("long_double", 192, &btf.Float{Name: "long double", Size: 16}),
		btf.Member{Name: "bits", Offset: 320, BitfieldSize: 50, Type: &btf.Int{Name: "__int128", Size: 16, Encoding: btf.Signed}},
		member("c", 384, &btf.Int{Name: "char", Size: 1, Encoding: btf.Char | btf.Signed}),
		member("b", 392, &btf.Int{Name: "odd_bool", Size: 2, Encoding: btf.Bool}),
		// Padding. The last padding is malformed: its type extends beyond the struct.
		member("", 416, u16),
		btf.Member{Offset: 440, BitfieldSize: 8, Type: structOf("", 8, member("far", 0, u64))},
	)
	s, err := FromTypes("m", u32, v)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, s.Value, "v", 56, `
e 1 @0 8 enum
p 2 @8 8 none
odd 3 @16 3 bytes
long_double 4 @24 16 bytes
bits 5 @40:0 bits 50 of 8 sint
c 6 @48 1 sint
b 7 @49 2 uint`)
	if e := s.Value.Fields[0].Enum; !e.Signed || e.Values[0].Value != ^uint64(0) || e.Values[1].Value != 1<<40 {
		t.Errorf("enum: got %+v, want it signed, with values %d and %d", e, ^uint64(0), 1<<40)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

// TestNonStructKeysAndValues checks keys and values that are not structs.
func TestNonStructKeysAndValues(t *testing.T) {
	pair := &btf.Union{Name: "pair", Size: 8, Members: []btf.Member{member("half", 0, u32), member("whole", 0, u64)}}
	for _, c := range []struct {
		typ        btf.Type
		name, want string
	}{
		{u32, "m_key", "key 1 @0 4 uint"},
		{&btf.Array{Type: u8, Nelems: 6}, "m_key", "key 1 @0 6 bytes mac"},
		{&btf.Typedef{Name: "__be32", Type: u32}, "m_key", "key 1 @0 4 uint be"},
		{&btf.Typedef{Name: "addr", Type: u32, Tags: []string{"mapsync:ipv4"}}, "m_key", "key 1 @0 4 uint be,ipv4"},
		{structOf("in6_addr", 16), "m_key", "key 1 @0 16 bytes ipv6"},
		{pair, "pair", "whole 1 @0 8 uint"},
		{&btf.Array{Type: pair, Nelems: 2}, "m_key", "key 1 @0 8 message *2\n  whole 1 @0 8 uint"},
		{&btf.Typedef{Name: "alias", Type: structOf("", 4, member("a", 0, u32))}, "alias", "a 1 @0 4 uint"},
		{structOf("", 4, member("a", 0, u32)), "m_key", "a 1 @0 4 uint"},
	} {
		s, err := FromTypes("m", c.typ, u32)
		if err != nil {
			t.Error(err)
			continue
		}
		size, _ := btf.Sizeof(c.typ)
		expect(t, s.Key, c.name, size, c.want)
	}
}

var (
	u8  = &btf.Int{Name: "unsigned char", Size: 1}
	u16 = &btf.Int{Name: "unsigned short", Size: 2}
	u32 = &btf.Int{Name: "unsigned int", Size: 4}
	u64 = &btf.Int{Name: "unsigned long long", Size: 8}
)

func member(name string, bits btf.Bits, t btf.Type) btf.Member {
	return btf.Member{Name: name, Offset: bits, Type: t}
}

func structOf(name string, size uint32, members ...btf.Member) *btf.Struct {
	return &btf.Struct{Name: name, Size: size, Members: members}
}

func tagged32(tags ...string) *btf.Struct {
	return structOf("s", 4, btf.Member{Name: "f", Type: u32, Tags: tags})
}

// hostile returns types that no compiler emits, or that cannot be replicated.
func hostile() map[string]btf.Type {
	self := structOf("self", 8)
	self.Members = []btf.Member{member("again", 0, self)}
	hidden := &btf.Union{Size: 8}
	hidden.Members = []btf.Member{member("", 0, hidden)}
	var deep btf.Type = u32
	for range MaxDepth + 1 {
		deep = structOf("", 4, member("in", 0, deep))
	}
	wide := structOf("w", 2, member("a", 0, u8), member("b", 8, u8))
	for range 8 {
		wide = structOf("w", wide.Size*4, member("a", 0, wide), member("b", btf.Bits(wide.Size*8), wide),
			member("c", btf.Bits(wide.Size*16), wide), member("d", btf.Bits(wide.Size*24), wide))
	}
	long := btf.Type(u32)
	for range 100 {
		long = &btf.Const{Type: long}
	}
	loop := &btf.Typedef{Name: "loop"}
	loop.Type = loop
	large := &btf.Union{Size: MaxSize}
	many := structOf("many", 40000)
	for i := range 20000 {
		large.Members = append(large.Members, member(fmt.Sprintf("m%d", i), 0, &btf.Array{Type: u32, Nelems: MaxSize / 4}))
		many.Members = append(many.Members, member(fmt.Sprintf("m%d", i), btf.Bits(i*16), u16))
	}
	bitfield := func(t btf.Type, bits btf.Bits) btf.Type {
		return structOf("s", 32, btf.Member{Name: "f", Type: t, BitfieldSize: bits})
	}
	return map[string]btf.Type{
		"contains itself": self, "contains itself, anonymous": structOf("s", 8, member("", 0, hidden)), "is nested deeper": deep,
		"has more than 65536 fields": wide, "nested too deep": long, "nested too deep, endless": loop,
		"takes more than": &btf.Array{Type: u32, Nelems: 1 << 31}, "takes more than 1048576": structOf("s", MaxSize+1),
		"takes more than, dimensions":             &btf.Array{Type: &btf.Array{Type: &btf.Array{Type: u32, Nelems: 1 << 31}, Nelems: 1 << 31}, Nelems: 1 << 31},
		"has more than 65536 fields, in an array": &btf.Array{Type: structOf("s", 1, member("f", 0, u8)), Nelems: 1 << 17},
		"too many or too large":                   large, "protobuf keeps the number": many,
		"overlaps":                      structOf("s", 8, member("a", 0, u32), member("b", 16, u32)),
		"overlaps, bits":                structOf("s", 8, btf.Member{Name: "a", Type: u32, BitfieldSize: 5}, btf.Member{Name: "b", Offset: 4, Type: u32, BitfieldSize: 5}),
		"overlaps, back":                structOf("s", 8, member("b", 32, u32), member("a", 0, u32)),
		"outside of the 4 bytes":        structOf("s", 4, member("a", 8, u32)),
		"outside of the 4 bytes, union": &btf.Union{Size: 4, Members: []btf.Member{member("a", 0, u64)}},
		"begins within a byte":          structOf("s", 8, member("a", 3, u32)),
		"bitfield of 65 bits":           bitfield(&btf.Int{Name: "i", Size: 16}, 65), "bitfield of 33 bits": bitfield(u32, 33),
		"is a bitfield of struct": bitfield(structOf("x", 4), 3), "bitfield of 3 bits of unsigned int[2]": bitfield(&btf.Array{Type: u32, Nelems: 2}, 3),
		"has a type without size": &btf.Void{}, "has a type without size, nil": nil, "has a type without size (*btf.Fwd)": structOf("s", 4, member("f", 0, &btf.Fwd{Name: "x"})),
		"has no size": structOf("s", 0), "integer has no size": structOf("s", 4, member("f", 0, &btf.Int{Name: "i"})),
		"enum has 3 bytes": structOf("s", 4, member("f", 0, &btf.Enum{Name: "e", Size: 3})),
		"has the name":     structOf("s", 4, member("a b", 0, u32)), "two fields a": structOf("s", 8, member("a", 0, u32), member("a", 32, u32)),
		"bpf_timer has no name":   structOf("s", 16, member("", 0, structOf("bpf_timer", 16))),
		`unknown role "nonsense"`: tagged32("mapsync:nonsense"), `unknown role ""`: tagged32("mapsync:"), "needs an 8-byte integer": tagged32("mapsync:ktime"),
		"number=1 and number=2":             tagged32("mapsync:number=1", "mapsync:number=2"),
		"not a valid protobuf field number": tagged32("mapsync:number=19500"),
		"default=1 and default=2":           tagged32("mapsync:local,default=1", "mapsync:default=2"),
		"number=N is for a member":          structOf("s", 4, member("f", 0, &btf.Typedef{Name: "t", Type: u32, Tags: []string{"mapsync:number=3"}})),
		"is not of a field":                 &btf.Struct{Name: "s", Size: 4, Members: []btf.Member{member("f", 0, u32)}, Tags: []string{"mapsync:local"}},
		"is not of a field, unnamed":        structOf("s", 4, btf.Member{Type: structOf("", 4, member("f", 0, u32)), Tags: []string{"mapsync:local"}}),
		"of the same number 1":              structOf("s", 8, member("a", 0, u32), btf.Member{Name: "b", Offset: 32, Type: u32, Tags: []string{"mapsync:number=1"}}),
		"cannot have roles ktime,sum":       structOf("s", 8, btf.Member{Name: "a", Type: u64, Tags: []string{"mapsync:sum,ktime"}}),
		"value.in.f of type":                structOf("s", 4, member("in", 0, tagged32("mapsync:mac"))),
		"is of an unused alternative no":    &btf.Union{Size: 4, Members: []btf.Member{member("a", 0, u32), {Name: "b", Type: u32, Tags: []string{"mapsync:no"}}}},
	}
}

func TestInvalidTypesAreRejected(t *testing.T) {
	for want, typ := range hostile() {
		s, err := FromTypes("m", u32, typ)
		want, _, _ = strings.Cut(want, ", ")
		if strings.HasPrefix(want, "is of an unused alternative") {
			want = `unknown role "no"`
		}
		if !errors.Is(err, ErrType) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "value") {
			t.Errorf("build schema: want an error with %q, got %v, error %v", want, s, err)
		}
	}
}

func TestTypesRefusedInKeys(t *testing.T) {
	for want, typ := range map[string]btf.Type{
		"key.p void * cannot be in a key":               structOf("k", 8, member("p", 0, &btf.Pointer{Target: (*btf.Void)(nil)})),
		"key.l struct bpf_spin_lock cannot":             structOf("k", 4, member("l", 0, structOf("bpf_spin_lock", 4))),
		"key.u.p void * cannot":                         structOf("k", 8, member("u", 0, &btf.Union{Size: 8, Members: []btf.Member{member("p", 0, &btf.Pointer{})}})),
		"key.f of type unsigned int cannot have role v": tagged32("mapsync:volatile"),
		"cannot have role local in a key":               tagged32("mapsync:local"),
		"cannot have role seconds in a key":             tagged32("mapsync:seconds"),
	} {
		if _, err := FromTypes("m", typ, u32); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), want) {
			t.Errorf("build schema: want an error with %q, got %v", want, err)
		}
	}
}
