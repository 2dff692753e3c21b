package schema

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"testing"
	"time"
)

// conntrack is a schema with all that a schema can have, as it comes from BTF.
func conntrack() *Schema {
	nat := func() *Message { // a new one for each field, as BTF makes them
		return &Message{Name: "ct_nat", Size: 20, Fields: []Field{
			{Name: "daddr", Number: 1, Size: 16, Kind: KindBytes, Roles: RoleIPv6, Type: "__be32[4]"},
			{Name: "dport", Number: 2, Offset: 16, Size: 2, Kind: KindUint, Roles: RoleBE | RolePort, Type: "__be16"},
		}}
	}
	proto := &Enum{Name: "ip_proto", Values: []EnumValue{{"IP", 0}, {"TCP", 6}, {"UDP", 17}}}
	state := &Enum{Name: "ct_state", Signed: true, Values: []EnumValue{
		{"CT_BAD", math.MaxUint64}, {"CT_NEW", 1}, {"CT_OPEN", 2}, {"CT_ESTABLISHED", 2}, {"CT_CLOSED", 3},
	}}
	verdict := &Enum{Name: "verdict", Values: []EnumValue{{"option", 0}, {"state", 1}, {"DROP", 0xffffffff}}}
	huge := &Enum{Name: "features", Values: []EnumValue{{"F_NONE", 0}, {"F_TOP", 1 << 63}}}
	hop := &Message{Name: "hop", Size: 8, Fields: []Field{
		{Name: "dev", Number: 1, Size: 4, Kind: KindIfname, Roles: RoleIfindex, Type: "__u32"},
		{Name: "cost", Number: 2, Offset: 4, Size: 1, Kind: KindSint, Type: "__s8"},
	}}
	return &Schema{
		Map: "ct_map",
		Key: &Message{Name: "ct_key", Size: 32, Fields: []Field{
			{Name: "saddr", Number: 1, Size: 16, Kind: KindBytes, Roles: RoleIPv6, Type: "__be32[4]"},
			{Name: "vip", Number: 2, Offset: 16, Size: 4, Kind: KindUint, Roles: RoleBE | RoleIPv4, Type: "__be32"},
			{Name: "sport", Number: 3, Offset: 20, Size: 2, Kind: KindUint, Roles: RoleBE | RolePort, Type: "__be16"},
			{Name: "proto", Number: 4, Offset: 22, Size: 1, Kind: KindEnum, Enum: proto, Type: "ip_proto"},
			{Name: "zone", Number: 5, Offset: 24, Size: 2, Kind: KindUint, Type: "__u16"},
			{Name: "dev", Number: 6, Offset: 28, Size: 4, Kind: KindIfname, Roles: RoleIfindex, Type: "int"},
		}},
		Value: &Message{Name: "ct_entry", Size: 176, Fields: []Field{
			{Name: "lock", Number: 1, Size: 4, Kind: KindNone, Type: "struct bpf_spin_lock", Doc: "the kernel's own"},
			{Name: "state", Number: 2, Offset: 4, Size: 4, Kind: KindEnum, Enum: state, Type: "enum ct_state"},
			{Name: "syn", Number: 3, Offset: 8, Size: 4, BitSize: 1, Kind: KindUint, Type: "__u32"},
			{Name: "level", Number: 4, Offset: 8, Size: 4, BitOffset: 5, BitSize: 5, Kind: KindSint, Type: "int"},
			{Name: "nat", Number: 5, Offset: 12, Size: 20, Kind: KindMessage, Message: nat(), Type: "struct ct_nat"},
			{Name: "last_seen", Number: 6, Offset: 32, Size: 8, Kind: KindTime, Roles: RoleKtime, Type: "__u64"},
			{Name: "packets", Number: 7, Offset: 40, Size: 8, Kind: KindUint, Roles: RoleVolatile, Type: "__u64"},
			{Name: "drift", Number: 8, Offset: 48, Size: 4, Kind: KindSint, Type: "__s32"},
			{Name: "alive", Number: 9, Offset: 52, Size: 1, Kind: KindBool, Type: "_Bool"},
			{Name: "mac", Number: 10, Offset: 53, Size: 6, Kind: KindBytes, Roles: RoleMAC, Type: "__u8[6]"},
			{Name: "comm", Number: 11, Offset: 60, Size: 16, Kind: KindBytes, Type: "char[16]"},
			{Name: "load", Number: 12, Offset: 76, Size: 4, Kind: KindFloat, Type: "float"},
			{Name: "ports", Number: 13, Offset: 80, Size: 2, Count: 4, Kind: KindUint, Roles: RoleBE | RolePort, Type: "__be16[4]"},
			{Name: "next", Number: 14, Offset: 88, Size: 8, Kind: KindNone, Type: "void *", Doc: "a pointer is of no use on another node"},
			{Name: "features", Number: 15, Offset: 96, Size: 8, Kind: KindEnum, Enum: huge, Type: "enum features"},
			{Name: "shard", Number: 16, Offset: 104, Size: 4, Kind: KindUint, Roles: RoleLocal, Type: "__u32"},
			{Name: "hops", Number: 17, Offset: 108, Size: 8, Count: 2, Kind: KindMessage, Message: hop, Type: "struct hop[2]"},
			{Name: "verdict", Number: 18, Offset: 124, Size: 4, Kind: KindEnum, Enum: verdict, Type: "enum verdict"},
			{Name: "blob", Number: 19, Offset: 128, Size: 8, Kind: KindBytes, Type: "union blob", Doc: "a union of a, b; sent as bytes, as none covers all others"},
			{Name: "reply_nat", Number: 20, Offset: 136, Size: 20, Kind: KindMessage, Message: nat(), Type: "struct ct_nat"},
			{Name: "expires", Number: 40, Offset: 156, Size: 4, Kind: KindTime, Roles: RoleSeconds, Type: "__u32"},
			{Name: "servers", Number: 21, Offset: 160, Size: 4, Count: 3, Kind: KindUint, Roles: RoleBE | RoleIPv4, Type: "__be32[3]"},
			{Name: "zone", Number: 22, Offset: 172, Size: 1, Kind: KindUint, Type: "__u8"},
		}},
	}
}

