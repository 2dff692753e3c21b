package schema

import "errors"

// Limits of what is read. The sizes are what an event can carry.
const (
	// MaxSize is the size of the largest type in bytes: a value of MaxValueSize
	// on each of many CPUs.
	MaxSize = 1 << 20
	// MaxDepth is how deep messages may be nested.
	MaxDepth = 16
	// MaxFields is how many fields a key or value may have, elements of nested
	// arrays counted.
	MaxFields = 1 << 16
)

// ErrType is wrapped by the errors of types that cannot be replicated.
var ErrType = errors.New("type cannot be replicated")

// Schema says what the entries of one map are made of.
type Schema struct {
	// Map is the map's name among the peers.
	Map string
	// Key and Value are the types of the two halves of an entry.
	Key, Value *Message
	// Opaque says that the map has no BTF: Key and Value have one field of bytes.
	Opaque bool
	// CPUs is how many values, each padded to 8 bytes, an entry of a per-CPU map
	// holds; 0 for other maps. Value then has the one field cpu, an array of
	// messages.
	CPUs int
}

// Message is a struct, or what is sent like one.
type Message struct {
	// Name is the C name; for an anonymous type, one made of its place.
	Name string
	// Size is what it takes in memory, in bytes, padding included.
	Size int
	// Fields are in the order of their declaration.
	Fields []Field
}

// Field is one member.
type Field struct {
	// Name is the C name. Names are unique within a Message.
	Name string
	// Number is that of the protobuf field, unique within a Message.
	Number int
	// Offset is where it begins within its Message, in bytes.
	Offset int
	// Size is the size of one element in bytes: 1, 2, 4, 8 of a number, the whole
	// size of KindBytes.
	Size int
	// Count is the number of elements of an array, 0 if it is none.
	Count int
	// BitOffset and BitSize say where a bitfield is: BitOffset counts from the
	// least significant bit of the byte at Offset. BitSize 0 is no bitfield. The
	// Size of a bitfield is that of its declared type; not all of it need lie
	// within the Message.
	BitOffset, BitSize int
	// Kind is how it is sent.
	Kind Kind
	// Roles are what it means besides.
	Roles Role
	// Type is its C type, for people.
	Type string
	// Doc says what people should know, such as which member of a union stands
	// for it.
	Doc string
	// Signed says that a KindTime is a signed integer; one of 8 bytes can then hold
	// an instant before the boot.
	Signed bool
	// Message is the type of the elements of KindMessage.
	Message *Message
	// Enum is the type of KindEnum.
	Enum *Enum
	// Default is what a field with RoleLocal holds in an entry that a peer
	// created: as many bytes as the field, nil for zeros.
	Default []byte
	// decl is what the type says by itself, before roles; nil when not made from one.
	decl *declared
}

// Bytes returns how many bytes the field takes in its Message, all elements
// together; of a bitfield, the bytes that its bits touch.
func (f *Field) Bytes() int {
	if f.BitSize > 0 {
		return (f.BitOffset + f.BitSize + 7) / 8
	}
	return f.Size * max(f.Count, 1)
}

// Sent reports whether the field is on the wire.
func (f *Field) Sent() bool { return f.Kind != KindNone && f.Roles&RoleLocal == 0 }

// Enum is a C enum.
type Enum struct {
	// Name is the C name; for an anonymous one, one made of its place.
	Name string
	// Signed says that values are signed.
	Signed bool
	// Values are in the order of their declaration.
	Values []EnumValue
}

// EnumValue is one of an Enum's names.
type EnumValue struct {
	Name  string
	Value uint64 // sign extended when the enum is signed
}

// Kind is how a field is sent.
type Kind uint8

// The kinds. KindNone fields are never sent nor overwritten.
const (
	KindNone    Kind = iota // kernel-owned, or a pointer
	KindUint                // varint
	KindSint                // zigzag varint
	KindBool                // varint
	KindEnum                // varint, sign extended to 64 bits when 4 bytes or fewer (as protobuf's enums)
	KindFloat               // fixed32 or fixed64, by size
	KindBytes               // bytes; trailing zeros are left out
	KindMessage             // a message
	KindTime                // sfixed64: Unix time in nanoseconds
	KindIfname              // string: name of an interface
)

// Role is a set of meanings of a field, as decl tags or settings give them.
type Role uint16

// The roles. Of the time roles, a field has at most one.
const (
	RoleKtime    Role = 1 << iota // nanoseconds of bpf_ktime_get_ns
	RoleBoottime                  // nanoseconds of bpf_ktime_get_boot_ns
	RoleJiffies                   // ticks of bpf_jiffies64
	RoleSeconds                   // seconds of bpf_ktime_get_ns
	RoleIfindex                   // index of an interface; travels as its name
	RoleVolatile                  // no difference by itself
	RoleLocal                     // never sent: the receiver keeps its own
	RoleSum                       // of a per-CPU map: the sum of all CPUs counts
	RoleBE                        // a number in network byte order
	RoleIPv4                      // an address, in network byte order
	RoleIPv6                      // an address, in network byte order
	RoleMAC                       // an address
	RolePort                      // a port, for people
)

// RoleTime are the roles that are instants.
const RoleTime = RoleKtime | RoleBoottime | RoleJiffies | RoleSeconds

// Range is a run of bytes of a value.
type Range struct {
	Offset, Size int
}

// Times converts between the kernel's clocks and the wall clock that is on the
// wire: Unix nanoseconds = clock × Unit + Add. It is taken anew for each batch.
type Times struct {
	// Ktime and Boottime are to be added to nanoseconds of the two clocks.
	Ktime, Boottime int64
	// Jiffies is the value of bpf_jiffies64 at wall clock JiffiesAt, and Tick
	// the length of one in nanoseconds; Tick 0: not known, and a field of
	// that role cannot be converted.
	Jiffies         uint64
	JiffiesAt, Tick int64
}

// Shift returns t for time stamps of a wall clock that is ahead by ns.
func (t Times) Shift(ns int64) Times {
	t.Ktime += ns
	t.Boottime += ns
	t.JiffiesAt += ns
	return t
}

// Links translates interface indexes. Its methods are called with the table's
// lock held: they must answer from memory.
type Links interface {
	// Name returns the name of an interface.
	Name(index uint32) (name string, ok bool)
	// Index returns the index of an interface.
	Index(name string) (index uint32, ok bool)
}
