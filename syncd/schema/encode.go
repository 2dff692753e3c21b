package schema

import (
	"fmt"
	mathbits "math/bits"
	"slices"
	"unsafe"
)

// slack is the number of bytes that may be written beyond the wire bytes, because the encoder
// writes in words.
const slack = 16

// Encoder encodes the entries of one map in wire format. It is immutable and safe for concurrent
// use.
type Encoder struct {
	key, value plan
	gaps       []gap
	links      Links
	// variants are the plans of values for each combination of members, by variantOf; empty without unions.
	variants  []plan
	variantOf func(key, value []byte) int
}

// NewEncoder compiles an encoder for s after checking s. If links is nil, interface names are not
// available.
func NewEncoder(s *Schema, links Links) (*Encoder, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("encode map %s: %w", s.Map, err)
	}
	key, value := compiler{half: "key"}, compiler{half: "value"}
	key.compile(s.Key, s.Key, false)
	value.compile(s.Value, s.Value, false)
	if problems := append(key.problems, value.problems...); len(problems) > 0 {
		return nil, fmt.Errorf("%w: map %s: %s", ErrType, s.Map, problems[0])
	}
	e := &Encoder{key: key.plan, value: value.plan, gaps: s.Key.gaps(), links: links, variantOf: s.VariantOf()}
	for v := range s.Variants() {
		if e.variantOf == nil {
			break
		}
		one := s.Variant(v).Value
		c := compiler{half: "value"}
		c.compile(one, one, false)
		e.variants = append(e.variants, c.plan)
	}
	return e, nil
}

// planOf returns the plan for the value of an entry.
func (e *Encoder) planOf(key, value []byte) *plan {
	if e.variantOf == nil {
		return &e.value
	}
	return &e.variants[e.variantOf(key, value)]
}

// MaxKey returns the free capacity in bytes that AppendKey needs. It exceeds the wire size of any
// key.
func (e *Encoder) MaxKey() int { return e.key.maxWireSize + slack }

// MaxValue returns the free capacity in bytes that AppendValue needs. It exceeds the wire size of
// any value.
func (e *Encoder) MaxValue() int { return e.value.maxWireSize + slack }

// AppendKey appends the wire bytes of a key to dst and returns the extended buffer. The key must
// have the size in the schema. Errors wrap [ErrPadding], or [ErrLink] or [ErrReference] if the key contains an
// interface without a name, or an id without a meaning. On error it returns dst unchanged.
func (e *Encoder) AppendKey(dst, key []byte) ([]byte, error) {
	if len(key) != e.key.size {
		return dst, fmt.Errorf("encode key: %d bytes instead of %d", len(key), e.key.size)
	}
	p := unsafe.Pointer(unsafe.SliceData(key))
	for _, g := range e.gaps {
		var b uint64
		if g.size == 8 {
			b = *(*uint64)(unsafe.Add(p, g.off))
		} else {
			b = uint64(*(*byte)(unsafe.Add(p, g.off)))
		}
		if b&g.mask != 0 {
			return dst, fmt.Errorf("%w: byte %d", ErrPadding, int(g.off)+mathbits.TrailingZeros64(b&g.mask)/8)
		}
	}
	out, err := e.key.encode(dst, key, nil, e.links)
	if err != nil {
		return dst, fmt.Errorf("encode key: %w", err)
	}
	return out, nil
}

// AppendKnownKey is AppendKey without its errors. It leaves out padding and interfaces without a name, so
// that the result identifies a key only by its other fields. It panics if the key does not have the size
// in the schema.
func (e *Encoder) AppendKnownKey(dst, key []byte) []byte {
	out, _ := e.key.encode(dst, key, nil, e.links)
	return out
}

// AppendValue appends the wire bytes of a value to dst and returns the extended buffer. key is that of
// the entry, which conditions of unions may need. It panics if the value does not have the size in the schema. It leaves out times that t cannot convert, and
// numbers without a name, like 0.
func (e *Encoder) AppendValue(dst, key, value []byte, t *Times) []byte {
	out, _ := e.planOf(key, value).encode(dst, value, t, e.links)
	return out
}

// AppendNamedValue is AppendValue for a value that a receiver stores. The error wraps [ErrLink] or [ErrReference] if the value
// contains an interface without a name or an id without a meaning, which the receiver would take for none.
func (e *Encoder) AppendNamedValue(dst, key, value []byte, t *Times) ([]byte, error) {
	out, err := e.planOf(key, value).encode(dst, value, t, e.links)
	if err != nil {
		return out, fmt.Errorf("encode value: %w", err)
	}
	return out, nil
}

