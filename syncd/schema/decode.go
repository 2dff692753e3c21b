package schema

import (
	"fmt"
	mathbits "math/bits"
	"unsafe"
)

// Decoder decodes wire bytes of a sender's schema into entries of the local layout. It is immutable
// and safe for concurrent use.
type Decoder struct {
	key, value           plan
	keyImage, valueImage []byte
	keep                 []Range
	links                Links
	same                 bool
	unions               []placedUnion
}

// NewDecoder compiles a decoder for the wire bytes of a sender with the schema remote, into the
// layout of local. It checks both schemas. Errors wrap [ErrType], or [ErrIncompatible] with the
// names of the fields that do not match. The strings passed to links refer to the wire bytes, so
// links must not keep them.
//
// The decoder maps fields by name. Integers may have another width, arrays and bytes another
// length, and time stamps another clock. Whether a value fits is checked when it is decoded. The
// decoder ignores fields that only the sender has, and keeps fields that only the receiver has. In
// keys both are errors. Per-CPU values of a different number of CPUs are summed if all their fields
// have the role sum. The sum has the width of the field and wraps like the counters. The first CPU
// receives the sum.
func NewDecoder(remote, local *Schema, links Links) (*Decoder, error) {
	if err := local.Check(); err != nil {
		return nil, fmt.Errorf("decode map %s: %w", local.Map, err)
	}
	if err := remote.Check(); err != nil {
		return nil, fmt.Errorf("decode map %s of the sender: %w", local.Map, err)
	}
	fold, problems := compareShapes(remote, local)
	if err := incompatible(local.Map, problems); err != nil {
		return nil, err
	}
	key, value := compiler{half: "key"}, compiler{half: "value", unions: local.unions()}
	key.compile(remote.Key, local.Key, false)
	value.compile(remote.Value, local.Value, fold)
	if err := incompatible(local.Map, append(key.problems, value.problems...)); err != nil {
		return nil, err
	}
	k := newKeepFinder(local.Value.Size)
	k.message(remote.Value, local.Value, 0)
	return &Decoder{
		key: key.plan, value: value.plan, links: links, same: Equal(remote, local), unions: value.unions,
		keyImage: make([]byte, local.Key.Size), valueImage: k.image, keep: k.ranges(),
	}, nil
}

// Same reports whether both layouts are equal.
func (d *Decoder) Same() bool { return d.same }

// Keep returns the byte ranges of a value that the sender does not send, in ascending order. They
// are fields that the sender does not have or send, and fields that are local or kernel-owned here.
// Value leaves their default there. A byte that also contains bits that the sender sends is
// excluded. The decoder owns the slice.
func (d *Decoder) Keep() []Range { return d.keep }

// Key decodes a key into dst, which has the size of a local key. It writes all of dst, also on
// error. Errors wrap [ErrMalformed], [ErrRange], [ErrLink] or [ErrReference].
func (d *Decoder) Key(dst, wire []byte) error {
	if _, err := d.key.decode(dst, d.keyImage, wire, nil, d.links); err != nil {
		return fmt.Errorf("decode key: %w", err)
	}
	return nil
}

// ComparedKey decodes the bits of a key that [Schema.ComparedKey] selects into dst, which has the size of a
// local key. All other bits are undefined: the interfaces and meanings of the key need not exist here. Errors wrap
// [ErrMalformed] or [ErrRange].
func (d *Decoder) ComparedKey(dst, wire []byte) error {
	if _, err := d.key.decode(dst, d.keyImage, wire, nil, anyLink{}); err != nil {
		return fmt.Errorf("decode key: %w", err)
	}
	return nil
}

// anyLink is Links with an index for each name.
type anyLink struct{}

func (anyLink) Index(string) (index uint32, ok bool) { return 1, true }
func (anyLink) Name(uint32) (name string, ok bool)   { return "", false }
func (anyLink) Reference(string) Links               { return anyLink{} }

// Value decodes a value into dst, which has the size of a local value. key is the decoded key, which conditions of unions may
// need. It writes all of dst, also on error. Fields that the sender does not send receive their defaults. Errors wrap
// [ErrMalformed], [ErrRange] or [ErrLink]. A member of a union that the conditions of this node do not select does not fit.
func (d *Decoder) Value(dst, key, wire []byte, t *Times) error {
	members, err := d.value.decode(dst, d.valueImage, wire, t, d.links)
	if err != nil {
		return fmt.Errorf("decode value: %w", err)
	}
	for i := range d.unions {
		u := &d.unions[i]
		if k := u.memberIndex(key, dst); members[i] != 0 && k >= 0 && int(members[i]) != k+1 {
			return fmt.Errorf("decode value: %w: union %s has the member %s, and by the conditions of this node %s",
				ErrRange, u.Name, u.Message.Fields[members[i]-1].Name, u.Message.Fields[k].Name)
		}
	}
	return nil
}

