package schema

import (
	"bytes"
	"slices"
)

// Equal reports whether entries of a and b have the same wire format and the same layout in memory.
// It compares the names of fields, because layouts are matched by them. It ignores names of types,
// remarks, defaults, the names of enum values, and roles that only affect display.
func Equal(a, b *Schema) bool {
	return a.Opaque == b.Opaque && a.CPUs == b.CPUs &&
		equalMessages(a.Key, b.Key) && equalMessages(a.Value, b.Value)
}

func equalMessages(a, b *Message) bool {
	return a == b || a.Size == b.Size && slices.EqualFunc(a.Fields, b.Fields, equalFields)
}

func equalFields(a, b Field) bool {
	if a.Name != b.Name || a.Number != b.Number || a.Offset != b.Offset || a.Size != b.Size || a.Count != b.Count ||
		a.BitOffset != b.BitOffset || a.BitSize != b.BitSize || a.Kind != b.Kind ||
		(a.Roles^b.Roles)&wireRoles != 0 || a.IsIPv4() != b.IsIPv4() {
		return false
	}
	switch a.Kind {
	case KindMessage:
		return equalMessages(a.Message, b.Message)
	case KindUnion:
		return a.When == b.When && equalMessages(a.Message, b.Message)
	case KindEnum:
		return a.Enum.Signed == b.Enum.Signed
	case KindTime:
		return a.Signed == b.Signed
	}
	return true
}

// Identical reports whether a and b are Equal, and this node also treats their fields alike: the
// same fields are volatile, are sums, have the same defaults, and refer to the same maps.
func Identical(a, b *Schema) bool {
	return Equal(a, b) && treatedAlike(a.Key, b.Key) && treatedAlike(a.Value, b.Value)
}

// treatedAlike compares two messages that are equal by equalMessages.
func treatedAlike(a, b *Message) bool {
	return a == b || slices.EqualFunc(a.Fields, b.Fields, func(a, b Field) bool {
		return (a.Roles^b.Roles)&(RoleVolatile|RoleSum) == 0 && bytes.Equal(a.Default, b.Default) && a.VolatileBits == b.VolatileBits && a.Reference == b.Reference &&
			(a.Message == nil || treatedAlike(a.Message, b.Message))
	})
}
