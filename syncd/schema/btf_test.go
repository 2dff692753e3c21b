package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

const layouts = "testdata/layouts.o"

// layout returns the schema of one map of the object, settings not yet applied.
func layout(t testing.TB, name string) *Schema {
	t.Helper()
	schemas, err := FromObject(layouts)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(schemas, func(s *Schema) bool { return s.Map == name })
	if i < 0 {
		t.Fatalf("no map %s", name)
	}
	return schemas[i]
}

var kindNames = []string{"none", "uint", "sint", "bool", "enum", "float", "bytes", "message", "time", "ifname"}

// lines writes a message as the tests expect it: name, number, offset, size, and what
// else there is.
func lines(m *Message, indent string) (all []string) {
	for i := range m.Fields {
		f := &m.Fields[i]
		s := fmt.Sprintf("%s%s %d @%d", indent, f.Name, f.Number, f.Offset)
		if f.BitSize > 0 {
			s += fmt.Sprintf(":%d bits %d of", f.BitOffset, f.BitSize)
		}
		s += fmt.Sprintf(" %d %s", f.Size, kindNames[f.Kind])
		if f.Signed {
			s += " signed"
		}
		if f.Count > 0 {
			s += fmt.Sprintf(" *%d", f.Count)
		}
		if f.Roles != 0 {
			s += " " + strings.Join(f.Roles.names(), ",")
		}
		all = append(all, s)
		if f.Message != nil {
			all = append(all, lines(f.Message, indent+"  ")...)
		}
	}
	return all
}

func expect(t *testing.T, m *Message, name string, size int, want string) {
	t.Helper()
	if m.Name != name || m.Size != size {
		t.Errorf("%s has %d bytes, want %s with %d", m.Name, m.Size, name, size)
	}
	got := lines(m, "")
	for i, w := range strings.Split(strings.Trim(want, "\n"), "\n") {
		if i >= len(got) || got[i] != w {
			t.Errorf("field line %d of %s: want\n%s\ngot\n%s", i, name, w, strings.Join(got[min(i, len(got)):], "\n"))
			return
		}
	}
	if n := len(strings.Split(strings.Trim(want, "\n"), "\n")); len(got) > n {
		t.Errorf("%s has more: %q", name, got[n:])
	}
}

func TestConntrack(t *testing.T) {
	s := layout(t, "ct")
	expect(t, s.Key, "ct_key", 48, `
daddr 1 @0 16 bytes ipv6
saddr 2 @16 16 bytes ipv6
sport 3 @32 2 uint be,port
dport 4 @34 2 uint be,port
zone 5 @36 2 uint
l4proto 6 @38 1 uint
v6 7 @39 1 uint
ident 8 @40 4 uint
type 9 @44 4 uint`)
	expect(t, s.Value, "ct_value", 136, `
act_type 1 @0 1 uint
ftrap 2 @1 1 uint
oaux 3 @2 2 uint
cidx 4 @4 4 uint
lock 5 @8 4 none
rid 6 @12 2 uint
aid 7 @14 2 uint
pi 8 @16 36 message
  state 1 @0 2 uint
  fndir 2 @2 2 uint
  tcp_cts 3 @4 16 message *2
    hstate 1 @0 2 uint
    init_acks 2 @2 2 uint
    seq 3 @4 4 uint volatile
    pack 4 @8 4 uint volatile,be
    pseq 5 @12 4 uint volatile,be
dir 9 @52 4 enum
pb 10 @56 16 message
  bytes 1 @0 8 uint volatile
  packets 2 @8 8 uint volatile
ito 11 @72 8 uint
lts 12 @80 8 time ktime,volatile
nat_act 13 @88 48 message
  xip 1 @0 16 bytes ipv6
  rip 2 @16 16 bytes ipv6
  xport 3 @32 2 uint be,port
  fr 4 @34 1 uint
  doct 5 @35 1 uint
  rid 6 @36 4 uint
  aid 7 @40 4 uint
  nv6 8 @44 1 uint
  dsr 9 @45 1 uint
  cdis 10 @46 1 uint
  nmh 11 @47 1 uint`)
	for name, want := range map[string]string{
		"pi": "a union of t, u, i; sent as t", "nat_act": "a union of port_act, nat_act; sent as nat_act",
		"lock": "the kernel's own",
	} {
		if f, _, err := s.find(name); err != nil || f.Doc != want {
			t.Errorf("doc of %s is %q, want %q (%v)", name, f.Doc, want, err)
		}
	}
	dir, _, _ := s.find("dir")
	want := []EnumValue{{"CT_DIR_IN", 0}, {"CT_DIR_OUT", 1}, {"CT_DIR_MAX", 2}}
	if dir.Enum.Name != "ct_dir" || !slices.Equal(dir.Enum.Values, want) {
		t.Errorf("enum %+v", dir.Enum)
	}
}

