package schema

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Errors of the codec.
var (
	// ErrPadding is wrapped if bytes of a key outside its fields are not zero.
	ErrPadding = errors.New("padding of the key is not zero")
	// ErrIncompatible is wrapped if entries of one layout cannot be converted to another layout.
	ErrIncompatible = errors.New("layouts are incompatible")
	// ErrMalformed is wrapped if wire bytes are not in the canonical form of the sender's schema.
	ErrMalformed = errors.New("malformed entry")
	// ErrRange is wrapped if a value does not fit into its field.
	ErrRange = errors.New("value does not fit")
	// ErrLink is wrapped if no interface has a name, or if an index in a key belongs to no
	// interface.
	ErrLink = errors.New("unknown interface")
	// ErrReference is wrapped if the referenced map of the sender has no entry with an id, or if this node cannot store
	// another meaning.
	ErrReference = errors.New("unknown id of another map")
)

// opcode is the combination of a field's encoding in memory and on the wire.
type opcode uint8

const (
	// Varints.
	opU8 opcode = iota
	opU16
	opU32
	opU64
	opBE16
	opBE32
	opBE64
	opS32
	opS64
	opEnum32
	opBits // unsigned, within 8 bytes inside the struct

	opFixed32
	opIPv4
	opFixed64
	opKtime    // 8 bytes, unsigned
	opBoottime // 8 bytes, unsigned
	opBytes16  // 16 bytes
	opBytes
	opMessage
	opMember   // a member of a union: n is the op after it, the end of the union
	opMessages // an array; the ops of its elements follow, up to opStop
	opGeneric  // rare cases: arrays, narrow signed integers, other layouts

	// End ops match every tag: a tag that reaches them does not belong to the message's fields.
	opEnd  // end of a message
	opStop // end of a whole plan or of an element of opMessages

	opLastVarint = opBits
)

// op is one step of a plan: a field, or the end of a message. Ops are in the order of the sender's
// field numbers. Offsets count from the beginning of the struct, or of an element of an array of
// messages.
type op struct {
	tag, mask uint64 // the tag as on the wire, and the mask of its bytes
	off       uint32
	n         uint32 // bytes of opBytes and opMessage; index into plan.genericFields, plan.lists or plan.ops
	next      uint32 // the op after this field
	code      opcode
	tagLen    uint8
	shift     uint8 // for opBits; number of the union of opMember
	bits      uint8 // for opBits; 1 + index of the receiver's member of opMember, or 0 if it has none
}

// genericField is a field without an op code of its own.
type genericField struct {
	class    class
	from, to fieldAccessor // at the sender, at the receiver
	clock    clock
	count    uint32 // elements of an array at the sender, 0: not an array
	room     uint32 // elements at the receiver
	drop     bool   // the receiver ignores the field
	// reference is Field.Reference of this node, for a KindReference.
	reference string
	sum       bool // added to the current content
}

// list is an array of messages.
type list struct {
	count  uint32 // elements at the sender
	room   uint32 // elements at the receiver
	stride uint32 // bytes between elements at the receiver; 0 if they are summed or ignored
}

// plan is a compiled message. Encoding and decoding share this type: an encoder's plan is compiled
// from a schema and itself.
type plan struct {
	ops           []op
	genericFields []genericField
	lists         []list
	names         []string // names of the ops' fields, for errors
	size          int      // bytes in memory, at the receiver
	maxWireSize   int      // maximum bytes on the wire
}

// maxOps bounds the size of a plan, for any schema of a peer.
const maxOps = 1 << 17

// compiler builds a plan and collects the incompatibilities.
type compiler struct {
	plan     plan
	half     string // key or value
	problems []string
	fields   map[*Message]map[string]*Field
	unions   []placedUnion // of the receiver's value
}

// compile builds the plan for messages that are sent as from and stored as to. fold is true if they
// are values of a different number of CPUs, whose fields are summed.
func (c *compiler) compile(from, to *Message, fold bool) {
	c.fields = map[*Message]map[string]*Field{}
	c.plan.size = to.Size
	c.plan.maxWireSize = c.message(from, to, scope{span: to.Size, fold: fold, sum: fold})
	c.add(op{code: opStop}, "")
	if len(c.plan.ops) > maxOps {
		c.problem("", " needs more than %d steps", maxOps)
	}
}

