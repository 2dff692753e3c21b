package schema

import (
	"math"
	"unsafe"
)

// The fields of struct bytes, one at a time and by their description: for people,
// and for filters. Whole entries go through Encoder and Decoder.

// address returns the size in bytes of one address of a field that holds addresses, 0
// for other fields.
func (f *Field) address() int {
	size := 0
	switch {
	case f.Roles&RoleIPv4 != 0:
		size = 4
	case f.Roles&RoleMAC != 0:
		size = 6
	case f.Roles&RoleIPv6 != 0:
		size = 16
	}
	if size == 0 || f.Bytes()%size != 0 {
		return 0
	}
	return size
}

// elements returns the size of an element in bytes and their number, negative when
// the field is no array. An address counts as one element, whatever it is made of.
func (f *Field) elements() (size, count int) {
	if a := f.address(); a > 0 {
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

// bytesAt returns element i of the field of a message.
func (f *Field) bytesAt(message []byte, i int) []byte {
	size, _ := f.elements()
	from := f.Offset + i*size
	return message[from : from+size : from+size]
}

// signed reports whether the field's numbers are.
func (f *Field) signed() bool {
	return f.Kind == KindSint || f.Kind == KindEnum && f.Enum.Signed
}

// numberAt returns element i of a numeric field of a message: sign extended if it is
// signed, in host order, the bits of a float.
func (f *Field) numberAt(message []byte, i int) uint64 {
	l := laneOf(f, i*f.Size)
	return l.load(unsafe.Pointer(&message[l.off : l.off+l.size][0]))
}

func floatOf(f *Field, bits uint64) float64 {
	if f.Size == 4 {
		return float64(math.Float32frombits(uint32(bits)))
	}
	return math.Float64frombits(bits)
}

// unixOf converts a reading of the clock that the field's role names to Unix
// nanoseconds. ok is false when t does not say how.
func unixOf(f *Field, reading uint64, t *Times) (ns int64, ok bool) {
	if t == nil {
		return 0, false
	}
	return t.toWall(clockOf(f), reading)
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// trimZeros returns b without the zeros at its end.
func trimZeros(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}