// entry returns struct bytes of conntrack with something in every field.
func entry() (key, value []byte) {
	key, value = make([]byte, 32), make([]byte, 176)
	put := func(b []byte, at int, bytes ...byte) { copy(b[at:], bytes) }
	le := binary.LittleEndian
	put(key, 0, 10, 0, 0, 1)
	put(key, 16, 192, 0, 2, 1)
	put(key, 20, 0x01, 0xbb, 6)
	le.PutUint16(key[24:], 7)
	le.PutUint32(key[28:], 2)

	put(value, 0, 1, 2, 3, 4)
	le.PutUint32(value[4:], 2)
	le.PutUint16(value[8:], 1|0b11101<<5) // syn, and level -3
	value[12], value[27] = 0xfd, 1
	put(value, 28, 0x1f, 0x90)
	le.PutUint64(value[32:], uint64(5*time.Second))
	le.PutUint64(value[40:], 1<<53+1)
	le.PutUint32(value[48:], math.MaxUint32) // -1
	value[52] = 1
	put(value, 53, 2, 0, 0, 0, 0, 0xaa)
	copy(value[60:], `a"b`)
	le.PutUint32(value[76:], math.Float32bits(1.5))
	put(value, 80, 0, 80, 0, 0, 1, 0xbb)
	put(value, 88, 1, 2, 3, 4, 5, 6, 7, 8)
	le.PutUint64(value[96:], 1<<63)
	le.PutUint32(value[104:], 3)
	put(value, 112, 0xff)
	le.PutUint32(value[116:], 9)
	le.PutUint32(value[124:], 0xffffffff)
	put(value, 128, 0xde, 0xad)
	le.PutUint32(value[156:], 6)
	put(value, 160, 10, 0, 0, 2, 10, 0, 0, 3)
	value[172] = 4
	return key, value
}

// boot is a host that booted at the turn of the year.
var boot = &Times{Ktime: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()}

type links map[uint32]string

func (l links) Name(index uint32) (string, bool) { name, ok := l[index]; return name, ok }

func (l links) Index(string) (uint32, bool) { return 0, false }

const entryText = `{state=CT_OPEN syn=1 level=-3 nat{daddr=fd00::1 dport=8080} ` +
	`last_seen=2026-01-01T00:00:05Z packets=9007199254740993 drift=-1 alive=true mac=02:00:00:00:00:aa comm="a\"b" load=1.5 ` +
	`ports=[80 0 443] features=F_TOP hops=[{cost=-1} {dev=9}] verdict=DROP blob=dead000000000000 ` +
	`expires=2026-01-01T00:00:06Z servers=[10.0.0.2 10.0.0.3] zone=4}`

func TestPrinterText(t *testing.T) {
	p := NewPrinter(conntrack(), links{2: "eth0"})
	key, value := entry()
	equal(t, "key", string(p.AppendKey([]byte("> "), key)), `> {saddr=10.0.0.1 vip=192.0.2.1 sport=443 proto=TCP zone=7 dev=eth0}`)
	equal(t, "value", string(p.AppendValue(nil, value, boot)), entryText)
	equal(t, "zero value", string(p.AppendValue(nil, make([]byte, 176), boot)), `{}`)
	equal(t, "short key", string(p.AppendKey(nil, key[:3])), `0a0000`)

	clear(value)
	value[3], value[32], value[61], value[104] = 0xff, 9, 7, 3
	equal(t, "no clock", string(p.AppendValue(nil, value, nil)), `{last_seen=9 comm=0007}`)
	p.All = true
	equal(t, "all", string(p.AppendValue(nil, value, nil)), `{lock=000000ff last_seen=9 comm=0007 shard=3}`)
}

