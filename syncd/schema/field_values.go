package schema

import (
	"encoding/binary"
	"math"
	mathbits "math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file accesses fields of struct bytes one at a time, by their description. Printers and
// filters use it. Encoder and Decoder process whole entries.

// AddressSize returns the size in bytes of one address of a field that contains addresses, and 0
// for other fields.
func (f *Field) AddressSize() int {
	size := 0
	switch {
	case f.Roles&RoleIPv4 != 0:
		size = 4
	case f.Roles&RoleMAC != 0:
		size = 6
	case f.Roles&(RoleIPv6|RoleIP) != 0:
		size = 16
	}
	if size == 0 || f.Bytes()%size != 0 {
		return 0
	}
	return size
}

// IsIPv4In reports whether the field Family says that the address is IPv4. half is the half of an entry that has both
// fields. known is false if the field has no Family.
func (f *Field) IsIPv4In(half []byte) (ipv4, known bool) {
	if f.Family == nil || len(half) < f.Family.size {
		return false, false
	}
	switch f.Family.Number(half, 0) {
	case 0, unix.AF_INET, 4, unix.ETH_P_IP:
		return true, true
	}
	return false, true
}

// Elements returns the size of an element in bytes and the number of elements. The number is
// negative if the field is not an array. An address counts as one element, independently of its C
// type.
func (f *Field) Elements() (size, count int) {
	if a := f.AddressSize(); a > 0 {
		if f.Bytes() == a && (f.Count == 0 || f.Size != a) {
			return a, -1
		}
		return a, f.Bytes() / a
	}
	if f.Count == 0 {
		return f.Bytes(), -1
	}
	return f.Size, f.Count
}

// BytesAt returns element i of the field of a message. The result refers to message.
func (f *Field) BytesAt(message []byte, i int) []byte {
	size, _ := f.Elements()
	from := f.Offset + i*size
	return message[from : from+size : from+size]
}

// NumberAt returns element i of a numeric field of a message, in host order. A signed number is
// sign extended. A float is returned as its bits.
func (f *Field) NumberAt(message []byte, i int) uint64 {
	if f.BitSize > 0 {
		l := accessorOf(f, i*f.Size)
		return l.load(unsafe.Pointer(&message[l.off : l.off+l.size][0]))
	}
	var v uint64
	b := message[f.Offset+i*f.Size:][:f.Size]
	switch f.Size {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(binary.LittleEndian.Uint16(b))
	case 4:
		v = uint64(binary.LittleEndian.Uint32(b))
	default:
		v = binary.LittleEndian.Uint64(b)
	}
	unused := 64 - 8*f.Size
	if f.Swapped() {
		v = mathbits.ReverseBytes64(v) >> unused
	}
	if f.IsSigned() || f.Kind == KindTime && f.Signed {
		v = uint64(int64(v<<unused) >> unused)
	}
	return v
}

// FloatOf converts the bits of a number of a float field of 4 or 8 bytes.
func FloatOf(f *Field, bits uint64) float64 {
	if f.Size == 4 {
		return float64(math.Float32frombits(uint32(bits)))
	}
	return math.Float64frombits(bits)
}

// UnixOf converts a reading of the clock in the field's role to Unix nanoseconds. ok is false if t
// cannot convert it.
func UnixOf(f *Field, reading uint64, t *Times) (ns int64, ok bool) {
	if t == nil {
		return 0, false
	}
	return t.toWall(clockOf(f), reading)
}
