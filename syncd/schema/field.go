package schema

import "strings"

// This file contains the properties of a field that follow from its description.

// Bytes returns the size of the field in its Message in bytes, all elements included. For a
// bitfield it counts the bytes that its bits touch.
func (f *Field) Bytes() int {
	if f.BitSize > 0 {
		return (f.BitOffset + f.BitSize + 7) / 8
	}
	return f.Size * max(f.Count, 1)
}

// FirstBit returns the position of the field's lowest bit, in bits from the beginning of its
// Message.
func (f *Field) FirstBit() int { return f.Offset*8 + f.BitOffset }

// EndBit returns the position after the field's last bit, all elements included, in bits from the
// beginning of its Message.
func (f *Field) EndBit() int {
	if f.BitSize > 0 {
		return f.FirstBit() + f.BitSize
	}
	return (f.Offset + f.Bytes()) * 8
}

// Sent reports whether the field is sent.
func (f *Field) Sent() bool { return f.Kind != KindNone && f.Roles&RoleLocal == 0 }

// WireType returns the protobuf type of a field that is sent, for example "uint32". It returns
// "message" for KindMessage, and "enum" for an enum of at most 4 bytes. For an array it returns the
// type of an element.
func (f *Field) WireType() string {
	wide := "32"
	if f.Size > 4 {
		wide = "64"
	}
	switch f.Kind {
	case KindSint:
		return "sint" + wide
	case KindBool:
		return "bool"
	case KindEnum:
		switch {
		case f.Size <= 4:
			return "enum"
		case f.Enum.Signed:
			return "int64"
		}
		return "uint64"
	case KindFloat:
		if f.Size > 4 {
			return "double"
		}
		return "float"
	case KindBytes:
		return "bytes"
	case KindMessage, KindUnion:
		return "message"
	case KindTime:
		return "sfixed64"
	case KindIfname, KindReference:
		return "string"
	}
	if f.IsIPv4() {
		return "fixed32"
	}
	return "uint" + wide
}

// IsIPv4 reports whether the field consists of IPv4 addresses as integers. They are large numbers,
// so four bytes on the wire are shorter than a varint.
func (f *Field) IsIPv4() bool {
	return f.Kind == KindUint && f.Roles&RoleIPv4 != 0 && f.Size == 4 && f.BitSize == 0
}

// IsSigned reports whether the field's numbers are signed.
func (f *Field) IsSigned() bool {
	return f.Kind == KindSint || f.Kind == KindEnum && f.Enum.Signed
}

// isNumber reports whether the field is an integer, a bool or an enum that is sent as such.
func (f *Field) isNumber() bool {
	return f.Kind == KindUint || f.Kind == KindSint || f.Kind == KindBool || f.Kind == KindEnum
}

// IsUntyped reports whether the field is bytes of a map without types.
func (f *Field) IsUntyped() bool { return f.Kind == KindBytes && f.decl == nil }

// IsText reports whether the field is an array of char.
func (f *Field) IsText() bool {
	base, _, array := strings.Cut(f.Type, "[")
	return f.Kind == KindBytes && array && strings.TrimSpace(strings.TrimPrefix(base, "const ")) == "char"
}

// Swapped reports whether the field's integers are in network byte order in memory.
func (f *Field) Swapped() bool {
	switch f.Kind {
	case KindUint, KindSint, KindBool, KindEnum:
		return f.BitSize == 0 && f.Size > 1 && (f.Roles&RoleBE != 0 || f.IsIPv4())
	}
	return false
}