// decoding is the state of decoding one struct.
type decoding struct {
	plan  *plan
	wire  []byte
	times *Times
	links Links
	// members are the members of unions on the wire: 1 + index, or 0 if all bytes are zero.
	members unionMembers
}

// unionMembers are numbered like Decoder.unions.
type unionMembers [maxUnions]uint8

func (p *plan) decode(dst, image, wire []byte, t *Times, links Links) (unionMembers, error) {
	if len(dst) != p.size {
		return unionMembers{}, fmt.Errorf("%d bytes of room instead of %d", len(dst), p.size)
	}
	copy(dst, image)
	if len(wire) > p.maxWireSize {
		return unionMembers{}, fmt.Errorf("%w: %d bytes, at most %d can be", ErrMalformed, len(wire), p.maxWireSize)
	}
	if t == nil {
		t = &noTimes
	}
	d := decoding{plan: p, wire: wire, times: t, links: links}
	err := d.run(0, 0, len(wire), unsafe.Pointer(unsafe.SliceData(dst)))
	return d.members, err
}

// openMessage is a message that encloses the current one.
type openMessage struct {
	end  uint32 // its end on the wire
	next uint32 // the op after it
}

// run decodes the wire bytes from pos to end into the struct or element at base, with the ops from
// i up to an opStop. Ops are in the order of the wire: a tag that does not match any remaining op
// reaches the op that ends the message. Wire bytes are read in words that are zero beyond the end.
// After each field, run checks that the field was inside the message.
func (d *decoding) run(i, pos, end int, base unsafe.Pointer) error {
	ops, wire := d.plan.ops, d.wire
	var opens [MaxDepth + 1]openMessage
	depth := 0
	for {
		if pos == end {
			if depth == 0 {
				return nil
			}
			depth--
			i, end = int(opens[depth].next), int(opens[depth].end)
			continue
		}
		w := load64(wire, pos)
		o := &ops[i]
		for (w^o.tag)&o.mask != 0 {
			i = int(o.next)
			o = &ops[i]
		}
		at := unsafe.Add(base, o.off)
		body := pos + int(o.tagLen)
		if o.code <= opLastVarint {
			x := w >> (o.tagLen * 8 & 63)
			v := x & 0x7f
			pos = body + 1
			if x&0x80 != 0 {
				last := mathbits.TrailingZeros64(^x & 0x8080808080808080)
				if last < 64-8*int(o.tagLen) {
					x &= 2<<(last&63) - 1
					v = joined(x)
					pos = body + (last+1)>>3
					if x>>((last-7)&63) == 0 {
						v = 0 // a trailing zero group: not the shortest form
					}
				} else if v, pos = d.varint(body, end); pos < 0 {
					return d.plan.failed(ErrMalformed, i, body)
				}
			}
			if v == 0 || pos > end || !o.store(at, v) {
				return d.plan.failed(ErrMalformed, i, body)
			}
			i = int(o.next)
			continue
		}
		var err error
		switch o.code {
		case opFixed32, opIPv4:
			v := uint32(load64(wire, body))
			pos = body + 4
			if v == 0 || pos > end {
				return d.plan.failed(ErrMalformed, i, body)
			}
			if o.code == opIPv4 {
				v = mathbits.ReverseBytes32(v)
			}
			*(*uint32)(at) = v
		case opFixed64, opKtime, opBoottime:
			v := load64(wire, body)
			pos = body + 8
			if v == 0 || pos > end {
				return d.plan.failed(ErrMalformed, i, body)
			}
			if o.code != opFixed64 {
				v = d.reading(o.code, int64(v))
			}
			*(*uint64)(at) = v
		case opBytes16:
			size := int(byte(w >> (o.tagLen * 8 & 63)))
			pos = body + 1 + size
			if size == 0 || size > 16 || pos > end || wire[pos-1] == 0 {
				return d.plan.failed(ErrMalformed, i, body)
			}
			low, high := load64(wire, body+1), load64(wire, body+9)
			if size < 8 {
				low, high = low&(1<<(8*size)-1), 0
			}
			*(*uint64)(at) = low
			*(*uint64)(unsafe.Add(at, 8)) = high & (1<<(8*(size-8)&127) - 1)
		case opBytes:
			var b []byte
			if b, pos = d.bytes(body, end, int(o.n)); len(b) == 0 {
				return d.plan.failed(ErrMalformed, i, body)
			}
			copy(unsafe.Slice((*byte)(at), o.n), b)
		case opMessage:
			size := 0
			if size, pos = d.length(body, end); size <= 0 {
				return d.plan.failed(ErrMalformed, i, body)
			}
			opens[depth] = openMessage{end: uint32(end), next: o.next}
			depth++
			end = pos + size
			i++
			continue
		case opMember:
			size := 0
			if size, pos = d.length(body, end); size <= 0 {
				return d.plan.failed(ErrMalformed, i, body)
			}
			if o.bits == 0 {
				return d.plan.failed(ErrRange, i, body)
			}
			if o.bits != ignoredMember {
				d.members[o.shift] = o.bits
			}
			opens[depth] = openMessage{end: uint32(end), next: o.n}
			depth++
			end = pos + size
			i++
			continue
		case opMessages:
			if pos, err = d.messages(i, pos, end, at); err != nil {
				return err
			}
		case opGeneric:
			if pos, err = d.decodeGeneric(o, body, end, base); err != nil {
				return d.plan.failed(err, i, body)
			}
		default: // the end of a message
			return d.plan.failed(ErrMalformed, i, pos)
		}
		i = int(o.next)
	}
}

