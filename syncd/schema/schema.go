package schema

import "errors"

// Limits of the types that are read.
const (
	// MaxSize is the size of the largest type in bytes: a value of MaxValueSize on each of many
	// CPUs.
	MaxSize = 1 << 20
	// MaxDepth is the maximum nesting depth of messages.
	MaxDepth = 16
	// MaxFields is the maximum number of fields of a key or value, including those of the elements
	// of nested arrays.
	MaxFields = 1 << 16
	// MaxNumber is the highest number of a protobuf field.
	MaxNumber = 1<<29 - 1
)

// ErrType is wrapped by the errors of types that cannot be replicated.
var ErrType = errors.New("type cannot be replicated")

// Schema describes the entries of one map.
type Schema struct {
	// Map is the map's name, equal on all peers.
	Map string
	// Key and Value are the types of the two halves of an entry.
	Key, Value *Message
	// Opaque is true if the map has no types. Key and Value then have one field of bytes, or those that the settings define.
	Opaque bool
	// CPUs is the number of values in an entry of a per-CPU map, each padded to 8 bytes, and 0 for
	// other maps. Value then has one field cpu, an array of messages.
	CPUs int

	// Drained is true for the sums of a drained map: see WithOrigin.
	Drained bool
}

// Message is a struct, or a type that is sent like a struct.
type Message struct {
	// Name is the C name. For an anonymous type it is derived from its position.
	Name string
	// Size is the size in memory in bytes, padding included.
	Size int
	// Fields are in the order of their declaration.
	Fields []Field
	// unions are the unions that fields represent. A peer's type has none.
	unions []unionPlace
}

// Field is one member of a struct.
type Field struct {
	// Name is the C name, unique within a Message.
	Name string
	// Number is the number of the protobuf field, unique within a Message.
	Number int
	// Offset is the offset within the Message, in bytes.
	Offset int
	// Size is the size of one element in bytes: 1, 2, 4 or 8 for a number, the whole size for
	// KindBytes.
	Size int
	// Count is the number of elements of an array, or 0 if the field is not an array.
	Count int
	// BitOffset and BitSize are the position of a bitfield in bits. BitOffset counts from the least
	// significant bit of the byte at Offset. BitSize is 0 if the field is not a bitfield. The Size
	// of a bitfield is the size of its declared type, which may extend beyond the Message.
	BitOffset, BitSize int
	// Kind is the encoding of the field.
	Kind Kind
	// Roles are additional meanings of the field.
	Roles Role
	// Type is the C type, for display.
	Type string
	// Doc contains remarks for display, for example the member of a union that is sent for the
	// union.
	Doc string
	// Signed is true if a KindTime is a signed integer. With 8 bytes it can then contain a time
	// before boot.
	Signed bool
	// Message is the type of the elements of KindMessage. For KindUnion its fields are the members, each a message.
	Message *Message
	// Enum is the type of KindEnum.
	Enum *Enum
	// When is the conditions of a KindUnion as text, equal on nodes with the same settings.
	When string
	// cases are the conditions, the first match decides. They are nil for another node's union.
	cases []memberCase
	// Default is the content of a field with RoleLocal in an entry that a peer created. It has the
	// size of the field. nil stands for zeros.
	Default []byte
	// Family is the field that decides about the family of an address with RoleIP: IPv4, in the first 4
	// bytes, if it is 0, 2 (AF_INET), 4 or 0x800, and IPv6 otherwise. It is in the same half of an entry,
	// and in no array.
	Family *Path
	// VolatileBits are the bits of each number of the field that RoleVolatile concerns, or 0 for all.
	VolatileBits uint64
	// Reference is the map of which a KindReference has an id as its key, and the fields that are its meaning there: see
	// [Reference]. In a table, the field has the number of the meaning in place of the id, in host order: see package refmap. A
	// peer's field has none.
	Reference string
	// Timer is true for a bpf_timer or bpf_wq.
	Timer bool
	// Silenced is true if the setting none says that the field needs no role.
	Silenced bool
	// decl is the definition by the type alone, before roles. It is nil if the field has no BTF
	// type.
	decl *declared
}

