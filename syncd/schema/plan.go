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
	// ErrPadding is wrapped when bytes of a key that no field covers are not zero.
	ErrPadding = errors.New("padding of the key is not zero")
	// ErrIncompatible is wrapped when entries of one layout cannot become entries of
	// another.
	ErrIncompatible = errors.New("layouts are incompatible")
	// ErrMalformed is wrapped when wire bytes are not what the sender's schema
	// allows in canonical form.
	ErrMalformed = errors.New("malformed entry")
	// ErrRange is wrapped when a value does not fit the field that it is for.
	ErrRange = errors.New("value does not fit")
	// ErrLink is wrapped when there is no interface of a name, or none of an index that
	// is part of a key.
	ErrLink = errors.New("unknown interface")
)

// opcode says what a field is in memory and on the wire.
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
	opBits // unsigned, within 8 bytes that lie within the struct

	opFixed32
	opIPv4
	opFixed64
	opKtime    // of 8 bytes, unsigned
	opBoottime // of 8 bytes, unsigned
	opBytes16  // of 16 bytes
	opBytes
	opMessage
	opMessages // an array; its elements' ops follow, up to opStop
	opOdd      // what is rare: arrays, narrow signed integers, other layouts

	// Ends match every tag: what reaches them is none of the message's fields.
	opEnd  // of a message
	opStop // of a whole plan or of an element of opMessages

	opLastVarint = opBits
)

// op is one step of a plan: a field, or the end of a message. Ops are in the order of
// the sender's numbers, and offsets count from the struct's beginning, or from that of an
// element of an array of messages.
type op struct {
	tag, mask uint64 // the tag as it is on the wire, and which bytes are the tag
	off       uint32
	n         uint32 // bytes of opBytes and opMessage; place in plan.odd or plan.lists
	next      uint32 // the op after this field
	code      opcode
	tagLen    uint8
	shift     uint8 // of opBits
	bits      uint8 // of opBits
}

// odd is a field that has no op code of its own.
type odd struct {
	class    class
	from, to lane // at the sender, here
	clock    clock
	count    uint32 // elements of an array at the sender, 0 for none
	room     uint32 // elements here
	drop     bool   // not kept here
	sum      bool   // added to what is there
}

// list is an array of messages.
type list struct {
	count  uint32 // elements at the sender
	room   uint32 // elements that can be kept here
	stride uint32 // from element to element here; 0 when they add up, or are dropped
}

// plan is a message, compiled. Encoding and decoding share it: an encoder's is that of a
// schema with itself.
type plan struct {
	ops   []op
	odd   []odd
	lists []list
	names []string // of the ops' fields, for errors
	size  int      // bytes in memory, here
	most  int      // bytes on the wire
}

// maxOps bounds a plan, whatever schema a peer sends.
const maxOps = 1 << 17

// compiler makes a plan and finds out what does not fit.
type compiler struct {
	plan     plan
	half     string // key or value
	problems []string
	fields   map[*Message]map[string]*Field
}

// compile makes the plan of messages that are sent as from and kept as to. fold says
// that they are values of another number of CPUs, whose sums count.
func (c *compiler) compile(from, to *Message, fold bool) {
	c.fields = map[*Message]map[string]*Field{}
	c.plan.size = to.Size
	c.plan.most = c.message(from, to, scope{span: to.Size, fold: fold, sum: fold})
	c.add(op{code: opStop}, "")
	if len(c.plan.ops) > maxOps {
		c.problem("", " needs more than %d steps", maxOps)
	}
}

// scope is where a message lies.
type scope struct {
	path string // of its fields, up to their names
	base int    // offset of the message
	span int    // bytes of the struct or element that offsets count from
	fold bool   // the elements of its arrays become one
	sum  bool   // fields add up
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

// byName returns a message's fields; nil has none.
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

// message adds a message's fields; to is nil when they are dropped. It returns how many
// bytes they take on the wire at most.
func (c *compiler) message(from, to *Message, s scope) int {
	if len(c.plan.ops) > maxOps {
		return 0
	}
	here := c.byName(to)
	if c.half == "key" && to != nil {
		c.compareKeys(from, to, s.path)
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

// field adds a field of the sender; to is its counterpart here or nil.
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
	if from.Kind == KindMessage {
		return c.nested(from, to, path, s)
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

// scalar adds a field, or an array, of anything but messages.
func (c *compiler) scalar(from, to *Field, path string, s scope) int {
	x := odd{class: classOf(from), from: laneOf(from, s.base), drop: to == nil, sum: s.sum}
	x.count, x.room = uint32(from.Count), uint32(from.Count)
	if to != nil {
		x.to, x.room = laneOf(to, s.base), uint32(to.Count)
		x.clock = clockOf(to)
	}
	o := tagged(from.Number, x.wireType())
	o.off = x.to.off
	o.code = x.code()
	switch o.code {
	case opOdd:
		o.n = uint32(len(c.plan.odd))
		c.plan.odd = append(c.plan.odd, x)
	case opBytes:
		o.n = x.to.size
	case opBits:
		if !o.window(&x.to, s.span) {
			o.code, o.off, o.n = opOdd, x.to.off, uint32(len(c.plan.odd))
			c.plan.odd = append(c.plan.odd, x)
		}
	}
	o.next = uint32(len(c.plan.ops) + 1)
	c.add(o, path)
	return x.most(o.tagLen)
}

// window places the 8 bytes of an opBits.
func (o *op) window(l *lane, span int) bool {
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

// failed returns an error with the field of op i and the place in the wire bytes.
func (p *plan) failed(err error, i, pos int) error {
	if i >= len(p.names) || p.names[i] == "" {
		return fmt.Errorf("%w: at byte %d", err, pos)
	}
	return fmt.Errorf("%w: at byte %d, %s", err, pos, strconv.Quote(p.names[i]))
}
