package schematest

import (
	"encoding/binary"
	"fmt"

	"mapsync/syncd/schema"
)

// ConnectionKeySize and ConnectionValueSize are the sizes of the entries of [Connection] in bytes.
const (
	ConnectionKeySize   = 48
	ConnectionValueSize = 176
)

// Members returns a struct with the given name and fields, one after another, without padding. It sets
// the numbers and offsets of the fields, and the names of those without a name.
func Members(name string, fields ...schema.Field) *schema.Message {
	m := &schema.Message{Name: name}
	for i, f := range fields {
		f.Number, f.Offset = i+1, m.Size
		if f.Name == "" {
			f.Name = fmt.Sprintf("f%d", i+1)
		}
		m.Size += f.Bytes()
		m.Fields = append(m.Fields, f)
	}
	return m
}

// Rich returns a schema with a field of each kind and shape in 8+133 bytes, for a map with the name ct.
func Rich() *schema.Schema {
	inner := Members("inner",
		schema.Field{Size: 1, Kind: schema.KindUint},
		schema.Field{Size: 4, Kind: schema.KindSint},
	)
	outer := Members("outer",
		schema.Field{Size: 5, Kind: schema.KindMessage, Message: inner},
		schema.Field{Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE},
	)
	paint := &schema.Enum{Name: "paint", Signed: true, Values: []schema.EnumValue{{Name: "RED", Value: 1<<64 - 1}, {Name: "BLUE", Value: 7}}}
	return &schema.Schema{
		Map: "ct",
		Key: Members("rich_key",
			schema.Field{Size: 4, Kind: schema.KindUint, Roles: schema.RoleIPv4},
			schema.Field{Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex},
		),
		Value: Members("rich",
			schema.Field{Size: 1, Kind: schema.KindUint}, // f1
			schema.Field{Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE},
			schema.Field{Size: 8, Kind: schema.KindUint, Roles: schema.RoleVolatile},
			schema.Field{Size: 4, Kind: schema.KindSint},
			schema.Field{Size: 1, Kind: schema.KindBool},
			schema.Field{Size: 4, Kind: schema.KindEnum, Enum: paint},
			schema.Field{Size: 8, Kind: schema.KindFloat},
			schema.Field{Size: 16, Kind: schema.KindBytes},
			schema.Field{Size: 2, Count: 5, Kind: schema.KindUint},
			schema.Field{Size: 7, Kind: schema.KindMessage, Message: outer}, // f10
			schema.Field{Size: 7, Count: 3, Kind: schema.KindMessage, Message: outer},
			schema.Field{Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime},
			schema.Field{Size: 8, Kind: schema.KindTime, Roles: schema.RoleJiffies},
			schema.Field{Size: 4, Kind: schema.KindTime, Roles: schema.RoleSeconds},
			schema.Field{Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex},
			schema.Field{Size: 4, Kind: schema.KindUint, Roles: schema.RoleLocal, Default: []byte{1, 2, 3, 4}},
			schema.Field{Size: 8, Kind: schema.KindNone},
			schema.Field{Size: 4, BitOffset: 3, BitSize: 20, Kind: schema.KindUint},
		),
	}
}