// Enum is a C enum.
type Enum struct {
	// Name is the C name. For an anonymous enum it is derived from its position.
	Name string
	// Signed is true if the values are signed.
	Signed bool
	// Values are in the order of their declaration.
	Values []EnumValue
}

// EnumValue is one constant of an Enum.
type EnumValue struct {
	Name  string
	Value uint64 // sign extended if the enum is signed
}

// Kind is the encoding of a field.
type Kind uint8

// The kinds. KindNone fields are neither sent nor overwritten.
const (
	KindNone      Kind = iota // kernel-owned, or a pointer
	KindUint                  // varint
	KindSint                  // zigzag varint
	KindBool                  // varint
	KindEnum                  // varint, sign extended to 64 bits if 4 bytes or fewer (like protobuf's enums)
	KindFloat                 // fixed32 or fixed64, by size
	KindBytes                 // bytes; trailing zeros are left out
	KindMessage               // a message
	KindTime                  // sfixed64: Unix time in nanoseconds
	KindIfname                // string: name of an interface
	KindUnion                 // a message with one of its fields; the others are other members at the same bytes
	KindReference             // string: what an id of another map means
)

// Role is a set of meanings of a field, set by decl tags or settings.
type Role uint32

// The roles. A field has at most one time role.
const (
	RoleKtime      Role = 1 << iota // nanoseconds of bpf_ktime_get_ns
	RoleBoottime                    // nanoseconds of bpf_ktime_get_boot_ns
	RoleJiffies                     // ticks of bpf_jiffies64
	RoleSeconds                     // seconds of bpf_ktime_get_ns
	RoleIfindex                     // index of an interface; sent as its name
	RoleVolatile                    // a change of this field alone does not count as a difference
	RoleLocal                       // not sent: the receiver keeps its own value
	RoleSum                         // in a per-CPU map: the sum over all CPUs is significant
	RoleBE                          // a number in network byte order
	RoleIPv4                        // an address, in network byte order
	RoleIPv6                        // an address, in network byte order
	RoleMAC                         // an address
	RolePort                        // a port, for display
	RoleJiffies256                  // bpf_jiffies64 / 256, as Cilium's clock with jiffies
	RoleIP                          // an address whose family is in another field
)

// RoleTime is the set of time roles.
const RoleTime = RoleKtime | RoleBoottime | RoleJiffies | RoleSeconds | RoleJiffies256

// Range is a range of bytes of a value.
type Range struct {
	Offset, Size int
}

// Times converts between the kernel's clocks and the wall clock on the wire: Unix nanoseconds =
// clock × unit + offset. Each batch uses current Times.
type Times struct {
	// Ktime and Boottime are the offsets of the two clocks from Unix time, in nanoseconds.
	Ktime, Boottime int64
	// Jiffies is the value of bpf_jiffies64 at the wall clock time JiffiesAt, and Tick is the
	// length of a jiffy in nanoseconds. If Tick is 0, fields that count jiffies cannot be converted.
	Jiffies         uint64
	JiffiesAt, Tick int64
}

// Shift returns t for time stamps of a wall clock that is ahead by ns nanoseconds.
func (t Times) Shift(ns int64) Times {
	t.Ktime += ns
	t.Boottime += ns
	t.JiffiesAt += ns
	return t
}

// Links translates interface indexes. The caller holds the table's lock, so the methods must answer
// from memory.
type Links interface {
	// Name returns the name of an interface, or the meaning that has a number.
	Name(index uint32) (name string, ok bool)
	// Index returns the index of an interface, or the number of a meaning. The name is borrowed for the call.
	Index(name string) (index uint32, ok bool)
}

// References is implemented by Links of maps whose entries have ids of other maps.
type References interface {
	// Reference returns the numbers of the meanings of a [Field.Reference], or nil if there are none.
	Reference(reference string) Links
}

// referenceIn returns the numbers of the meanings of a reference, or nil.
func referenceIn(l Links, reference string) Links {
	if r, ok := l.(References); ok {
		return r.Reference(reference)
	}
	return nil
}

// NamesOf returns the names of the numbers of a field with an interface or a reference, or nil if there are none. links may be nil.
func NamesOf(links Links, f *Field) Links {
	if f.Kind == KindReference {
		return referenceIn(links, f.Reference)
	}
	return links
}