func TestBitfieldsAndNAT(t *testing.T) {
	s := layout(t, "flags")
	expect(t, s.Key, "flags_key", 14, `
daddr 1 @0 4 uint be,ipv4
saddr 2 @4 4 uint be,ipv4
dport 3 @8 2 uint be
sport 4 @10 2 uint be
nexthdr 5 @12 1 uint
flags 6 @13 1 uint`)
	expect(t, s.Value, "flags_value", 104, `
rx_packets 1 @0 8 uint
lifetime 2 @8 4 time seconds
rx_closing 3 @12:0 bits 1 of 2 uint
tx_closing 4 @12:1 bits 1 of 2 uint
lb_loopback 5 @12:2 bits 1 of 2 uint
seen_non_syn 6 @12:3 bits 1 of 2 uint
reserved 7 @12:4 bits 12 of 2 uint
rev_nat_index 8 @14 2 uint
nat 9 @16 88 message
  src 1 @0 32 message
    to_saddr6 1 @0 16 bytes ipv6
    to_sport6 2 @16 2 uint be
    created 3 @24 8 time boottime
  dst 2 @32 32 message
    to_saddr6 1 @0 16 bytes ipv6
    to_sport6 2 @16 2 uint be
    created 3 @24 8 time boottime
  quota 3 @64:0 bits 20 of 4 sint
  dir 4 @66:4 bits 3 of 4 enum
  active 5 @67:2 bits 1 of 1 bool
  whole 6 @68 4 uint
  wide 7 @72:0 bits 40 of 8 uint
  rest 8 @77:0 bits 24 of 8 uint
  low 9 @80:0 bits 4 of 1 uint
  high 10 @80:4 bits 4 of 1 uint
  all 11 @81 1 uint`)
}

func TestPacked(t *testing.T) {
	s := layout(t, "tight")
	expect(t, s.Key, "tight_key", 4, "key 1 @0 4 uint")
	expect(t, s.Value, "tight_value", 34, `
kind 1 @0 1 uint
bytes 2 @1 8 uint
port 3 @9 2 uint
inner 4 @11 5 message *3
  a 1 @0 1 uint
  b 2 @1 4 uint
at 5 @26 8 uint`)
	if inner, _, _ := s.find("inner"); inner.Message.Name != "tight_value_inner" {
		t.Errorf("anonymous struct has the name %s", inner.Message.Name)
	}
}

func TestFlowPerCPU(t *testing.T) {
	s := layout(t, "flow")
	expect(t, s.Key, "flow_id", 60, `
direction 1 @0 1 uint
src_mac 2 @1 6 bytes mac
dst_mac 3 @7 6 bytes mac
eth_protocol 4 @14 2 uint
src_ip 5 @16 16 bytes ipv6
dst_ip 6 @32 16 bytes ipv6
src_port 7 @48 2 uint port
dst_port 8 @50 2 uint port
transport_protocol 9 @52 1 uint
pad 10 @53 3 bytes
if_index 11 @56 4 ifname ifindex`)
	one := `
start 1 @0 8 time ktime
end 2 @8 8 time ktime,volatile
bytes 3 @16 8 uint volatile,sum
packets 4 @24 4 uint volatile,sum
flags 5 @28 2 uint
errno_fallback 6 @30 1 uint`
	if s.CPUs != 1 {
		t.Errorf("made for %d CPUs", s.CPUs)
	}
	expect(t, s.Value, "flow_counters_cpus", 32, "cpu 1 @0 32 message *1"+strings.ReplaceAll(one, "\n", "\n  "))
	expect(t, s.Value.Fields[0].Message, "flow_counters", 32, one)

	plain := layout(t, "plain")
	expect(t, plain.Key, "plain_key", 4, "key 1 @0 4 uint be")
	expect(t, plain.Value, "plain_value_cpus", 8, "cpu 1 @0 8 message *1\n  value 1 @0 8 uint")
	expect(t, FromSizes("odd", 3, 13).PerCPU(4).Value, "odd_value_cpus", 64, "cpu 1 @0 16 message *4\n  bytes 1 @0 13 bytes")
}

func TestOpaque(t *testing.T) {
	s := layout(t, "opaque")
	if !s.Opaque || s.CPUs != 0 {
		t.Errorf("map without types: %+v", s)
	}
	expect(t, s.Key, "opaque_key", 12, "bytes 1 @0 12 bytes")
	expect(t, s.Value, "opaque_value", 20, "bytes 1 @0 20 bytes")
	expect(t, FromSizes("a.b c", 4, 8).Value, "a_b_c_value", 8, "bytes 1 @0 8 bytes")
}