// Connection returns the schema of a connection with 48+176 bytes in 40 fields, as in a load balancer
// with NAT, for a map with the name ct.
func Connection() *schema.Schema {
	number := func(size int, roles schema.Role) schema.Field {
		return schema.Field{Size: size, Kind: schema.KindUint, Roles: roles}
	}
	address := schema.Field{Size: 16, Kind: schema.KindBytes, Roles: schema.RoleIPv6}
	nat := Members("nat", address, address, number(2, schema.RoleBE), number(2, schema.RoleBE), number(4, 0))
	half := Members("half", number(8, schema.RoleVolatile), number(8, schema.RoleVolatile), number(4, 0), number(4, 0), number(2, 0), number(2, 0),
		number(1, 0), number(1, 0), number(1, 0), number(1, 0))
	clock := schema.Field{Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime}
	s := &schema.Schema{
		Map: "ct",
		Key: Members("ct_key", address, address, number(2, schema.RoleBE), number(2, schema.RoleBE), number(1, 0), number(1, 0), number(2, 0), number(8, 0)),
		Value: Members("ct", clock, clock,
			schema.Field{Size: nat.Size, Kind: schema.KindMessage, Message: nat},
			schema.Field{Size: half.Size, Kind: schema.KindMessage, Message: half},
			schema.Field{Size: half.Size, Kind: schema.KindMessage, Message: half},
			number(4, 0), number(4, 0), number(4, 0), number(4, 0), number(4, schema.RoleLocal),
			number(8, 0), number(8, schema.RoleVolatile), number(8, schema.RoleVolatile), number(4, 0), number(4, 0), number(4, 0),
		),
	}
	s.Key.Size, s.Value.Size = ConnectionKeySize, ConnectionValueSize
	return s
}

// ConnectionEntry fills in an entry of [Connection] for a connection over IPv4. i is the number of the
// connection, and gen a number that changes its counters. k and v must be zero or from an earlier call.
func ConnectionEntry(k, v []byte, i, gen int) {
	copy(k[10:], "\xff\xff\x0a\x01")
	binary.BigEndian.PutUint16(k[14:], uint16(i))
	copy(k[26:], "\xff\xff\xc0\x00\x02\x01")
	binary.BigEndian.PutUint16(k[32:], uint16(i>>16))
	binary.BigEndian.PutUint16(k[34:], 443)
	k[36] = 6
	binary.LittleEndian.PutUint64(v, 1e15+uint64(i)*1e3)
	binary.LittleEndian.PutUint64(v[8:], 1e15+uint64(gen)*1e9)
	copy(v[26:], "\xff\xff\x0a\x02\x00\x07")
	binary.BigEndian.PutUint16(v[48:], 8080)
	binary.LittleEndian.PutUint32(v[56:], uint32(gen)*3)
	binary.LittleEndian.PutUint32(v[64:], uint32(gen)*1500)
	binary.LittleEndian.PutUint32(v[72:], uint32(i)*2654435761)
	v[84] = 4
	binary.LittleEndian.PutUint32(v[88:], uint32(gen)*2)
	binary.LittleEndian.PutUint32(v[96:], uint32(gen)*900)
	v[128], v[132] = 1, 2
}

// keyType returns a key with an address, a port and padding.
func keyType() *schema.Message {
	return &schema.Message{Name: "ct_key", Size: 8, Fields: []schema.Field{
		{Name: "addr", Number: 1, Offset: 0, Size: 4, Kind: schema.KindUint, Roles: schema.RoleIPv4, Type: "__be32"},
		{Name: "port", Number: 2, Offset: 4, Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RolePort, Type: "__be16"},
	}}
}

// OldVersion returns the schema of a load balancer whose next version is [NewVersion].
func OldVersion() *schema.Schema {
	return &schema.Schema{Map: "typed", Key: keyType(), Value: &schema.Message{Name: "ct", Size: 40, Fields: []schema.Field{
		{Name: "last_seen", Number: 1, Offset: 0, Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime, Type: "__u64"},
		{Name: "packets", Number: 2, Offset: 8, Size: 4, Kind: schema.KindUint, Roles: schema.RoleVolatile, Type: "__u32"},
		{Name: "ifindex", Number: 3, Offset: 12, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "__u32"},
		{Name: "backend", Number: 4, Offset: 16, Size: 8, Kind: schema.KindMessage, Type: "struct backend", Message: backendType()},
		{Name: "cpu", Number: 5, Offset: 24, Size: 4, Kind: schema.KindUint, Roles: schema.RoleLocal, Type: "__u32"},
		{Name: "gone", Number: 6, Offset: 28, Size: 4, Kind: schema.KindUint, Type: "__u32"},
		{Name: "syn", Number: 7, Offset: 32, Size: 1, BitOffset: 0, BitSize: 3, Kind: schema.KindUint, Type: "__u8:3"},
		{Name: "fin", Number: 8, Offset: 32, Size: 1, BitOffset: 3, BitSize: 3, Kind: schema.KindUint, Type: "__u8:3"},
	}}}
}

