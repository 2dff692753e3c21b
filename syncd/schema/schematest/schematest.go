// Package schematest has schemas, entries and generators of both that the tests of several packages
// share.
package schematest

import (
	"encoding/binary"
	"math"
	"time"

	"mapsync/syncd/schema"
)

// Conntrack returns a schema with all features of schemas, as built from BTF.
func Conntrack() *schema.Schema {
	nat := func() *schema.Message { // a new Message per field, as built from BTF
		return &schema.Message{Name: "ct_nat", Size: 20, Fields: []schema.Field{
			{Name: "daddr", Number: 1, Size: 16, Kind: schema.KindBytes, Roles: schema.RoleIPv6, Type: "__be32[4]"},
			{Name: "dport", Number: 2, Offset: 16, Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RolePort, Type: "__be16"},
		}}
	}
	proto := &schema.Enum{Name: "ip_proto", Values: []schema.EnumValue{{Name: "IP", Value: 0}, {Name: "TCP", Value: 6}, {Name: "UDP", Value: 17}}}
	state := &schema.Enum{Name: "ct_state", Signed: true, Values: []schema.EnumValue{
		{Name: "CT_BAD", Value: math.MaxUint64}, {Name: "CT_NEW", Value: 1}, {Name: "CT_OPEN", Value: 2}, {Name: "CT_ESTABLISHED", Value: 2}, {Name: "CT_CLOSED", Value: 3},
	}}
	verdict := &schema.Enum{Name: "verdict", Values: []schema.EnumValue{{Name: "option", Value: 0}, {Name: "state", Value: 1}, {Name: "DROP", Value: 0xffffffff}}}
	huge := &schema.Enum{Name: "features", Values: []schema.EnumValue{{Name: "F_NONE", Value: 0}, {Name: "F_TOP", Value: 1 << 63}}}
	hop := &schema.Message{Name: "hop", Size: 8, Fields: []schema.Field{
		{Name: "dev", Number: 1, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "__u32"},
		{Name: "cost", Number: 2, Offset: 4, Size: 1, Kind: schema.KindSint, Type: "__s8"},
	}}
	return &schema.Schema{
		Map: "ct_map",
		Key: &schema.Message{Name: "ct_key", Size: 32, Fields: []schema.Field{
			{Name: "saddr", Number: 1, Size: 16, Kind: schema.KindBytes, Roles: schema.RoleIPv6, Type: "__be32[4]"},
			{Name: "vip", Number: 2, Offset: 16, Size: 4, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RoleIPv4, Type: "__be32"},
			{Name: "sport", Number: 3, Offset: 20, Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RolePort, Type: "__be16"},
			{Name: "proto", Number: 4, Offset: 22, Size: 1, Kind: schema.KindEnum, Enum: proto, Type: "ip_proto"},
			{Name: "zone", Number: 5, Offset: 24, Size: 2, Kind: schema.KindUint, Type: "__u16"},
			{Name: "dev", Number: 6, Offset: 28, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "int"},
		}},
		Value: &schema.Message{Name: "ct_entry", Size: 176, Fields: []schema.Field{
			{Name: "lock", Number: 1, Size: 4, Kind: schema.KindNone, Type: "struct bpf_spin_lock", Doc: "managed by the kernel"},
			{Name: "state", Number: 2, Offset: 4, Size: 4, Kind: schema.KindEnum, Enum: state, Type: "enum ct_state"},
			{Name: "syn", Number: 3, Offset: 8, Size: 4, BitSize: 1, Kind: schema.KindUint, Type: "__u32"},
			{Name: "level", Number: 4, Offset: 8, Size: 4, BitOffset: 5, BitSize: 5, Kind: schema.KindSint, Type: "int"},
			{Name: "nat", Number: 5, Offset: 12, Size: 20, Kind: schema.KindMessage, Message: nat(), Type: "struct ct_nat"},
			{Name: "last_seen", Number: 6, Offset: 32, Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime, Type: "__u64"},
			{Name: "packets", Number: 7, Offset: 40, Size: 8, Kind: schema.KindUint, Roles: schema.RoleVolatile, Type: "__u64"},
			{Name: "drift", Number: 8, Offset: 48, Size: 4, Kind: schema.KindSint, Type: "__s32"},
			{Name: "alive", Number: 9, Offset: 52, Size: 1, Kind: schema.KindBool, Type: "_Bool"},
			{Name: "mac", Number: 10, Offset: 53, Size: 6, Kind: schema.KindBytes, Roles: schema.RoleMAC, Type: "__u8[6]"},
			{Name: "comm", Number: 11, Offset: 60, Size: 16, Kind: schema.KindBytes, Type: "char[16]"},
			{Name: "load", Number: 12, Offset: 76, Size: 4, Kind: schema.KindFloat, Type: "float"},
			{Name: "ports", Number: 13, Offset: 80, Size: 2, Count: 4, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RolePort, Type: "__be16[4]"},
			{Name: "next", Number: 14, Offset: 88, Size: 8, Kind: schema.KindNone, Type: "void *", Doc: "a pointer is valid on one node only"},
			{Name: "features", Number: 15, Offset: 96, Size: 8, Kind: schema.KindEnum, Enum: huge, Type: "enum features"},
			{Name: "shard", Number: 16, Offset: 104, Size: 4, Kind: schema.KindUint, Roles: schema.RoleLocal, Type: "__u32"},
			{Name: "hops", Number: 17, Offset: 108, Size: 8, Count: 2, Kind: schema.KindMessage, Message: hop, Type: "struct hop[2]"},
			{Name: "verdict", Number: 18, Offset: 124, Size: 4, Kind: schema.KindEnum, Enum: verdict, Type: "enum verdict"},
			{Name: "blob", Number: 19, Offset: 128, Size: 8, Kind: schema.KindBytes, Type: "union blob", Doc: "a union of a, b; sent as bytes because no member covers the others"},
			{Name: "reply_nat", Number: 20, Offset: 136, Size: 20, Kind: schema.KindMessage, Message: nat(), Type: "struct ct_nat"},
			{Name: "expires", Number: 40, Offset: 156, Size: 4, Kind: schema.KindTime, Roles: schema.RoleSeconds, Type: "__u32"},
			{Name: "servers", Number: 21, Offset: 160, Size: 4, Count: 3, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RoleIPv4, Type: "__be32[3]"},
			{Name: "zone", Number: 22, Offset: 172, Size: 1, Kind: schema.KindUint, Type: "__u8"},
		}},
	}
}