func TestRoleTags(t *testing.T) {
	s := layout(t, "roles")
	expect(t, s.Key, "roles_key", 56, `
v4 1 @0 4 uint be,ipv4
v4_bytes 2 @4 4 bytes ipv4
v6 3 @8 16 bytes ipv6
mac 4 @24 6 bytes mac
port 5 @30 2 uint be,port
order 6 @32 8 uint be
ifindex 7 @40 4 ifname ifindex
`+"pair 8 @44 4 message\n  two 1 @0 2 uint *2 be"+`
flag 9 @48 1 bool`)
	expect(t, s.Value, "roles_value", 88, `
ktime 1 @0 8 time ktime
boottime 2 @8 8 time signed boottime
jiffies 3 @16 8 time jiffies
jiffies32 4 @24 4 time jiffies
seconds 5 @32 8 time *2 seconds
seconds32 6 @48 4 time seconds
ifindex 7 @52 2 ifname ifindex
volatile_ 8 @54 2 uint volatile
local 9 @56 4 uint local
local_default 10 @60 4 sint local
local_bytes 11 @64 4 bytes local
other 12 @68 4 uint
pinned 70 @72 8 uint
after 100 @80 8 uint`)
	for name, want := range map[string]string{"local": "", "local_default": "\xfb\xff\xff\xff", "local_bytes": "\x01\x02\x03\x04"} {
		if f, _, _ := s.find(name); string(f.Default) != want {
			t.Errorf("default of %s is %x, want %x", name, f.Default, want)
		}
	}
}

func TestKinds(t *testing.T) {
	s := layout(t, "kinds")
	expect(t, s.Value, "kinds_value", 448, `
timer 1 @0 16 none
u8 2 @16 1 uint
s8 3 @17 1 sint
c 4 @18 1 sint
b 5 @19 1 bool
u16 6 @20 2 uint
s16 7 @22 2 sint
u32 8 @24 4 uint
s32 9 @28 4 sint
u64 10 @32 8 uint
s64 11 @40 8 sint
u128 12 @48 16 bytes
s128 13 @64 16 bytes *2
e 14 @96 4 enum
e8 15 @100 1 enum
e64 16 @104 8 enum
anonymous_enum 17 @112 4 enum
f 18 @116 4 float
d 19 @120 8 float *2
name 20 @136 16 bytes
signed_bytes 21 @152 5 bytes
matrix 22 @157 6 bytes
bools 23 @163 1 bool *3
cube 24 @168 4 uint *24
ports 25 @264 2 uint *4 be
v4 26 @272 4 uint *2 be,ipv4
grid 27 @280 8 message *4
  x 1 @0 4 uint
  y 2 @4 1 uint
qualified 28 @312 4 uint
mac 29 @316 6 message
  octet 1 @0 6 bytes mac
p 30 @324 1 uint
q 31 @328 2 uint
r 32 @332 4 uint
named 33 @336 1 message
  t 1 @0 1 uint
address 34 @340 16 bytes ipv6
pad 35 @356 2 bytes
far_part 36 @358 8 uint
torn 37 @368 8 bytes *2
before_or_nearly 38 @384 8 bytes
pointer_or_number 39 @392 8 none
padded 40 @400 8 bytes
task 41 @408 8 none
function 42 @416 8 none
pointers 43 @424 8 none *2
last 45 @440 8 uint`)
	for name, want := range map[string]string{
		"address":           "a union of four, six, words; sent as six",
		"torn":              "a union of head, both_ends; sent as bytes, as none covers all others",
		"before_or_nearly":  "a union of before, {nearly, behind}; sent as bytes, as none covers all others",
		"pointer_or_number": "a union of pointer, number; not sent: one of them holds a pointer or is the kernel's",
		"task":              "a pointer is of no use on another node",
	} {
		if f, _, err := s.find(name); err != nil || f.Doc != want {
			t.Errorf("doc of %s is %q, want %q", name, f.Doc, want)
		}
	}
	for name, want := range map[string]string{
		"task": "struct task_struct *", "cube": "__u32[2][3][4]", "pointers": "void *[2]", "mac": "mac_t", "name": "char[16]",
		"address": "union", "named": "struct", "u128": "unsigned __int128", "qualified": "__u32", "grid": "struct inner[2][2]",
	} {
		if f, _, _ := s.find(name); f.Type != want {
			t.Errorf("type of %s is %q, want %q", name, f.Type, want)
		}
	}
	for name, want := range map[string]string{"mac": "mac_t", "named": "kinds_value_named"} {
		if f, _, _ := s.find(name); f.Message.Name != want {
			t.Errorf("message of %s is %q, want %q", name, f.Message.Name, want)
		}
	}
	if f, _, _ := s.find("anonymous_enum"); f.Enum.Name != "kinds_value_anonymous_enum" {
		t.Errorf("anonymous enum has the name %s", f.Enum.Name)
	}
}

