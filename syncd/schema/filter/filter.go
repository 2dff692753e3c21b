// Package filter parses and evaluates conditions on the fields of entries: the language of --where.
package filter

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"mapsync/syncd/schema"
)

// Filter is a condition on a field of an entry, for example dport=443. It is safe for concurrent
// use.
type Filter struct {
	// Links translates the names of interfaces. It must be set before Match if a condition names an
	// interface. Without it no entry has an interface name.
	Links schema.Links

	field   schema.Path
	op      string
	operand operand
}

// operand is the value with which a field is compared.
type operand interface {
	// compare compares element i of field f of a message with the operand. ok is false if the two
	// have no order.
	compare(l schema.Links, f *schema.Field, message []byte, i int, t *schema.Times) (order int, ok bool)
	// keys returns the copies of a key with each content of the field that equals the operand, or none if these are too many.
	keys(l schema.Links, p *schema.Path, key []byte) [][]byte
}

// Parse parses a condition: a field, an operator and a value, for example saddr=10.0.0.0/8,
// state!=CT_CLOSED or nat.dport>=8080. The operators are = != < <= > >=. Addresses, enums, bools,
// bytes and interfaces support only = and !=. Parse searches the field in the key and in the
// value. If both have it, the filter must name it key.zone or value.zone. For a per-CPU map, the
// name refers to the field of each CPU. An array matches if any element meets the condition. With
// != it matches if all elements differ.
//
// The value has the text format of [mapsync/syncd/schema/export.Printer]. An address may be a
// prefix, a number may be hexadecimal with 0x, and an enum may be a number. Bytes are hexadecimal,
// with or without 0x. Char arrays are text, or hexadecimal with 0x. Trailing zeros of bytes may be
// omitted. A time is in RFC 3339 format, or 0 for unset.
//
// Errors name the field and the values with which it can be compared.
func Parse(s *schema.Schema, expr string) (*Filter, error) {
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
	path, err := s.Path(name)
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w", expr, err)
	}
	f.field = path
	field := path.Last()
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

// Match reports whether an entry meets the condition. If t is nil, a time differs from any other
// time. An entry shorter than its type matches no condition, and
// neither does one whose union has another member.
func (f *Filter) Match(key, value []byte, t *schema.Times) bool {
	data, ok := f.field.Half(key, value)
	if !ok || !f.field.Present(key, value) {
		return false
	}
	if f.op == "!=" {
		return !f.matchesAny(f.field.Fields, data, t)
	}
	return f.matchesAny(f.field.Fields, data, t)
}

// matchesAny reports whether any element meets the condition. It treats != like =.
func (f *Filter) matchesAny(path []*schema.Field, message []byte, t *schema.Times) bool {
	field := path[0]
	_, count := field.Elements()
	for i := range max(count, 1) {
		if len(path) > 1 {
			if f.matchesAny(path[1:], field.BytesAt(message, i), t) {
				return true
			}
			continue
		}
		if order, ok := f.operand.compare(f.Links, field, message, i, t); ok && f.satisfies(order) {
			return true
		}
	}
	return false
}

func (f *Filter) satisfies(order int) bool {
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

// Operands.

type unsignedOperand uint64

func (o unsignedOperand) compare(_ schema.Links, f *schema.Field, message []byte, i int, _ *schema.Times) (int, bool) {
	return cmp.Compare(f.NumberAt(message, i), uint64(o)), true
}

type signedOperand int64

func (o signedOperand) compare(_ schema.Links, f *schema.Field, message []byte, i int, _ *schema.Times) (int, bool) {
	return cmp.Compare(int64(f.NumberAt(message, i)), int64(o)), true
}

type boolOperand bool

func (o boolOperand) compare(_ schema.Links, f *schema.Field, message []byte, i int, _ *schema.Times) (int, bool) {
	if (f.NumberAt(message, i) != 0) == bool(o) {
		return 0, true
	}
	return 1, true
}

type floatOperand float64

func (o floatOperand) compare(_ schema.Links, f *schema.Field, message []byte, i int, _ *schema.Times) (int, bool) {
	v := schema.FloatOf(f, f.NumberAt(message, i))
	return cmp.Compare(v, float64(o)), v == v && o == o // NaN has no order
}

// timeOperand is Unix time in nanoseconds.
type timeOperand int64

func (o timeOperand) compare(_ schema.Links, f *schema.Field, message []byte, i int, t *schema.Times) (int, bool) {
	reading := f.NumberAt(message, i)
	if reading == 0 {
		return 0, false
	}
	unix, ok := schema.UnixOf(f, reading, t)
	return cmp.Compare(unix, int64(o)), ok
}

// nameOperand is the name of an interface, or what an id of another map means.
type nameOperand string

func (o nameOperand) compare(l schema.Links, f *schema.Field, message []byte, i int, _ *schema.Times) (int, bool) {
	index, names := f.NumberAt(message, i), schema.NamesOf(l, f)
	if names == nil || index > math.MaxUint32 {
		return 0, false
	}
	name, ok := names.Name(uint32(index))
	return strings.Compare(name, string(o)), ok
}

// maskedOperand is a list of alternatives. The bytes match if, under its mask, they equal one of
// the values.
type maskedOperand []struct{ value, mask []byte }

func (o maskedOperand) compare(_ schema.Links, f *schema.Field, message []byte, i int, _ *schema.Times) (int, bool) {
	b := f.BytesAt(message, i)
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
