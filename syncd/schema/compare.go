package schema

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// wireRoles are the roles that affect the bytes in memory or on the wire.
const wireRoles = RoleTime | RoleIfindex | RoleLocal | RoleBE

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
	case KindEnum:
		return a.Enum.Signed == b.Enum.Signed
	case KindTime:
		return a.Signed == b.Signed
	}
	return true
}

// Identical reports whether a and b are Equal, and this node also treats their fields alike: the
// same fields are volatile, are sums, and have the same defaults.
func Identical(a, b *Schema) bool {
	return Equal(a, b) && treatedAlike(a.Key, b.Key) && treatedAlike(a.Value, b.Value)
}

// treatedAlike compares two messages that are equal by equalMessages.
func treatedAlike(a, b *Message) bool {
	return a == b || slices.EqualFunc(a.Fields, b.Fields, func(a, b Field) bool {
		return (a.Roles^b.Roles)&(RoleVolatile|RoleSum) == 0 && bytes.Equal(a.Default, b.Default) &&
			(a.Kind != KindMessage || treatedAlike(a.Message, b.Message))
	})
}

// maxProblems is the maximum number of fields in an error. A peer's schema may have any number of
// fields.
const maxProblems = 64

// incompatible returns an error that lists the problems, or nil without problems.
func incompatible(name string, problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	more := ""
	if n := len(problems) - maxProblems; n > 0 {
		problems = problems[:maxProblems]
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Errorf("%w: map %s: %s%s", ErrIncompatible, name, strings.Join(problems, "; "), more)
}

// compareKeys reports key fields that only one side has. Without such a field, a key could become a
// different key.
func (c *compiler) compareKeys(from, to *Message, path string) {
	sender := fieldsByName(from)
	for i := range to.Fields {
		if sender[to.Fields[i].Name] == nil {
			c.problem(path+to.Fields[i].Name, " is missing at the sender")
		}
	}
	here := c.byName(to)
	for i := range from.Fields {
		if here[from.Fields[i].Name] == nil {
			c.problem(path+from.Fields[i].Name, " is missing here")
		}
	}
}

// mismatch returns the reason why a field of the sender cannot be stored in to, or "" if it can.
// Whether a value fits is checked when it is decoded.
func mismatch(from, to *Field) string {
	a, b := classOf(from), classOf(to)
	enums := from.Kind == KindEnum && to.Kind == KindEnum
	if (a == b || enums) && (from.Count > 0) == (to.Count > 0) {
		return ""
	}
	return fmt.Sprintf(": %s here, %s at the sender", to.describe(), from.describe())
}

// describe returns the field's wire type in terms of C and protobuf.
func (f *Field) describe() string {
	text := ""
	switch f.Kind {
	case KindUint:
		text = fmt.Sprintf("uint%d", f.Size*8)
		if f.IsIPv4() {
			text = "IPv4 address"
		}
	case KindSint:
		text = fmt.Sprintf("int%d", f.Size*8)
	case KindBool:
		text = "bool"
	case KindEnum:
		text = "enum"
	case KindFloat:
		text = "float"
		if f.Size == 8 {
			text = "double"
		}
	case KindBytes:
		text = fmt.Sprintf("%d bytes", f.Size)
	case KindMessage:
		text = "message"
	case KindTime:
		text = "time"
	case KindIfname:
		text = "interface"
	}
	if f.Count > 0 {
		return fmt.Sprintf("array of %d × %s", f.Count, text)
	}
	return text
}

// compareShapes compares the schemas as a whole. fold is true if values must be folded, because
// they have a different number of CPUs.
func compareShapes(remote, local *Schema) (fold bool, problems []string) {
	switch {
	case remote.Opaque != local.Opaque:
		problems = append(problems, "one side has no BTF: its entries are bytes without a type")
	case remote.Opaque:
		if a, b := local.Key.Size, remote.Key.Size; a != b {
			problems = append(problems, fmt.Sprintf("key: %d bytes here, %d at the sender", a, b))
		}
		if a, b := local.Value.Size, remote.Value.Size; a != b {
			problems = append(problems, fmt.Sprintf("value: %d bytes here, %d at the sender", a, b))
		}
	case (remote.CPUs > 0) != (local.CPUs > 0):
		problems = append(problems, "one side has a value for each CPU, the other has not")
	}
	return remote.CPUs != local.CPUs, problems
}