// Entry returns the struct bytes of an entry of Conntrack, with most fields set.
func Entry() (key, value []byte) {
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

// Boot has the clocks of a host that booted on 1 January 2026.
var Boot = &schema.Times{Ktime: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()}

// Links are the names of network interfaces by index. It implements [schema.Links].
type Links map[uint32]string

// Name returns the name of an interface.
func (l Links) Name(index uint32) (string, bool) { name, ok := l[index]; return name, ok }

// Reference returns l: the names are those of references, too.
func (l Links) Reference(string) schema.Links { return l }

// Index finds no interface: ok is always false.
func (l Links) Index(string) (uint32, bool) { return 0, false }

// PerCPU returns the schema of a per-CPU map on 4 CPUs, 16 bytes each.
func PerCPU() *schema.Schema {
	one := &schema.Message{Name: "count", Size: 12, Fields: []schema.Field{
		{Name: "packets", Number: 1, Size: 8, Kind: schema.KindUint, Type: "__u64"},
		{Name: "port", Number: 2, Offset: 8, Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE, Type: "__be16"},
	}}
	return &schema.Schema{
		Map: "counters", CPUs: 4,
		Key:   &schema.Message{Name: "counters_key", Size: 4, Fields: []schema.Field{{Name: "key", Number: 1, Size: 4, Kind: schema.KindUint, Type: "__u32"}}},
		Value: &schema.Message{Name: "counters_value", Size: 64, Fields: []schema.Field{{Name: "cpu", Number: 1, Size: 16, Count: 4, Kind: schema.KindMessage, Message: one, Type: "struct count"}}},
	}
}
