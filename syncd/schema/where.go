package schema

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Filter is a condition on a field of an entry, such as dport=443. It may be
// used by several goroutines at once.
type Filter struct {
	// Links tells the names of interfaces. It must be set before Match where
	// a condition names an interface; without it no entry has one.
	Links Links

	key     bool
	size    int      // of the key or value in bytes
	path    []*Field // from the outermost to the one that is compared
	op      string
	operand operand
}

// operand is what a field is compared with.
type operand interface {
	// compare compares element i of field f of a message with the operand. ok is
	// false when they have no order.
	compare(l Links, f *Field, message []byte, i int, t *Times) (order int, ok bool)
}

// ParseFilter reads a condition: a field, an operator, and a value, such as
// saddr=10.0.0.0/8, state!=CT_CLOSED or nat.dport>=8080. The operators are = != < <= >
// >=; only = and != apply to addresses, enums, bools, bytes and interfaces. A field is
// looked for in the key and in the value; what both have is told apart as key.zone and
// value.zone. Of a per-CPU map, the field of each CPU is meant. Of an array, some element must meet the condition, and != says that
// none is equal.
//
// A value is written as [Printer] writes it as text. Addresses may be prefixes, numbers hexadecimal
// with 0x, enums numbers; bytes are hex, 0x before it or not, and char arrays text
// or hex with 0x. Zeros at the end of bytes may be left out. A time is RFC 3339, or 0 for none.
//
// The errors name the field, and what it can be compared with.
func ParseFilter(s *Schema, expr string) (*Filter, error) {
	at := strings.IndexAny(expr, "=!<>")
	if at < 0 {
		return nil, fmt.Errorf("filter %q has no operator: write FIELD=VALUE, or one of != < <= > >=", expr)
	}
	op := expr[at : at+1]
	if rest := expr[at+1:]; op != "=" && strings.HasPrefix(rest, "=") {
		op += "="
	}
	if op == "!" {
		return nil, fmt.Errorf("filter %q has no operator: != is one, ! is not", expr)
	}
	f := &Filter{op: op}
	name := strings.TrimSpace(expr[:at])
	if err := f.find(s, name); err != nil {
		return nil, fmt.Errorf("filter %q: %w", expr, err)
	}
	field := f.path[len(f.path)-1]
	parsed, ordered, err := parseOperand(field, strings.TrimSpace(expr[at+len(op):]))
	if err != nil {
		return nil, fmt.Errorf("filter %q: field %s (%s) is compared with %w", expr, name, field.Type, err)
	}
	if !ordered && op != "=" && op != "!=" {
		return nil, fmt.Errorf("filter %q: field %s (%s) has no order: use = or !=", expr, name, field.Type)
	}
	f.operand = parsed
	return f, nil
}

// find resolves a field's name.
func (f *Filter) find(s *Schema, name string) error {
	for _, half := range []struct {
		prefix string
		m      *Message
	}{{"key.", s.Key}, {"value.", s.Value}} {
		if rest, ok := strings.CutPrefix(name, half.prefix); ok {
			path, err := s.lookup(half.m, rest)
			if !errors.Is(err, errNoField) {
				f.key, f.size, f.path = half.m == s.Key, half.m.Size, path
				return err
			}
		}
	}
	inKey, keyErr := s.lookup(s.Key, name)
	inValue, valueErr := s.lookup(s.Value, name)
	switch {
	case keyErr == nil && valueErr == nil:
		return fmt.Errorf("both key and value have a field %s: write key.%s or value.%s", name, name, name)
	case keyErr == nil:
		f.key, f.size, f.path = true, s.Key.Size, inKey
	case valueErr == nil:
		f.size, f.path = s.Value.Size, inValue
	case !errors.Is(keyErr, errNoField):
		return keyErr
	case !errors.Is(valueErr, errNoField):
		return valueErr
	default:
		return fmt.Errorf("no field %q; there are %s", name,
			strings.Join(append(namesOf(s.Key, "key."), namesOf(s.Value, "value.")...), ", "))
	}
	return nil
}

var errNoField = errors.New("no such field")

// lookup finds the fields of a path within a key or value. The field cpu of a per-CPU
// map's value need not be named.
func (s *Schema) lookup(m *Message, name string) (path []*Field, err error) {
	path, err = lookup(m, name)
	if errors.Is(err, errNoField) && s.CPUs > 0 && m == s.Value {
		path, err = lookup(m.Fields[0].Message, name)
		path = append([]*Field{&m.Fields[0]}, path...)
	}
	return path, err
}

