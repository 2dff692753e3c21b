package schema

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// calicoValue is a value with the two unions of Calico's connection tracking in one: a leg with counters and an interface, or the key
// of the other entry; besides, a union of a number and an address, and a nested union.
func calicoValue() *btf.Struct {
	leg := structOf("leg", 24, member("bytes", 0, u64), member("packets", 64, u32), member("ifindex", 96, u32), member("seen", 128, u64))
	inner := &btf.Union{Size: 4, Members: []btf.Member{member("port", 0, u16), member("mark", 0, u32)}}
	reverse := structOf("rev", 16, member("addr_a", 0, u32), member("addr_b", 32, u32), member("kind", 64, u32), btf.Member{Offset: 96, Type: inner})
	data := &btf.Union{Name: "data", Size: 24, Members: []btf.Member{member("leg", 0, leg), member("rev", 0, reverse)}}
	small := &btf.Union{Size: 8, Members: []btf.Member{
		member("id", 0, u64), {Type: structOf("", 8, member("ip", 0, u32), member("pad", 32, u32))},
	}}
	return structOf("ct_value", 48, member("type", 0, u8), member("flags", 8, u8), member("last", 64, u64),
		btf.Member{Name: "data", Offset: 128, Type: data}, btf.Member{Offset: 320, Type: small})
}

var calicoCases = []string{
	"ct:data=as:leg when type=0,2", "ct:data=as:rev when type=1", "ct:data.rev.port_or_mark=as:port when kind=7", "ct:data.rev.port_or_mark=as:mark",
	"ct:id_or_ip=as:ip when key.proto&0x80",
	"ct:data.leg.bytes=volatile", "ct:data.leg.packets=volatile", "ct:data.leg.ifindex=ifindex", "ct:data.leg.seen=ktime,volatile",
	"ct:data.rev.port_or_mark.port=be,port", "ct:id_or_ip.ip.ip=ipv4",
}

func calico(t testing.TB, texts ...string) *Schema {
	t.Helper()
	key := structOf("ct_key", 8, member("addr", 0, u32), member("proto", 32, u8))
	s, err := FromTypes("ct", key, calicoValue())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(settings(t, texts...)); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return s
}

// calicoEntry returns an entry with random bytes, whose interfaces exist.
func calicoEntry(seed uint64, proto, kind byte) (key, value []byte) {
	key, value = make([]byte, 8), make([]byte, 48)
	binary.LittleEndian.PutUint32(key, uint32(seed))
	key[4] = proto
	for i := range value {
		seed = seed*6364136223846793005 + 1442695040888963407
		value[i] = byte(seed >> 56)
	}
	value[0] = kind
	for i := 2; i < 8; i++ {
		value[i] = 0 // padding is not sent
	}
	if kind == 0 || kind == 2 {
		binary.LittleEndian.PutUint32(value[28:], 1+uint32(seed>>60)%2)
	}
	return key, value
}

func TestUnionsWithConditions(t *testing.T) {
	s := calico(t, calicoCases...)
	if got := s.Variants(); got != 3*2*2 {
		t.Errorf("combinations of members: got %d, want 12", got)
	}
	expect(t, s.Value, "ct_value", 48, `
type 1 @0 1 uint
flags 2 @1 1 uint
last 3 @8 8 uint
data 4 @16 24 union
  leg 1 @0 24 message
    bytes 1 @0 8 uint volatile
    packets 2 @8 4 uint volatile
    ifindex 3 @12 4 ifname ifindex
    seen 4 @16 8 time ktime,volatile
  rev 2 @0 24 message
    addr_a 1 @0 4 uint
    addr_b 2 @4 4 uint
    kind 3 @8 4 uint
    port_or_mark 4 @12 4 union
      port 1 @0 4 message
        port 1 @0 2 uint be,port
        bytes_2 20002 @2 2 bytes
      mark 2 @0 4 message
        mark 1 @0 4 uint
    bytes_16 20016 @16 8 bytes
  bytes 3 @0 24 message
    bytes 1 @0 24 bytes
id_or_ip 5 @40 8 union
  ip 2 @0 8 message
    ip 1 @0 4 uint be,ipv4
    pad 2 @4 4 uint
  bytes 3 @0 8 message
    bytes 1 @0 8 bytes`)

	i := slices.IndexFunc(s.Value.Fields, func(f Field) bool { return f.Name == "data" })
	for k, want := range []string{"when type=0,2", "when type=1", "in all other cases"} {
		if got := s.Value.Fields[i].Message.Fields[k].Doc; got != want {
			t.Errorf("remark of member %d: got %q, want %q", k, got, want)
		}
	}

	enc, dec := newCodec(t, s, s)
	later := codecTimes
	later.Ktime -= 5e9
	for seed := range uint64(3000) {
		key, value := calicoEntry(seed, byte(seed%2*0x80), byte(seed%5))
		if seed%3 == 0 {
			binary.LittleEndian.PutUint32(value[24:], 7)
		}
		wire, err := enc.AppendNamedValue(nil, key, value, &codecTimes)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 48)
		if err := dec.Value(got, key, wire, &later); err != nil {
			t.Fatalf("decode %x: %v", value, err)
		}
		if kind := value[0]; kind == 0 || kind == 2 { // the clock of the receiver
			seen := binary.LittleEndian.Uint64(value[32:])
			if seen < 1<<62 && seen != 0 {
				binary.LittleEndian.PutUint64(value[32:], seen+5e9)
			} else {
				copy(value[32:], got[32:40])
			}
		}
		if string(got) != string(value) {
			t.Fatalf("entry %d: got %x, want %x", seed, got, value)
		}
	}
}