func TestPrinterJSON(t *testing.T) {
	p := NewPrinter(conntrack(), links{2: "eth0"})
	key, value := entry()
	equal(t, "key", string(p.AppendJSONKey(nil, key)),
		`{"saddr":"10.0.0.1","vip":"192.0.2.1","sport":443,"proto":"TCP","zone":7,"dev":"eth0"}`)
	equal(t, "value", string(p.AppendJSONValue(nil, value, boot)), `{"state":"CT_OPEN","syn":1,"level":-3,`+
		`"nat":{"daddr":"fd00::1","dport":8080},"last_seen":"2026-01-01T00:00:05Z","packets":"9007199254740993",`+
		`"drift":-1,"alive":true,"mac":"02:00:00:00:00:aa","comm":"a\"b","load":1.5,"ports":[80,0,443,0],"features":"F_TOP",`+
		`"hops":[{"dev":"","cost":-1},{"dev":"9","cost":0}],"verdict":"DROP","blob":"dead000000000000",`+
		`"reply_nat":{"daddr":"::","dport":0},"expires":"2026-01-01T00:00:06Z","servers":["10.0.0.2","10.0.0.3","0.0.0.0"],"zone":4}`)
	equal(t, "short key", string(p.AppendJSONKey(nil, key[:3])), `"0a0000"`)

	// Whatever the bytes are, it is JSON, and text comes back byte for byte.
	p.All = true
	for i := range value {
		value[i] = byte(200 + i)
	}
	le := binary.LittleEndian
	le.PutUint32(value[76:], math.Float32bits(float32(math.Inf(-1))))
	for i := range 16 {
		value[60+i] = byte(i*17) ^ 0x13
	}
	var decoded struct {
		Comm, Load, Lock, Next, Verdict any
		State                           json.Number
	}
	if err := json.Unmarshal(p.AppendJSONValue(nil, value, boot), &decoded); err != nil {
		t.Fatalf("%v in %s", err, p.AppendJSONValue(nil, value, boot))
	}
	runes := []rune(decoded.Comm.(string))
	for i, c := range value[60:76] {
		if runes[i] != rune(c) {
			t.Errorf("byte %d of text is %#x, want %#x", i, runes[i], c)
		}
	}
	equal(t, "load", decoded.Load.(string), "-Infinity")
	equal(t, "lock", decoded.Lock.(string), "c8c9cacb")
}

func TestPrinterOpaqueAndPerCPU(t *testing.T) {
	bytes := func(size int) *Message {
		return &Message{Name: "m", Size: size, Fields: []Field{{Name: "bytes", Number: 1, Size: size, Kind: KindBytes}}}
	}
	p := NewPrinter(&Schema{Map: "m", Opaque: true, Key: bytes(2), Value: bytes(3)}, nil)
	equal(t, "opaque text", string(p.AppendKey(nil, []byte{0, 1})), `0001`)
	equal(t, "opaque JSON", string(p.AppendJSONValue(nil, []byte{1, 2, 0}, nil)), `"010200"`)

	p = NewPrinter(perCPU(), nil)
	equal(t, "CPUs", string(p.AppendValue(nil, []byte{16: 5, 32: 7, 63: 0}, nil)), `{cpu=[{} {packets=5} {packets=7}]}`)
	equal(t, "CPUs as JSON", string(p.AppendJSONValue(nil, []byte{16: 5, 63: 0}, nil)),
		`{"cpu":[{"packets":"0","port":0},{"packets":"5","port":0},{"packets":"0","port":0},{"packets":"0","port":0}]}`)
}

// perCPU is a schema of a per-CPU map on 4 CPUs, 16 bytes each.
func perCPU() *Schema {
	one := &Message{Name: "count", Size: 12, Fields: []Field{
		{Name: "packets", Number: 1, Size: 8, Kind: KindUint, Type: "__u64"},
		{Name: "port", Number: 2, Offset: 8, Size: 2, Kind: KindUint, Roles: RoleBE, Type: "__be16"},
	}}
	return &Schema{
		Map: "counters", CPUs: 4,
		Key:   &Message{Name: "counters_key", Size: 4, Fields: []Field{{Name: "key", Number: 1, Size: 4, Kind: KindUint, Type: "__u32"}}},
		Value: &Message{Name: "counters_value", Size: 64, Fields: []Field{{Name: "cpu", Number: 1, Size: 16, Count: 4, Kind: KindMessage, Message: one, Type: "struct count"}}},
	}
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}