// scope is the position of a message.
type scope struct {
	path string // of its fields, up to their names
	base int    // offset of the message
	span int    // bytes of the struct or element from which offsets count
	fold bool   // the elements of its arrays become one
	sum  bool   // fields are summed
}

func (c *compiler) problem(path, format string, args ...any) {
	text := c.half
	if path != "" {
		text += " field " + path
	}
	c.problems = append(c.problems, text+fmt.Sprintf(format, args...))
}

func (c *compiler) add(o op, path string) int {
	c.plan.ops = append(c.plan.ops, o)
	c.plan.names = append(c.plan.names, path)
	return len(c.plan.ops) - 1
}

// byName returns the fields of a message by name. A nil message has no fields.
func (c *compiler) byName(m *Message) map[string]*Field {
	if m == nil {
		return nil
	}
	if c.fields[m] == nil {
		c.fields[m] = fieldsByName(m)
	}
	return c.fields[m]
}

func fieldsByName(m *Message) map[string]*Field {
	fields := make(map[string]*Field, len(m.Fields))
	for i := range m.Fields {
		fields[m.Fields[i].Name] = &m.Fields[i]
	}
	return fields
}

// message adds the fields of a message and returns their maximum wire size in bytes. to is nil if
// they are ignored.
func (c *compiler) message(from, to *Message, s scope) int {
	if len(c.plan.ops) > maxOps {
		return 0
	}
	here := c.byName(to)
	if c.half == "key" && to != nil {
		c.compareKeys(from, to, s.path)
	}
	if to != nil {
		c.compareUnions(from, to, s.path)
	}
	sent := make([]*Field, 0, len(from.Fields))
	for i := range from.Fields {
		if f := &from.Fields[i]; f.Sent() {
			sent = append(sent, f)
		}
	}
	slices.SortFunc(sent, func(a, b *Field) int { return a.Number - b.Number })
	most := 0
	for _, f := range sent {
		most += c.field(f, here[f.Name], s)
	}
	return most
}

// field adds a field of the sender. to is the field of the receiver, or nil.
func (c *compiler) field(from, to *Field, s scope) int {
	path := s.path + from.Name
	if to != nil && !to.Sent() {
		to = nil
	}
	if to != nil {
		if why := mismatch(from, to); why != "" {
			c.problem(path, "%s", why)
			return 0
		}
	}
	switch from.Kind {
	case KindMessage:
		return c.nested(from, to, path, s)
	case KindUnion:
		return c.union(from, to, path, s)
	}
	if s.sum && to != nil && (to.Roles&RoleSum == 0 || to.Kind != KindUint && to.Kind != KindSint) {
		c.problem(path, " cannot be summed over another number of CPUs")
		return 0
	}
	return c.scalar(from, to, path, s)
}

// nested adds a message or an array of messages.
func (c *compiler) nested(from, to *Field, path string, s scope) int {
	o := tagged(from.Number, 2)
	s.path = path + "."
	var inner *Message
	if to != nil && to.Size > 0 {
		inner = to.Message
		s.base += to.Offset
		o.off = uint32(s.base)
	}
	if from.Count > 0 {
		return c.messages(from, to, o, s)
	}
	o.code, o.n = opMessage, uint32(from.Size)
	begin := c.add(o, path)
	s.fold = false
	most := c.message(from.Message, inner, s)
	c.add(op{code: opEnd, tagLen: o.tagLen}, path)
	c.plan.ops[begin].next = uint32(len(c.plan.ops))
	return wireSize(o.tagLen, most)
}

// union adds a union with conditions. A message with one member, or none, is valid.
func (c *compiler) union(from, to *Field, path string, s scope) int {
	o := tagged(from.Number, 2)
	number, members := 0, map[string]int{}
	if to != nil {
		s.base += to.Offset
		number = slices.IndexFunc(c.unions, func(u placedUnion) bool { return u.Field == to })
		for i := range to.Message.Fields {
			members[to.Message.Fields[i].Name] = i
		}
	}
	o.code, o.n, o.off = opMessage, uint32(from.Size), uint32(s.base)
	begin := c.add(o, path)
	var added []int
	most := 0
	for i := range from.Message.Fields {
		f := &from.Message.Fields[i]
		var inner *Message
		m := tagged(f.Number, 2)
		m.code, m.off, m.bits = opMember, uint32(s.base), ignoredMember
		if to != nil {
			k, ok := members[f.Name]
			if m.shift, m.bits = uint8(number), 0; ok {
				m.bits, inner = uint8(k+1), to.Message.Fields[k].Message
			}
		}
		at := c.add(m, path+"."+f.Name)
		most = max(most, wireSize(m.tagLen, c.message(f.Message, inner, scope{path: path + "." + f.Name + ".", base: s.base, span: s.span})))
		c.add(op{code: opEnd, tagLen: m.tagLen}, path)
		c.plan.ops[at].next = uint32(len(c.plan.ops))
		added = append(added, at)
	}
	end := c.add(op{code: opEnd, tagLen: o.tagLen}, path)
	for _, at := range added {
		c.plan.ops[at].n = uint32(end)
	}
	c.plan.ops[begin].next = uint32(len(c.plan.ops))
	return wireSize(o.tagLen, most)
}