// TestMasksOfMembers: a counter of one member is volatile, and the same bytes of another one are not.
func TestMasksOfMembers(t *testing.T) {
	s := calico(t, calicoCases...)
	of := s.VariantOf()
	significant := func(kind byte) []byte {
		key, value := calicoEntry(1, 0, kind)
		return s.Variant(of(key, value)).Significant()[16:40]
	}
	zero, ones := make([]byte, 24), slices.Repeat([]byte{0xff}, 24)
	if got := significant(0); string(got[:12]) != string(zero[:12]) || string(got[12:16]) != string(ones[:4]) || string(got[16:]) != string(zero[:8]) {
		t.Errorf("significant bits of a leg: got %x, want the interface only", got)
	}
	for _, kind := range []byte{1, 3} {
		if got := significant(kind); string(got) != string(ones) {
			t.Errorf("significant bits of kind %d: got %x, want all", kind, got)
		}
	}
	if got := s.Carried()[16:48]; string(got) != string(slices.Repeat([]byte{0xff}, 32)) {
		t.Errorf("bits that are sent: got %x, want all of the unions", got)
	}
}

// TestMembersOnTheWire: two members, and a member that the conditions of the receiver do not select, are refused.
func TestMembersOnTheWire(t *testing.T) {
	s := calico(t, calicoCases...)
	enc, dec := newCodec(t, s, s)
	key, value := calicoEntry(9, 0, 1)
	good := enc.AppendValue(nil, key, value, &codecTimes)
	got := make([]byte, 48)
	other := calico(t, slices.Concat([]string{"ct:data=as:leg when type=1", "ct:data=as:rev when type=0"}, calicoCases[2:])...)
	_, swapped := newCodec(t, s, other)
	if err := swapped.Value(got, key, good, &codecTimes); !errors.Is(err, ErrRange) || !strings.Contains(err.Error(), "union data has the member rev") {
		t.Errorf("decode with other conditions: got error %v, want ErrRange", err)
	}
	if Equal(s, other) {
		t.Error("schemas with other conditions are equal")
	}
	fewer := calico(t, "ct:data=as:leg when type=0", "ct:data.leg.seen=ktime", "ct:data.leg.ifindex=ifindex", "ct:id_or_ip=as:ip when key.proto&0x80", "ct:id_or_ip.ip.ip=ipv4")
	_, lacks := newCodec(t, s, fewer)
	if err := lacks.Value(got, key, good, &codecTimes); !errors.Is(err, ErrRange) {
		t.Errorf("decode without the member: got error %v, want ErrRange", err)
	}
	// The union id_or_ip is anonymous: without conditions, it has the name of the member that covers the others.
	for _, one := range []*Schema{calico(t), calico(t, "ct:data=as:leg when type=0"), calico(t, "ct:id_or_ip=as:id when type=0")} {
		if _, err := NewDecoder(s, one, codecLinks{}); !errors.Is(err, ErrIncompatible) {
			t.Errorf("decoder without all conditions: got error %v, want ErrIncompatible", err)
		}
		if _, err := NewDecoder(one, s, codecLinks{}); !errors.Is(err, ErrIncompatible) {
			t.Errorf("decoder of a sender without all conditions: got error %v, want ErrIncompatible", err)
		}
	}
	for name, wire := range map[string]string{
		"two members":        "\x22\x08\x0a\x02\x08\x01\x12\x02\x08\x01",
		"one member twice":   "\x22\x08\x12\x02\x08\x01\x12\x02\x08\x01",
		"an empty member":    "\x22\x02\x12\x00",
		"an unknown member":  "\x22\x04\x22\x02\x08\x01",
		"no member":          "\x22\x00",
		"a member too short": "\x22\x04\x12\x05\x08\x01",
	} {
		if err := dec.Value(got, key, []byte("\x08\x01"+wire), &codecTimes); !errors.Is(err, ErrMalformed) {
			t.Errorf("decode %s: got error %v, want ErrMalformed", name, err)
		}
	}
}