// store writes the value of a varint. ok is false if the sender's field, which has the same width,
// cannot have contained it.
func (o *op) store(at unsafe.Pointer, v uint64) (ok bool) {
	switch o.code {
	case opU8:
		*(*uint8)(at) = uint8(v)
		return v < 1<<8
	case opU16:
		*(*uint16)(at) = uint16(v)
		return v < 1<<16
	case opU32:
		*(*uint32)(at) = uint32(v)
		return v < 1<<32
	case opU64:
		*(*uint64)(at) = v
		return true
	case opBE16:
		*(*uint16)(at) = mathbits.ReverseBytes16(uint16(v))
		return v < 1<<16
	case opBE32:
		*(*uint32)(at) = mathbits.ReverseBytes32(uint32(v))
		return v < 1<<32
	case opBE64:
		*(*uint64)(at) = mathbits.ReverseBytes64(v)
		return true
	case opS32:
		*(*uint32)(at) = uint32(v>>1) ^ -uint32(v&1)
		return v < 1<<32
	case opS64:
		*(*uint64)(at) = v>>1 ^ -(v & 1)
		return true
	case opEnum32:
		*(*uint32)(at) = uint32(v)
		return v == uint64(int64(int32(v)))
	}
	*(*uint64)(at) |= v << (o.shift & 63) // opBits: all its bits were 0
	return v>>(o.bits&127) == 0
}

// reading converts Unix nanoseconds to a nanosecond clock. The fast path has no saturation.
func (d *decoding) reading(code opcode, ns int64) uint64 {
	role, add := RoleKtime, d.times.Ktime
	if code == opBoottime {
		role, add = RoleBoottime, d.times.Boottime
	}
	r := ns - add
	if r <= 0 || (ns^add)&(ns^r) < 0 || ns == forever {
		v, _ := d.times.fromWall(clock{role: role, size: 8}, ns)
		return v
	}
	return uint64(r)
}

// messages decodes the array of messages of op i. Its first tag is at pos, and its first element at
// base.
func (d *decoding) messages(i, pos, end int, base unsafe.Pointer) (next int, err error) {
	o := &d.plan.ops[i]
	l := &d.plan.lists[o.n]
	for k := uint32(0); ; k++ {
		size, body := d.length(pos+int(o.tagLen), end)
		if size < 0 || k == l.count {
			return 0, d.plan.failed(ErrMalformed, i, pos)
		}
		pos = body + size
		if size > 0 {
			if k >= l.room {
				return 0, d.plan.failed(ErrRange, i, body)
			}
			if err := d.run(i+1, body, pos, unsafe.Add(base, k*l.stride)); err != nil {
				return 0, err
			}
		}
		if pos == end || (load64(d.wire, pos)^o.tag)&o.mask != 0 {
			if size == 0 {
				return 0, d.plan.failed(ErrMalformed, i, pos) // the last element is empty
			}
			return pos, nil
		}
	}
}
