package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const layouts = "testdata/layouts.o"

// layout returns the schema of one map of the object, without settings.
func layout(t testing.TB, name string) *Schema {
	t.Helper()
	schemas, err := FromObject(layouts)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(schemas, func(s *Schema) bool { return s.Map == name })
	if i < 0 {
		t.Fatalf("find map %s: not in the object", name)
	}
	return schemas[i]
}

var kindNames = []string{"none", "uint", "sint", "bool", "enum", "float", "bytes", "message", "time", "ifname", "union"}

// lines formats a message as the tests expect it: name, number, offset, size, and further
// properties.
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
			s += " " + strings.Join(f.Roles.Names(), ",")
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
		t.Errorf("message: got %s of %d bytes, want %s of %d bytes", m.Name, m.Size, name, size)
	}
	got := lines(m, "")
	for i, w := range strings.Split(strings.Trim(want, "\n"), "\n") {
		if i >= len(got) || got[i] != w {
			t.Errorf("field line %d of %s:\nwant\n%s\ngot\n%s",
				i, name, w, strings.Join(got[min(i, len(got)):], "\n"))
			return
		}
	}
	if n := len(strings.Split(strings.Trim(want, "\n"), "\n")); len(got) > n {
		t.Errorf("message %s: got additional fields %q, want none", name, got[n:])
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
		"lock": "managed by the kernel",
	} {
		if f, _, err := s.find(name); err != nil || f.Doc != want {
			t.Errorf("doc of %s: got %q, want %q, error %v", name, f.Doc, want, err)
		}
	}
	dir, _, _ := s.find("dir")
	want := []EnumValue{{"CT_DIR_IN", 0}, {"CT_DIR_OUT", 1}, {"CT_DIR_MAX", 2}}
	if dir.Enum.Name != "ct_dir" || !slices.Equal(dir.Enum.Values, want) {
		t.Errorf("enum: got %+v, want name ct_dir and values %+v", dir.Enum, want)
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
		t.Errorf("name of anonymous struct: got %s, want tight_value_inner", inner.Message.Name)
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
		t.Errorf("CPUs: got %d, want 1", s.CPUs)
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
		t.Errorf("map without types: got %+v, want an opaque schema", s)
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
			t.Errorf("default of %s: got %x, want %x", name, f.Default, want)
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
		"torn":              "a union of head, both_ends; sent as bytes because no member covers the others",
		"before_or_nearly":  "a union of before, {nearly, behind}; sent as bytes because no member covers the others",
		"pointer_or_number": "a union of pointer, number; not sent: one of them holds a pointer or is the kernel's",
		"task":              "a pointer is valid on one node only",
	} {
		if f, _, err := s.find(name); err != nil || f.Doc != want {
			t.Errorf("doc of %s: got %q, want %q", name, f.Doc, want)
		}
	}
	for name, want := range map[string]string{
		"task": "struct task_struct *", "cube": "__u32[2][3][4]", "pointers": "void *[2]", "mac": "mac_t", "name": "char[16]",
		"address": "union", "named": "struct", "u128": "unsigned __int128", "qualified": "__u32", "grid": "struct inner[2][2]",
	} {
		if f, _, _ := s.find(name); f.Type != want {
			t.Errorf("type of %s: got %q, want %q", name, f.Type, want)
		}
	}
	for name, want := range map[string]string{"mac": "mac_t", "named": "kinds_value_named"} {
		if f, _, _ := s.find(name); f.Message.Name != want {
			t.Errorf("message of %s: got %q, want %q", name, f.Message.Name, want)
		}
	}
	if f, _, _ := s.find("anonymous_enum"); f.Enum.Name != "kinds_value_anonymous_enum" {
		t.Errorf("name of anonymous enum: got %s, want kinds_value_anonymous_enum", f.Enum.Name)
	}
}

// TestObjectSchemasAreValid checks that the schema of every map in the object is valid.
func TestObjectSchemasAreValid(t *testing.T) {
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
	if want := []string{"array", "ct", "flags", "flow", "kinds", "opaque", "plain", "roles", "tight"}; !slices.Equal(names, want) {
		t.Errorf("maps: got %q, want %q", names, want)
	}
}