// encoding is the state of encoding one struct.
type encoding struct {
	plan    *plan
	out     unsafe.Pointer // has capacity for plan.maxWireSize + slack bytes
	times   *Times
	links   Links
	unnamed error // a number had no name
}

// encode appends a struct. The error is ErrLink or ErrReference if a number had no name.
func (p *plan) encode(dst, src []byte, t *Times, links Links) (out []byte, err error) {
	if len(src) != p.size {
		panic("schema: struct bytes of another size than the schema's")
	}
	n := len(dst)
	dst = slices.Grow(dst, p.maxWireSize+slack)
	if t == nil {
		t = &noTimes
	}
	e := encoding{plan: p, out: unsafe.Add(unsafe.Pointer(unsafe.SliceData(dst)), n), times: t, links: links}
	n += e.run(0, 0, unsafe.Pointer(unsafe.SliceData(src)))
	return dst[:n], e.unnamed
}

// run encodes the struct or element at base with the ops from i up to an opStop. It writes from n
// on, and returns the position after the last byte. Each field consists of a tag of up to 5 bytes,
// written as a word, and its content. The code after the switch writes varints.
func (e *encoding) run(i, n int, base unsafe.Pointer) int {
	ops, out := e.plan.ops, e.out
	var starts [MaxDepth + 1]uint32 // where open messages begin
	depth := 0
	for ; ; i++ {
		o := &ops[i]
		at := unsafe.Add(base, o.off)
		var v uint64
		switch o.code {
		case opStop:
			return n
		case opEnd:
			depth--
			n = closeMessage(out, int(starts[depth]), n, int(o.tagLen))
			continue
		case opMessage:
			if zero(at, int(o.n)) {
				i = int(o.next) - 1
				continue
			}
			*(*uint64)(unsafe.Add(out, n)) = o.tag
			n += int(o.tagLen) + 1
			starts[depth] = uint32(n)
			depth++
			continue
		case opU8:
			v = uint64(*(*uint8)(at))
		case opU16:
			v = uint64(*(*uint16)(at))
		case opU32:
			v = uint64(*(*uint32)(at))
		case opU64:
			v = *(*uint64)(at)
		case opBE16:
			v = uint64(mathbits.ReverseBytes16(*(*uint16)(at)))
		case opBE32:
			v = uint64(mathbits.ReverseBytes32(*(*uint32)(at)))
		case opBE64:
			v = mathbits.ReverseBytes64(*(*uint64)(at))
		case opS32:
			s := *(*int32)(at)
			v = uint64(uint32(s<<1) ^ uint32(s>>31))
		case opS64:
			s := *(*int64)(at)
			v = uint64(s<<1) ^ uint64(s>>63)
		case opEnum32:
			v = uint64(int64(*(*int32)(at)))
		case opBits:
			v = *(*uint64)(at) >> (o.shift & 63) & (1<<(o.bits&127) - 1)
		case opFixed32, opIPv4:
			f := *(*uint32)(at)
			if f == 0 {
				continue
			}
			if o.code == opIPv4 {
				f = mathbits.ReverseBytes32(f)
			}
			*(*uint64)(unsafe.Add(out, n)) = o.tag
			n += int(o.tagLen)
			*(*uint32)(unsafe.Add(out, n)) = f
			n += 4
			continue
		case opFixed64:
			f := *(*uint64)(at)
			if f == 0 {
				continue
			}
			*(*uint64)(unsafe.Add(out, n)) = o.tag
			n += int(o.tagLen)
			*(*uint64)(unsafe.Add(out, n)) = f
			n += 8
			continue
		case opKtime, opBoottime:
			f := *(*uint64)(at)
			if f == 0 {
				continue
			}
			*(*uint64)(unsafe.Add(out, n)) = o.tag
			n += int(o.tagLen)
			*(*uint64)(unsafe.Add(out, n)) = e.nanoseconds(o.code, f)
			n += 8
			continue
		case opBytes16:
			low, high := *(*uint64)(at), *(*uint64)(unsafe.Add(at, 8))
			size := 16 - mathbits.LeadingZeros64(high)/8
			if high == 0 {
				if low == 0 {
					continue
				}
				size = 8 - mathbits.LeadingZeros64(low)/8
			}
			*(*uint64)(unsafe.Add(out, n)) = o.tag
			n += int(o.tagLen)
			*(*byte)(unsafe.Add(out, n)) = byte(size)
			*(*uint64)(unsafe.Add(out, n+1)) = low
			*(*uint64)(unsafe.Add(out, n+9)) = high
			n += 1 + size
			continue
		case opBytes:
			if size := trimmed(at, int(o.n)); size > 0 {
				n = putBytes(out, n, o, unsafe.Slice((*byte)(at), size))
			}
			continue
		case opMessages:
			n = e.messages(i, n, at)
			i = int(o.next) - 1
			continue
		case opGeneric:
			n = e.encodeGeneric(o, n, base)
			continue
		}
		if v == 0 {
			continue
		}
		*(*uint64)(unsafe.Add(out, n)) = o.tag
		n += int(o.tagLen)
		if v < 0x80 {
			*(*byte)(unsafe.Add(out, n)) = byte(v)
			n++
			continue
		}
		if v < 1<<56 {
			n += putWord(unsafe.Add(out, n), v)
			continue
		}
		n = putVarint(out, n, v)
	}
}

