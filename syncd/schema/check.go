package schema

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mapsync/printable"
)

// Limits of schemas that peers send.
const (
	maxName   = 128   // bytes of a field's name
	maxText   = 4096  // bytes of a text for display
	maxValues = 65536 // names of an enum
	maxLink   = 15    // bytes of an interface name: IFNAMSIZ with its terminating zero
)

// Check validates a schema from any source, including a malicious peer. Its errors wrap [ErrType]
// and name the field.
func (s *Schema) Check() error {
	if !isText(s.Map, maxName) {
		return fmt.Errorf("%w: the name of the map is not text", ErrType)
	}
	if s.Key == nil || s.Value == nil {
		return fmt.Errorf("%w: no type of key or value", ErrType)
	}
	key := checker{key: true}
	if err := key.half(s.Key); err != nil {
		return fmt.Errorf("%w: key%w", ErrType, err)
	}
	var value checker
	if err := value.half(s.Value); err != nil {
		return fmt.Errorf("%w: value%w", ErrType, err)
	}
	return s.checkCPUs()
}

func (s *Schema) checkCPUs() error {
	if s.CPUs == 0 {
		return nil
	}
	f := s.Value.Fields
	if len(f) != 1 || f[0].Kind != KindMessage || f[0].Count != s.CPUs || f[0].Size%8 != 0 || !f[0].Sent() {
		return fmt.Errorf("%w: value is not an array of %d CPUs", ErrType, s.CPUs)
	}
	return nil
}

// checker checks one half of an entry. Its errors begin with the path of a field.
type checker struct {
	key    bool
	fields int // includes those of each element of arrays of messages
	unions int
	arrays int // around the current message
}

func (c *checker) half(m *Message) error {
	if m.Size == 0 {
		return errors.New(" has no size")
	}
	return c.message(m, "", 0, 1)
}

func (c *checker) message(m *Message, path string, depth, times int) error {
	switch {
	case m == nil:
		return fmt.Errorf("%s has no type", path)
	case depth > MaxDepth:
		return fmt.Errorf("%s is nested deeper than %d", path, MaxDepth)
	case m.Size < 0 || m.Size > MaxSize:
		return fmt.Errorf("%s takes %d bytes, at most %d can be", path, m.Size, MaxSize)
	case !isText(m.Name, maxText):
		return fmt.Errorf("%s has a type whose name is not text", path)
	case len(m.Fields) > MaxFields:
		return fmt.Errorf("%s has more than %d fields", path, MaxFields)
	}
	c.fields += max(len(m.Fields), 1) * times // empty elements cost time too
	if c.fields > MaxFields {
		return fmt.Errorf(" has more than %d fields", MaxFields)
	}
	if err := c.messageFields(m, path, depth, times); err != nil {
		return err
	}
	return checkOverlap(m, path)
}

