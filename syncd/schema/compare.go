package schema

import (
	"fmt"
	"slices"
	"strings"
)

// wireRoles are the roles that affect the bytes in memory or on the wire.
const wireRoles = RoleTime | RoleIfindex | RoleLocal | RoleBE

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

// compareUnions reports unions with conditions that only one side has. The other side has their bytes in other fields.
func (c *compiler) compareUnions(from, to *Message, path string) {
	sender, here := fieldsByName(from), c.byName(to)
	for i := range to.Fields {
		if f := &to.Fields[i]; f.Kind == KindUnion && (sender[f.Name] == nil || sender[f.Name].Kind != KindUnion) {
			c.problem(path+f.Name, " has conditions here, and none at the sender: give both nodes the same conditions")
		}
	}
	for i := range from.Fields {
		if f := &from.Fields[i]; f.Kind == KindUnion && (here[f.Name] == nil || here[f.Name].Kind != KindUnion) {
			c.problem(path+f.Name, " has conditions at the sender, and none here: give both nodes the same conditions")
		}
	}
}

// mismatch returns the reason why a field of the sender cannot be stored in to, or "" if it can.
// Whether a value fits is checked when it is decoded.
func mismatch(from, to *Field) string {
	a, b := classOf(from), classOf(to)
	if from.Kind == KindReference && to.Kind == KindReference && from.ReferenceFields() != to.ReferenceFields() {
		return fmt.Sprintf(": reference to %.80q here, to %.80q at the sender: give both nodes the same setting", to.ReferenceFields(), from.ReferenceFields())
	}
	enums := from.Kind == KindEnum && to.Kind == KindEnum
	if (a == b || enums) && (from.Count > 0) == (to.Count > 0) {
		return ""
	}
	return fmt.Sprintf(": %s here, %s at the sender", to.describe(), from.describe())
}

// describe returns the field's wire type in terms of C and protobuf.
func (f *Field) describe() string {
	text := f.describeElement()
	if f.Count > 0 {
		return fmt.Sprintf("array of %d × %s", f.Count, text)
	}
	return text
}

// describeElement is describe for one element of an array.
func (f *Field) describeElement() string {
	switch f.Kind {
	case KindUint:
		if f.IsIPv4() {
			return "IPv4 address"
		}
		return fmt.Sprintf("uint%d", f.Size*8)
	case KindSint:
		return fmt.Sprintf("int%d", f.Size*8)
	case KindBool:
		return "bool"
	case KindEnum:
		return "enum"
	case KindFloat:
		if f.Size == 8 {
			return "double"
		}
		return "float"
	case KindBytes:
		return fmt.Sprintf("%d bytes", f.Size)
	case KindMessage:
		return "message"
	case KindUnion:
		return "union with conditions"
	case KindTime:
		return "time"
	case KindIfname:
		return "interface"
	case KindReference:
		return "reference"
	}
	return ""
}

// samePositions reports whether two messages without types have the same fields at the same positions.
func samePositions(a, b *Message) bool {
	return slices.EqualFunc(a.Fields, b.Fields, func(a, b Field) bool {
		if a.Kind == KindMessage && b.Kind == KindMessage { // the values of CPUs
			return samePositions(a.Message, b.Message)
		}
		return a.Name == b.Name && a.Offset == b.Offset && a.Bytes() == b.Bytes()
	})
}

// compareShapes compares the schemas as a whole. fold is true if values must be folded, because
// they have a different number of CPUs.
func compareShapes(remote, local *Schema) (fold bool, problems []string) {
	switch {
	case remote.Opaque != local.Opaque:
		problems = append(problems, "one side has no types, its entries are bytes: give both nodes the same settings schema and field")
	case remote.Opaque:
		if a, b := local.Key.Size, remote.Key.Size; a != b {
			problems = append(problems, fmt.Sprintf("key: %d bytes here, %d at the sender", a, b))
		}
		if a, b := local.Value.Size, remote.Value.Size; a != b {
			problems = append(problems, fmt.Sprintf("value: %d bytes here, %d at the sender", a, b))
		}
		if !samePositions(remote.Key, local.Key) || !samePositions(remote.Value, local.Value) {
			problems = append(problems, "the setting field defines other positions on the two nodes: give both nodes the same ones")
		}
	case (remote.CPUs > 0) != (local.CPUs > 0):
		problems = append(problems, "one side has a value for each CPU, the other has not")
	}
	return remote.CPUs != local.CPUs, problems
}