func TestCasesRefused(t *testing.T) {
	for list, want := range map[string]string{
		"ct:last=as:leg when type=1":                          `"last" is not a union; unions of the value: data`,
		"ct:data=as:none when type=1":                         "no such member; its members: leg, rev, bytes",
		"ct:data=as:leg when type=1|ct:data.leg=ipv6":         "is a member of a union, which has no role of its own",
		"ct:data=as:leg when typ=1":                           `unknown field "typ"`,
		"ct:data=as:leg when type=x":                          "write a number",
		"ct:data=as:leg when type&0":                          "write a number other than 0",
		"ct:data=as:leg when type":                            "has no operator",
		"ct:data=as:leg when type=300":                        "of 8 bits cannot be 300",
		"ct:data=as:leg when flags&0x100":                     "a number other than 0 of 8 bits",
		"ct:data=as:leg|ct:data=as:rev when type=1":           "never used",
		"ct:key.addr=as:leg when type=1":                      "in a value",
		"ct:data=as:leg when type=1|ct:data.leg.bytes=local":  "cannot have role local: it is in a union",
		"ct:data=as:leg when type=1|ct:data.rev.addr_a=be":    `unknown field "data.rev.addr_a"`,
		"ct:data=as:leg when last=1|ct:last=ktime":            "field last is not a single number that is sent unchanged",
		"ct:data=as:leg when type=1|ct:data=volatile":         "",
		"ct:data=as:leg when data.leg.bytes=1":                "unknown field",
		"ct:nothing.data=as:leg when type=1":                  "unknown field",
		"ct:data=as:leg when type=1|ct:other=as:x when z=1":   `"other" is not a union`,
		"ct:data=as:leg when key.proto=6|ct:data.leg.seen=be": "",
	} {
		key := structOf("ct_key", 8, member("addr", 0, u32), member("proto", 32, u8))
		s, err := FromTypes("ct", key, calicoValue())
		if err != nil {
			t.Fatal(err)
		}
		err = s.Apply(settings(t, strings.Split(list, "|")...))
		if want == "" && err == nil {
			err = s.Check()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("apply %s: got error %v, want one with %q", list, err, want)
		}
	}
	for _, text := range []string{"m:u=as:", "m:u=as:a when", "m:u=as:a when ", "m:u=as:a b"} {
		if _, err := ParseSetting(text); err == nil {
			t.Errorf("parse %s: got no error, want one", text)
		}
	}
}

// TestUnionsOfPeersAreChecked: a peer may send any type.
func TestUnionsOfPeersAreChecked(t *testing.T) {
	member := func(name string, number int) Field {
		return Field{Name: name, Number: number, Size: 4, Kind: KindMessage, Message: &Message{Name: name, Size: 4, Fields: []Field{
			{Name: "x", Number: 1, Size: 4, Kind: KindUint},
		}}}
	}
	union := func(members ...Field) Field {
		return Field{Name: "u", Number: 1, Size: 4, Kind: KindUnion, Message: &Message{Name: "u", Size: 4, Fields: members}}
	}
	if err := oneValue(union(member("a", 1), member("b", 2))).Check(); err != nil {
		t.Fatal(err)
	}
	many := make([]Field, 0, maxMembers+1)
	for i := range maxMembers + 1 {
		many = append(many, member("m"+strings.Repeat("x", i), i+1))
	}
	all := make([]Field, 0, maxUnions+1)
	for i := range maxUnions + 1 {
		u := union(member("a", 1))
		u.Name, u.Number = "u"+strings.Repeat("x", i), i+1
		all = append(all, u)
	}
	short, scalar, two := member("a", 1), Field{Name: "a", Number: 1, Size: 4, Kind: KindUint}, member("a", 1)
	short.Size, two.Count = 2, 1
	array := Field{Name: "list", Size: 4, Count: 1, Kind: KindMessage, Message: &Message{Name: "e", Size: 4, Fields: []Field{union(member("a", 1))}}}
	for name, s := range map[string]*Schema{
		"no members": oneValue(union()), "too many members": oneValue(union(many...)), "too many unions": oneValue(all...),
		"a short member": oneValue(union(short)), "a scalar": oneValue(union(scalar)), "an array": oneValue(union(two)),
		"one number twice": oneValue(union(member("a", 1), member("b", 1))), "numbers in another order": oneValue(union(member("a", 2), member("b", 1))),
		"in an array": oneValue(array), "no message": oneValue(Field{Name: "u", Size: 4, Kind: KindUnion}),
	} {
		if err := s.Check(); !errors.Is(err, ErrType) {
			t.Errorf("union with %s: got error %v, want ErrType", name, err)
		}
	}
	inKey := oneValue(Field{Name: "n", Size: 4, Kind: KindUint})
	inKey.Key.Fields = []Field{union(member("a", 1))}
	if err := inKey.Check(); !errors.Is(err, ErrType) {
		t.Errorf("union in a key: got error %v, want ErrType", err)
	}
}