// Every map of the object makes a schema that others accept as well.
func TestObjectIsSound(t *testing.T) {
	schemas, err := FromObject(layouts)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range schemas {
		names = append(names, s.Map)
		if err := s.Apply(nil); err != nil {
			t.Error(err)
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"ct", "flags", "flow", "kinds", "opaque", "plain", "roles", "tight"}; !slices.Equal(names, want) {
		t.Errorf("maps %q, want %q", names, want)
	}
}

// What clang 14 does not write.
func TestNewerTypes(t *testing.T) {
	wide := &btf.Enum{Name: "wide", Size: 8, Signed: true, Values: []btf.EnumValue{{Name: "MINUS", Value: ^uint64(0)}, {Name: "BIG", Value: 1 << 40}}}
	kptr := &btf.Pointer{Target: &btf.TypeTag{Value: "kptr", Type: &btf.Struct{Name: "task"}}}
	odd := &btf.Int{Name: "_BitInt(24)", Size: 3}
	v := structOf("v", 56,
		member("e", 0, wide), member("p", 64, kptr), member("odd", 128, odd),
		member("long_double", 192, &btf.Float{Name: "long double", Size: 16}),
		btf.Member{Name: "bits", Offset: 320, BitfieldSize: 50, Type: &btf.Int{Name: "__int128", Size: 16, Encoding: btf.Signed}},
		member("c", 384, &btf.Int{Name: "char", Size: 1, Encoding: btf.Char | btf.Signed}),
		member("b", 392, &btf.Int{Name: "odd_bool", Size: 2, Encoding: btf.Bool}),
		// Padding, the last of it made to hurt: not all of its type is within.
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
		t.Errorf("enum %+v", e)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

// Keys and values that are no struct.
func TestRoots(t *testing.T) {
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

// hostile are types that no compiler makes, or that cannot be replicated.
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
		"bpf_timer has no name": structOf("s", 16, member("", 0, structOf("bpf_timer", 16))),
		`no role "nonsense"`:    tagged32("mapsync:nonsense"), `no role ""`: tagged32("mapsync:"), "needs an 8-byte integer": tagged32("mapsync:ktime"),
		"number=1 and number=2":          tagged32("mapsync:number=1", "mapsync:number=2"),
		"no number of a protobuf field":  tagged32("mapsync:number=19500"),
		"default=1 and default=2":        tagged32("mapsync:local,default=1", "mapsync:default=2"),
		"number=N is for a member":       structOf("s", 4, member("f", 0, &btf.Typedef{Name: "t", Type: u32, Tags: []string{"mapsync:number=3"}})),
		"is not of a field":              &btf.Struct{Name: "s", Size: 4, Members: []btf.Member{member("f", 0, u32)}, Tags: []string{"mapsync:local"}},
		"is not of a field, unnamed":     structOf("s", 4, btf.Member{Type: structOf("", 4, member("f", 0, u32)), Tags: []string{"mapsync:local"}}),
		"of the same number 1":           structOf("s", 8, member("a", 0, u32), btf.Member{Name: "b", Offset: 32, Type: u32, Tags: []string{"mapsync:number=1"}}),
		"cannot have roles ktime,sum":    structOf("s", 8, btf.Member{Name: "a", Type: u64, Tags: []string{"mapsync:sum,ktime"}}),
		"value.in.f of type":             structOf("s", 4, member("in", 0, tagged32("mapsync:mac"))),
		"is of an unused alternative no": &btf.Union{Size: 4, Members: []btf.Member{member("a", 0, u32), {Name: "b", Type: u32, Tags: []string{"mapsync:no"}}}},
	}
}

func TestHostile(t *testing.T) {
	for want, typ := range hostile() {
		s, err := FromTypes("m", u32, typ)
		want, _, _ = strings.Cut(want, ", ")
		if strings.HasPrefix(want, "is of an unused alternative") {
			want = `no role "no"`
		}
		if !errors.Is(err, ErrType) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "value") {
			t.Errorf("want %q, got %v, %v", want, s, err)
		}
	}
}

func TestNotInKeys(t *testing.T) {
	for want, typ := range map[string]btf.Type{
		"key.p void * cannot be in a key":               structOf("k", 8, member("p", 0, &btf.Pointer{Target: (*btf.Void)(nil)})),
		"key.l struct bpf_spin_lock cannot":             structOf("k", 4, member("l", 0, structOf("bpf_spin_lock", 4))),
		"key.u.p void * cannot":                         structOf("k", 8, member("u", 0, &btf.Union{Size: 8, Members: []btf.Member{member("p", 0, &btf.Pointer{})}})),
		"key.f of type unsigned int cannot have role v": tagged32("mapsync:volatile"),
		"cannot have role local in a key":               tagged32("mapsync:local"),
		"cannot have role seconds in a key":             tagged32("mapsync:seconds"),
	} {
		if _, err := FromTypes("m", typ, u32); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
