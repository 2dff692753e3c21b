package schema

import (
	"encoding/binary"
	mathbits "math/bits"
	"unsafe"
)

// This file and the codec's other files access struct bytes in place through unsafe pointers, with
// native loads. Struct bytes are those of the local kernel, and its hosts are little-endian. Three
// properties make this safe. Schema.Check ensures that each field is inside its message, and each
// message within its parent. Plans contain only offsets of checked schemas. Each call checks that
// the struct has the size of the plan. Bytes from the wire are not trusted: every length is
// compared with the number of remaining bytes.

// class is the wire encoding of a scalar.
type class uint8

const (
	classUint    class = iota // varint
	classSint                 // zigzag varint
	classEnum                 // varint of an int32
	classEnum64               // varint, for enums of 8 bytes
	classFixed32              // in host order
	classFixed64
	classTime      // sfixed64
	classLink      // string
	classReference // string
	classBytes     // bytes
	classMessage
	classUnion
)

// isRecord reports whether each element is a record of its own.
func (c class) isRecord() bool { return c == classLink || c == classReference || c == classBytes }

func classOf(f *Field) class {
	switch f.Kind {
	case KindSint:
		return classSint
	case KindEnum:
		if f.Size == 8 {
			return classEnum64
		}
		return classEnum
	case KindFloat:
		if f.Size == 4 {
			return classFixed32
		}
		return classFixed64
	case KindTime:
		return classTime
	case KindIfname:
		return classLink
	case KindReference:
		return classReference
	case KindBytes:
		return classBytes
	case KindMessage:
		return classMessage
	case KindUnion:
		return classUnion
	case KindUint:
		if f.IsIPv4() {
			return classFixed32
		}
	}
	return classUint
}

// fieldAccessor describes the layout of a scalar in memory.
type fieldAccessor struct {
	off      uint32 // offset from the base
	size     uint32 // bytes of an element; for a bitfield the bytes that it touches, 1 to 9
	bits     uint8  // width of an integer
	shift    uint8  // for a bitfield: its lowest bit within its first byte
	bitfield bool   // a bitfield
	swap     bool   // network byte order
	signed   bool
}

func accessorOf(f *Field, base int) fieldAccessor {
	l := fieldAccessor{
		off: uint32(base + f.Offset), size: uint32(f.Size), bits: uint8(min(f.Size, 8) * 8),
		swap: f.Swapped(), signed: f.IsSigned() || f.Kind == KindTime && f.Signed,
	}
	if f.BitSize > 0 {
		l.bitfield = true
		l.off += uint32(f.BitOffset / 8)
		l.shift = uint8(f.BitOffset % 8)
		l.bits = uint8(f.BitSize)
		l.size = (uint32(l.shift) + uint32(l.bits) + 7) / 8
	}
	return l
}

func ptrAt(b []byte, off int) unsafe.Pointer { return unsafe.Pointer(&b[off]) }

// load returns the integer at p in host order, sign extended if it is signed.
func (l *fieldAccessor) load(p unsafe.Pointer) uint64 {
	var v uint64
	switch {
	case l.bitfield:
		v = l.loadBits(p)
	case l.size == 1:
		v = uint64(*(*uint8)(p))
	case l.size == 2:
		v = uint64(*(*uint16)(p))
	case l.size == 4:
		v = uint64(*(*uint32)(p))
	default:
		v = *(*uint64)(p)
	}
	if l.swap {
		v = mathbits.ReverseBytes64(v) >> (64 - l.bits)
	}
	if l.signed {
		unused := 64 - l.bits
		v = uint64(int64(v<<unused) >> unused)
	}
	return v
}

func (l *fieldAccessor) loadBits(p unsafe.Pointer) uint64 {
	var all [16]byte
	copy(all[:], unsafe.Slice((*byte)(p), l.size))
	v := binary.LittleEndian.Uint64(all[:])>>l.shift | binary.LittleEndian.Uint64(all[8:])<<(64-l.shift)
	return v & (1<<l.bits - 1)
}