// ignoredMember is the index of a member if the receiver ignores the union.
const ignoredMember = 0xff

func (c *compiler) messages(from, to *Field, o op, s scope) int {
	l := list{count: uint32(from.Count), room: uint32(from.Count)}
	element := scope{path: s.path, sum: s.sum}
	var inner *Message
	if to != nil && to.Size > 0 {
		inner, element.span = to.Message, to.Message.Size
		if !s.fold {
			l.room, l.stride = uint32(to.Count), uint32(to.Size)
		}
	}
	o.code, o.n = opMessages, uint32(len(c.plan.lists))
	c.plan.lists = append(c.plan.lists, l)
	path := strings.TrimSuffix(s.path, ".")
	begin := c.add(o, path)
	most := c.message(from.Message, inner, element)
	c.add(op{code: opStop}, path)
	c.plan.ops[begin].next = uint32(len(c.plan.ops))
	return from.Count * wireSize(o.tagLen, most)
}

// scalar adds a field, or an array, of any kind except messages.
func (c *compiler) scalar(from, to *Field, path string, s scope) int {
	x := genericField{class: classOf(from), from: accessorOf(from, s.base), drop: to == nil, sum: s.sum}
	x.count, x.room = uint32(from.Count), uint32(from.Count)
	if to != nil {
		x.to, x.room = accessorOf(to, s.base), uint32(to.Count)
		x.clock = clockOf(to)
		x.reference = to.Reference
	}
	o := tagged(from.Number, x.wireType())
	o.off = x.to.off
	o.code = x.code()
	switch o.code {
	case opGeneric:
		o.n = uint32(len(c.plan.genericFields))
		c.plan.genericFields = append(c.plan.genericFields, x)
	case opBytes:
		o.n = x.to.size
	case opBits:
		if !o.window(&x.to, s.span) {
			o.code, o.off, o.n = opGeneric, x.to.off, uint32(len(c.plan.genericFields))
			c.plan.genericFields = append(c.plan.genericFields, x)
		}
	}
	o.next = uint32(len(c.plan.ops) + 1)
	c.add(o, path)
	return x.maxWireSize(o.tagLen)
}

// window sets the 8 bytes that an opBits reads. It returns false if they do not fit into the
// struct.
func (o *op) window(l *fieldAccessor, span int) bool {
	off := min(int(l.off), span-8)
	shift := (int(l.off)-off)*8 + int(l.shift)
	if off < 0 || shift+int(l.bits) > 64 {
		return false
	}
	o.off, o.shift, o.bits = uint32(off), uint8(shift), l.bits
	return true
}

// tagged returns an op with the tag of a field.
func tagged(number int, wireType uint64) op {
	var tag [8]byte
	n := binary.PutUvarint(tag[:], uint64(number)<<3|wireType)
	return op{tag: binary.LittleEndian.Uint64(tag[:]), mask: 1<<(8*n) - 1, tagLen: uint8(n)}
}

// wireSize returns the size of a record with its tag and length.
func wireSize(tagLen uint8, n int) int {
	var length [binary.MaxVarintLen64]byte
	return int(tagLen) + binary.PutUvarint(length[:], uint64(n)) + n
}

// failed returns an error with the field of op i and the position in the wire bytes.
func (p *plan) failed(err error, i, pos int) error {
	if i >= len(p.names) || p.names[i] == "" {
		return fmt.Errorf("%w: at byte %d", err, pos)
	}
	return fmt.Errorf("%w: at byte %d, %s", err, pos, strconv.Quote(p.names[i]))
}