// nanoseconds converts a reading of a nanosecond clock to Unix nanoseconds. The fast path has no
// saturation.
func (e *encoding) nanoseconds(code opcode, reading uint64) uint64 {
	role, add := RoleKtime, e.times.Ktime
	if code == opBoottime {
		role, add = RoleBoottime, e.times.Boottime
	}
	ns := int64(reading) + add
	if int64(reading) < 0 || (int64(reading)^ns)&(add^ns) < 0 || ns == 0 {
		ns, _ = e.times.toWall(clock{role: role, size: 8}, reading)
	}
	return uint64(ns)
}

// messages encodes the array of messages of op i, whose first element is at base.
func (e *encoding) messages(i, n int, base unsafe.Pointer) int {
	o := &e.plan.ops[i]
	l := &e.plan.lists[o.n]
	count := trimmed(base, int(l.count)*int(l.stride))
	if count > 0 {
		count = (count-1)/int(l.stride) + 1
	}
	end := n
	for k := range count {
		element := unsafe.Add(base, k*int(l.stride))
		*(*uint64)(unsafe.Add(e.out, n)) = o.tag
		n += int(o.tagLen) + 1
		start := n
		if !zero(element, int(l.stride)) {
			n = e.run(i+1, n, element)
		}
		if n > start {
			n = closeLength(e.out, start, n)
			end = n
			continue
		}
		*(*byte)(unsafe.Add(e.out, n-1)) = 0
	}
	return end // without trailing empty elements
}

// closeMessage writes the length of a message that begins at start into the byte before it. It
// removes an empty message together with its tag.
func closeMessage(out unsafe.Pointer, start, n, tagLen int) int {
	if n == start {
		return start - 1 - tagLen
	}
	return closeLength(out, start, n)
}

// closeLength writes the length of the bytes from start on into the byte before them. It moves the
// bytes if the length needs more than one byte.
func closeLength(out unsafe.Pointer, start, n int) int {
	size := n - start
	if size < 0x80 {
		*(*byte)(unsafe.Add(out, start-1)) = byte(size)
		return n
	}
	more := (mathbits.Len(uint(size)) - 1) / 7
	all := unsafe.Slice((*byte)(out), n+more)
	copy(all[start+more:], all[start:n])
	putVarint(out, start-1, uint64(size))
	return n + more
}

// putWord writes v, which is below 1<<56, as a varint and returns its size. It writes 8 bytes
// without branches, because the sizes of counters and ports are hard to predict.
func putWord(p unsafe.Pointer, v uint64) int {
	size := (mathbits.Len64(v)*9 + 64) >> 6 // one seventh of the bits, rounded up
	v = v&0x0fffffff | v&0x00fffffff0000000<<4
	v = v&0x00003fff00003fff | v&0x0fffc0000fffc000<<2
	v = v&0x007f007f007f007f | v&0x3f803f803f803f80<<1
	*(*uint64)(p) = v | 0x8080808080808080&(1<<(8*(size-1)&63)-1)
	return size
}

func putVarint(out unsafe.Pointer, n int, v uint64) int {
	for v >= 0x80 {
		*(*byte)(unsafe.Add(out, n)) = byte(v) | 0x80
		v >>= 7
		n++
	}
	*(*byte)(unsafe.Add(out, n)) = byte(v)
	return n + 1
}

// putBytes writes a record of bytes.
func putBytes(out unsafe.Pointer, n int, o *op, b []byte) int {
	*(*uint64)(unsafe.Add(out, n)) = o.tag
	n = putVarint(out, n+int(o.tagLen), uint64(len(b)))
	copy(unsafe.Slice((*byte)(unsafe.Add(out, n)), len(b)), b)
	return n + len(b)
}