// TestConditionAfterRoles: a role that a setting gives the field of a condition counts, too.
func TestConditionAfterRoles(t *testing.T) {
	value := structOf("v", 16, member("proto", 0, u16), member("level", 32, &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}),
		btf.Member{Name: "u", Offset: 64, Type: &btf.Union{Size: 8, Members: []btf.Member{member("a", 0, u32), member("b", 0, u64)}}})
	for _, test := range []struct {
		condition string
		value     string
		want      string
	}{
		{"proto=0x0800", "\x08\x00", "b"},
		{"proto=8", "\x08\x00", "bytes"},
		{"proto&0x0800", "\x08\x00", "b"},
		{"level=-2", "\x00\x00\x00\x00\xfe\xff\xff\xff", "b"},
		{"level=0xfffffffe", "\x00\x00\x00\x00\xfe\xff\xff\xff", "b"},
	} {
		s, err := FromTypes("m", u32, value)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(settings(t, "m:u=as:b when "+test.condition, "m:proto=be")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 16)
		copy(b, test.value)
		if got := s.Value.Fields[2].Member(nil, b).Name; got != test.want {
			t.Errorf("member when %s of %x: got %s, want %s", test.condition, test.value, got, test.want)
		}
	}
}

// TestUnionWithPointerHasNoConditions: a pointer must not be sent, neither as a member nor as bytes.
func TestUnionWithPointerHasNoConditions(t *testing.T) {
	value := structOf("v", 16, member("type", 0, u32), btf.Member{Name: "u", Offset: 64, Type: &btf.Union{Size: 8, Members: []btf.Member{
		member("p", 0, &btf.Pointer{Target: u32}), member("b", 0, u64),
	}}})
	s, err := FromTypes("m", u32, value)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(settings(t, "m:u=as:b when type=1")); err == nil || !strings.Contains(err.Error(), "holds a pointer") {
		t.Errorf("conditions of a union with a pointer: got error %v, want one about the pointer", err)
	}
}

// TestMemberNamedBytes: the bytes of other entries have another name if a member is called bytes.
func TestMemberNamedBytes(t *testing.T) {
	value := structOf("v", 16, member("type", 0, u32), btf.Member{Name: "u", Offset: 64, Type: &btf.Union{Size: 8, Members: []btf.Member{
		member("bytes", 0, &btf.Array{Type: u8, Nelems: 8}), member("b", 0, u64),
	}}})
	s, err := FromTypes("m", u32, value)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(settings(t, "m:u=as:bytes when type=1")); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[byte]string{1: "bytes", 2: "other_bytes"} {
		if got := s.Value.Fields[1].Member(nil, append([]byte{kind}, make([]byte, 15)...)).Name; got != want {
			t.Errorf("member of type %d: got %s, want %s", kind, got, want)
		}
	}
}

// TestUnionInAnotherMember: a union in a member that an entry does not have decides nothing about it.
func TestUnionInAnotherMember(t *testing.T) {
	s := calico(t, calicoCases...)
	of := s.VariantOf()
	key, a := calicoEntry(1, 0, 0)
	b := slices.Clone(a)
	binary.LittleEndian.PutUint32(a[24:], 7) // kind of rev, packets of leg
	binary.LittleEndian.PutUint32(b[24:], 8)
	if x, y := of(key, a), of(key, b); x != y {
		t.Errorf("combinations of two legs: got %d and %d, want the same", x, y)
	}
}