// NewVersion returns the schema of the version after [OldVersion]: the fields have another order, one is
// wider, one was removed and one was added.
func NewVersion() *schema.Schema {
	return &schema.Schema{Map: "typed", Key: keyType(), Value: &schema.Message{Name: "ct", Size: 48, Fields: []schema.Field{
		{Name: "backend", Number: 1, Offset: 0, Size: 8, Kind: schema.KindMessage, Type: "struct backend", Message: backendType()},
		{Name: "packets", Number: 2, Offset: 8, Size: 8, Kind: schema.KindUint, Roles: schema.RoleVolatile, Type: "__u64"},
		{Name: "last_seen", Number: 3, Offset: 16, Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime, Type: "__u64"},
		{Name: "cpu", Number: 4, Offset: 24, Size: 4, Kind: schema.KindUint, Roles: schema.RoleLocal, Type: "__u32"},
		{Name: "ifindex", Number: 5, Offset: 28, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "__u32"},
		{Name: "syn", Number: 6, Offset: 32, Size: 1, BitOffset: 0, BitSize: 3, Kind: schema.KindUint, Type: "__u8:3"},
		{Name: "fin", Number: 7, Offset: 32, Size: 1, BitOffset: 3, BitSize: 3, Kind: schema.KindUint, Type: "__u8:3"},
		{Name: "mark", Number: 8, Offset: 40, Size: 4, Kind: schema.KindUint, Type: "__u32"},
	}}}
}

// backendType returns a struct with an address, a port and padding.
func backendType() *schema.Message {
	return &schema.Message{Name: "backend", Size: 8, Fields: []schema.Field{
		{Name: "addr", Number: 1, Offset: 0, Size: 4, Kind: schema.KindUint, Roles: schema.RoleIPv4, Type: "__be32"},
		{Name: "port", Number: 2, Offset: 4, Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE | schema.RolePort, Type: "__be16"},
	}}
}

// Timed returns a schema with a time stamp of each clock of the kernel.
func Timed() *schema.Schema {
	return &schema.Schema{Map: "timed", Key: schema.FromSizes("timed", 8, 1).Key, Value: &schema.Message{Name: "ct", Size: 24, Fields: []schema.Field{
		{Name: "ktime", Number: 1, Offset: 0, Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime, Type: "__u64"},
		{Name: "boottime", Number: 2, Offset: 8, Size: 8, Kind: schema.KindTime, Roles: schema.RoleBoottime, Type: "__u64"},
		{Name: "jiffies", Number: 3, Offset: 16, Size: 8, Kind: schema.KindTime, Roles: schema.RoleJiffies, Type: "__u64"},
	}}}
}

// InterfaceKey returns a schema whose key is a network interface.
func InterfaceKey() *schema.Schema {
	return &schema.Schema{
		Map: "typed",
		Key: &schema.Message{Name: "port", Size: 4, Fields: []schema.Field{
			{Name: "ifindex", Number: 1, Size: 4, Kind: schema.KindIfname, Roles: schema.RoleIfindex, Type: "__u32"},
		}},
		Value: &schema.Message{Name: "up", Size: 1, Fields: []schema.Field{
			{Name: "up", Number: 1, Size: 1, Kind: schema.KindUint, Type: "__u8"},
		}},
	}
}

// RichEntry returns an entry of [Rich]. Entries of other numbers differ in each byte that is not 0.
func RichEntry(i byte) (key, value []byte) {
	fields := Rich().Value
	key, value = []byte{10, 0, 0, i, 1, 0, 0, 0}, make([]byte, fields.Size)
	for at := range value {
		value[at] = byte(at) * i
	}
	bools, link := fields.Fields[4], fields.Fields[14]
	value[bools.Offset] = 1
	copy(value[link.Offset:], []byte{2, 0, 0, 0})
	return key, value
}