// messageFields checks each field of a message, and the messages of its fields.
func (c *checker) messageFields(m *Message, path string, depth, times int) error {
	names := make(map[string]bool, len(m.Fields))
	numbers := make(map[int]bool, len(m.Fields))
	for i := range m.Fields {
		f := &m.Fields[i]
		if !isIdentifier(f.Name) {
			return fmt.Errorf("%s has a field with the name %.40q", path, f.Name)
		}
		at := path + sep(path) + f.Name
		if names[f.Name] || f.Sent() && numbers[f.Number] {
			return fmt.Errorf("%s is not the only one of its name and number", at)
		}
		names[f.Name], numbers[f.Number] = true, f.Sent() || numbers[f.Number]
		if why := c.field(f, m.Size); why != "" {
			return fmt.Errorf("%s %s", at, why)
		}
		var err error
		switch f.Kind {
		case KindMessage:
			err = c.nested(f, at, depth, times)
		case KindUnion:
			err = c.members(f, at, depth, times)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nested checks the message of a field.
func (c *checker) nested(f *Field, at string, depth, times int) error {
	if f.Count > 0 {
		c.arrays++
		defer func() { c.arrays-- }()
	}
	if err := c.message(f.Message, at, depth+1, times*max(f.Count, 1)); err != nil {
		return err
	}
	if f.Message.Size > f.Size {
		return fmt.Errorf("%s is smaller than its type", at)
	}
	return nil
}

// members checks the members of a union: messages at the same bytes.
func (c *checker) members(f *Field, at string, depth, times int) error {
	m := f.Message
	if c.key || c.arrays > 0 || len(m.Fields) == 0 || len(m.Fields) > maxMembers || m.Size != f.Size || !isText(f.When, maxText) || !isText(m.Name, maxText) {
		return fmt.Errorf("%s is not a valid union", at)
	}
	if c.unions++; c.unions > maxUnions || depth > MaxDepth {
		return fmt.Errorf("%s is one of too many unions", at)
	}
	numbers := make(map[int]bool, len(m.Fields))
	for i := range m.Fields {
		k := &m.Fields[i]
		number := k.Number
		if k.Kind != KindMessage || k.Message == nil || k.Count != 0 || k.Offset != 0 || k.Size != f.Size || !k.Sent() || numbers[number] ||
			i > 0 && m.Fields[i-1].Number > number || !isIdentifier(k.Name) {
			return fmt.Errorf("%s is not a valid union", at)
		}
		numbers[number] = true
		if why := c.field(k, m.Size); why != "" {
			return fmt.Errorf("%s.%s %s", at, k.Name, why)
		}
		if err := c.nested(k, at+"."+k.Name, depth+1, times); err != nil {
			return err
		}
	}
	return nil
}

func sep(path string) string {
	if path == "" {
		return " "
	}
	return "."
}

// field returns the error of a field, or "" if it is valid.
func (c *checker) field(f *Field, room int) string {
	switch {
	case f.Sent() && (f.Number < 1 || f.Number > MaxNumber || f.Number >= 19000 && f.Number <= 19999):
		return fmt.Sprintf("has the number %d, which protobuf does not allow", f.Number)
	case f.Offset < 0 || f.Size < 0 || f.Count < 0 || f.BitOffset < 0 || f.BitSize < 0 ||
		f.Offset > room || f.Size > MaxSize || f.Count > MaxSize || f.BitOffset > 8*MaxSize || f.BitSize > 64 ||
		f.Offset+f.Bytes() > room:
		return "is outside of its type"
	case f.BitSize > 8*f.Size || f.BitSize > 0 && f.Count > 0:
		return "is not a valid bitfield"
	case !isText(f.Type, maxText) || !isText(f.Doc, maxText):
		return "has a type or remarks that are not text"
	case f.Default != nil && len(f.Default) != f.Bytes():
		return fmt.Sprintf("has a default of %d bytes, but takes %d", len(f.Default), f.Bytes())
	case f.Message != nil && f.Kind != KindMessage && f.Kind != KindUnion:
		return "has the type of a message, but another kind"
	case c.key && (!f.Sent() || f.Kind == KindTime):
		return "belongs to a key, but has no value that is the same everywhere"
	}
	return checkKind(f)
}

func checkKind(f *Field) string {
	number := f.Size == 1 || f.Size == 2 || f.Size == 4 || f.Size == 8
	bitfield := f.BitSize > 0
	ok := false
	switch f.Kind {
	case KindNone:
		ok = true
	case KindUint, KindSint, KindBool:
		ok = number
	case KindEnum:
		ok = number && f.Enum != nil && checkEnum(f.Enum)
	case KindFloat:
		ok = number && f.Size >= 4 && !bitfield
	case KindBytes:
		ok = f.Size > 0 && !bitfield
	case KindMessage:
		ok = !bitfield
	case KindTime:
		role := f.Roles & RoleTime
		ok = number && f.Size >= 4 && !bitfield && role != 0 && role&(role-1) == 0
	case KindIfname:
		ok = number && !bitfield
	case KindReference:
		ok = number && !bitfield && f.Count == 0
	case KindUnion:
		ok = !bitfield && f.Count == 0 && f.Message != nil
	}
	if !ok {
		return fmt.Sprintf("of %d bytes cannot be of its kind %d", f.Size, f.Kind)
	}
	return ""
}

func checkEnum(e *Enum) bool {
	return isText(e.Name, maxText) && len(e.Values) <= maxValues &&
		!slices.ContainsFunc(e.Values, func(v EnumValue) bool { return !isText(v.Name, maxText) })
}

// checkOverlap returns an error if fields share bits, because the decoded value would depend on
// their order.
func checkOverlap(m *Message, path string) error {
	order := make([]*Field, len(m.Fields))
	for i := range m.Fields {
		order[i] = &m.Fields[i]
	}
	slices.SortFunc(order, func(a, b *Field) int {
		return cmp.Or(cmp.Compare(a.FirstBit(), b.FirstBit()), cmp.Compare(a.EndBit(), b.EndBit()))
	})
	for i, f := range order {
		if i > 0 && f.FirstBit() < order[i-1].EndBit() {
			return fmt.Errorf("%s%s%s overlaps %s", path, sep(path), f.Name, order[i-1].Name)
		}
	}
	return nil
}

func isIdentifier(s string) bool {
	for i, c := range s {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// isText reports whether s can be displayed in a line of a terminal and has at most most bytes.
func isText(s string, most int) bool { return len(s) <= most && printable.Is(s) }