// store writes v to p. It truncates v to the width of the field.
func (l *fieldAccessor) store(p unsafe.Pointer, v uint64) {
	if l.swap {
		v = mathbits.ReverseBytes64(v) >> (64 - l.bits)
	}
	switch {
	case l.bitfield:
		l.storeBits(p, v)
	case l.size == 1:
		*(*uint8)(p) = uint8(v)
	case l.size == 2:
		*(*uint16)(p) = uint16(v)
	case l.size == 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}

func (l *fieldAccessor) storeBits(p unsafe.Pointer, v uint64) {
	mask := uint64(1)<<l.bits - 1
	v &= mask
	for i := range l.size {
		b := (*byte)(unsafe.Add(p, i))
		if i < 8 {
			at := 8 * i
			*b = *b&^byte(mask<<l.shift>>at) | byte(v<<l.shift>>at)
		} else {
			*b = *b&^byte(mask>>(64-l.shift)) | byte(v>>(64-l.shift))
		}
	}
}

// fits reports whether the field can contain v. If signed is true, v is sign extended.
func (l *fieldAccessor) fits(v uint64, signed bool) bool {
	if signed && int64(v) < 0 {
		return l.signed && int64(v) >= -1<<(l.bits-1)
	}
	if l.signed {
		return v < 1<<(l.bits-1)
	}
	return l.bits == 64 || v < 1<<l.bits
}

// maxWireSize returns the maximum wire size of an element in bytes, without tag and length.
func (l *fieldAccessor) maxWireSize(c class) int {
	switch c {
	case classFixed32:
		return 4
	case classFixed64, classTime:
		return 8
	case classLink:
		return maxLink
	case classReference:
		return MaxMeaning
	case classBytes:
		return int(l.size)
	case classEnum, classEnum64:
		if l.signed || c == classEnum && l.bits == 32 {
			return 10
		}
	}
	return (int(l.bits) + 6) / 7
}

// code returns the op code of a field that differs between sender and receiver only in its offset,
// and opGeneric for other fields.
func (x *genericField) code() opcode {
	from, to := &x.from, &x.to
	if x.drop || x.sum || x.count > 0 {
		return opGeneric
	}
	same := from.bits == to.bits && from.signed == to.signed && (x.class != classBytes || from.size == to.size)
	if !same && x.class != classTime {
		return opGeneric
	}
	switch x.class {
	case classUint:
		return to.unsigned()
	case classSint:
		switch {
		case to.bitfield || to.swap:
		case to.size == 4:
			return opS32
		case to.size == 8:
			return opS64
		}
	case classEnum:
		switch {
		case to.size == 4 && !to.bitfield && !to.swap:
			return opEnum32
		case !to.signed && to.bits < 32:
			return to.unsigned()
		}
	case classEnum64:
		if to.size == 8 && !to.bitfield {
			return to.unsigned()
		}
	case classFixed32:
		if to.swap {
			return opIPv4
		}
		return opFixed32
	case classFixed64:
		return opFixed64
	case classTime:
		switch {
		case to.size != 8 || to.signed:
		case x.clock.role == RoleKtime:
			return opKtime
		case x.clock.role == RoleBoottime:
			return opBoottime
		}
	case classBytes:
		if to.size == 16 {
			return opBytes16
		}
		return opBytes
	}
	return opGeneric
}

// unsigned returns the op code of an unsigned integer.
func (l *fieldAccessor) unsigned() opcode {
	switch {
	case l.bitfield:
		return opBits
	case l.size == 1:
		return opU8
	case l.size == 2 && l.swap:
		return opBE16
	case l.size == 2:
		return opU16
	case l.size == 4 && l.swap:
		return opBE32
	case l.size == 4:
		return opU32
	case l.swap:
		return opBE64
	}
	return opU64
}

// packed reports whether all elements of an array are in one record.
func (x *genericField) packed() bool {
	return x.count > 0 && !x.class.isRecord()
}

func (x *genericField) wireType() uint64 {
	switch {
	case x.packed():
		return 2
	case x.class == classFixed32:
		return 5
	case x.class == classFixed64, x.class == classTime:
		return 1
	case x.class.isRecord():
		return 2
	}
	return 0
}

// maxWireSize returns the maximum wire size of the field in bytes.
func (x *genericField) maxWireSize(tagLen uint8) int {
	element := x.from.maxWireSize(x.class)
	switch {
	case x.packed():
		return wireSize(tagLen, int(x.count)*element)
	case x.wireType() == 2:
		return max(1, int(x.count)) * wireSize(tagLen, element)
	}
	return int(tagLen) + element
}

// zero reports whether n bytes at p are zero.
func zero(p unsafe.Pointer, n int) bool {
	at := 0
	for ; at+8 <= n; at += 8 {
		if *(*uint64)(unsafe.Add(p, at)) != 0 {
			return false
		}
	}
	for ; at < n; at++ {
		if *(*byte)(unsafe.Add(p, at)) != 0 {
			return false
		}
	}
	return true
}

// trimmed returns the number of bytes at p, out of n, without trailing zeros.
func trimmed(p unsafe.Pointer, n int) int {
	for n >= 8 {
		if v := *(*uint64)(unsafe.Add(p, n-8)); v != 0 {
			return n - mathbits.LeadingZeros64(v)/8
		}
		n -= 8
	}
	for n > 0 && *(*byte)(unsafe.Add(p, n-1)) == 0 {
		n--
	}
	return n
}