// lookup finds the fields of a path within a message.
func lookup(m *Message, name string) (path []*Field, err error) {
	for part := range strings.SplitSeq(name, ".") {
		if m == nil {
			return nil, errNoField
		}
		i := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Name == part })
		if i < 0 {
			return nil, errNoField
		}
		path = append(path, &m.Fields[i])
		m = m.Fields[i].Message
	}
	last := path[len(path)-1]
	switch last.Kind {
	case KindMessage:
		return nil, fmt.Errorf("field %s is a struct: choose one of %s", name, strings.Join(namesOf(last.Message, name+"."), ", "))
	case KindNone:
		return nil, fmt.Errorf("field %s (%s) cannot be compared: it is the kernel's or a pointer", name, last.Type)
	}
	return path, nil
}

// namesOf returns the names of the fields that a filter may name.
func namesOf(m *Message, prefix string) []string {
	var names []string
	for i := range m.Fields {
		switch f := &m.Fields[i]; f.Kind {
		case KindNone:
		case KindMessage:
			names = append(names, namesOf(f.Message, prefix+f.Name+".")...)
		default:
			names = append(names, prefix+f.Name)
		}
	}
	return names
}

// Match reports whether an entry meets the condition. With t nil, a time is equal to
// none. An entry too short for its type does not meet any.
func (f *Filter) Match(key, value []byte, t *Times) bool {
	data := value
	if f.key {
		data = key
	}
	if len(data) < f.size {
		return false
	}
	if f.op == "!=" {
		return !f.some(f.path, data, t)
	}
	return f.some(f.path, data, t)
}

// some reports whether some element meets the condition, = in place of !=.
func (f *Filter) some(path []*Field, message []byte, t *Times) bool {
	field := path[0]
	_, count := field.elements()
	for i := range max(count, 1) {
		if len(path) > 1 {
			if f.some(path[1:], field.bytesAt(message, i), t) {
				return true
			}
			continue
		}
		if order, ok := f.operand.compare(f.Links, field, message, i, t); ok && f.holds(order) {
			return true
		}
	}
	return false
}

func (f *Filter) holds(order int) bool {
	switch f.op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	}
	return order == 0
}

// The operands.

type unsignedOperand uint64

func (o unsignedOperand) compare(_ Links, f *Field, message []byte, i int, _ *Times) (int, bool) {
	return cmp.Compare(f.numberAt(message, i), uint64(o)), true
}

type signedOperand int64

func (o signedOperand) compare(_ Links, f *Field, message []byte, i int, _ *Times) (int, bool) {
	return cmp.Compare(int64(f.numberAt(message, i)), int64(o)), true
}

type boolOperand bool

func (o boolOperand) compare(_ Links, f *Field, message []byte, i int, _ *Times) (int, bool) {
	if (f.numberAt(message, i) != 0) == bool(o) {
		return 0, true
	}
	return 1, true
}

type floatOperand float64

func (o floatOperand) compare(_ Links, f *Field, message []byte, i int, _ *Times) (int, bool) {
	v := floatOf(f, f.numberAt(message, i))
	return cmp.Compare(v, float64(o)), v == v && o == o // not a number has no order
}

// timeOperand is Unix time in nanoseconds.
type timeOperand int64

func (o timeOperand) compare(_ Links, f *Field, message []byte, i int, t *Times) (int, bool) {
	reading := f.numberAt(message, i)
	if reading == 0 {
		return 0, false
	}
	unix, ok := unixOf(f, reading, t)
	return cmp.Compare(unix, int64(o)), ok
}

// ifnameOperand is the name of an interface.
type ifnameOperand string

func (o ifnameOperand) compare(l Links, f *Field, message []byte, i int, _ *Times) (int, bool) {
	index := f.numberAt(message, i)
	if l == nil || index > math.MaxUint32 {
		return 0, false
	}
	name, ok := l.Name(uint32(index))
	return strings.Compare(name, string(o)), ok
}

// maskedOperand are alternatives, of which one must be equal to the bytes under its
// mask.
type maskedOperand []struct{ value, mask []byte }

func (o maskedOperand) compare(_ Links, f *Field, message []byte, i int, _ *Times) (int, bool) {
	b := f.bytesAt(message, i)
	for _, alternative := range o {
		if equalMasked(b, alternative.value, alternative.mask) {
			return 0, true
		}
	}
	return 1, true
}

func equalMasked(b, value, mask []byte) bool {
	for i := range b {
		if b[i]&mask[i] != value[i] {
			return false
		}
	}
	return true
}
