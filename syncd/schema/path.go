package schema

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mapsync/syncd/similar"
)

// Path is the way to a field of an entry.
type Path struct {
	// Key is true if the field is in the key, and false if it is in the value.
	Key bool
	// Fields are the enclosing fields, the outermost one first, and the field itself.
	Fields []*Field

	size int // of the key or value, in bytes
}

// Last returns the field itself.
func (p *Path) Last() *Field { return p.Fields[len(p.Fields)-1] }

// Half returns the half of an entry that has the field. ok is false if it is shorter than its type.
func (p *Path) Half(key, value []byte) (half []byte, ok bool) {
	half = value
	if p.Key {
		half = key
	}
	return half, len(half) >= p.size
}

// Count returns the number of elements of the field: of an array, and of the same field in all enclosing arrays, as the
// CPUs of a per-CPU map.
func (p *Path) Count() int {
	n := 1
	for _, f := range p.Fields {
		_, count := f.Elements()
		n *= max(count, 1)
	}
	return n
}

// Number returns element i, below Count, of an integer field. half is the half of an entry that has the field, of its
// full size.
func (p *Path) Number(half []byte, i int) uint64 {
	below := p.Count()
	for _, f := range p.Fields[:len(p.Fields)-1] {
		_, count := f.Elements()
		below /= max(count, 1)
		half, i = f.BytesAt(half, i/below), i%below
	}
	return p.Last().NumberAt(half, i)
}

// Word returns the 8 bytes at an offset within the first element of a field of bytes, as a number.
func (p *Path) Word(half []byte, offset int) uint64 {
	return binary.LittleEndian.Uint64(p.Last().BytesAt(p.message(half), 0)[offset:])
}

// Sum returns the sum of all elements.
func (p *Path) Sum(half []byte) (sum uint64) {
	for i := range p.Count() {
		sum += p.Number(half, i)
	}
	return sum
}

// Path returns the path of a field by its name, for example dport or nat.dport. It searches the field in the key and in
// the value. If both have it, the name must begin with key. or value. The name may omit the field cpu of a per-CPU
// map's value. A struct and a field of KindNone have no path. Errors name the fields that exist.
func (s *Schema) Path(name string) (Path, error) {
	for _, half := range []struct {
		prefix string
		m      *Message
	}{{"key.", s.Key}, {"value.", s.Value}} {
		if rest, ok := strings.CutPrefix(name, half.prefix); ok {
			fields, err := s.fieldsOf(half.m, rest)
			if !errors.Is(err, errNoField) {
				return Path{half.m == s.Key, fields, half.m.Size}, err
			}
		}
	}
	inKey, keyErr := s.fieldsOf(s.Key, name)
	inValue, valueErr := s.fieldsOf(s.Value, name)
	switch {
	case keyErr == nil && valueErr == nil:
		return Path{}, fmt.Errorf("both key and value have a field %s: write key.%s or value.%s", name, name, name)
	case keyErr == nil:
		return Path{true, inKey, s.Key.Size}, nil
	case valueErr == nil:
		return Path{false, inValue, s.Value.Size}, nil
	case !errors.Is(keyErr, errNoField):
		return Path{}, keyErr
	case !errors.Is(valueErr, errNoField):
		return Path{}, valueErr
	}
	names := s.FieldNames()
	return Path{}, fmt.Errorf("unknown field %q; fields of this map: %s%s", name, strings.Join(names, ", "),
		similar.Hint(name, append(append(fieldNames(s.Key, ""), fieldNames(s.Value, "")...), names...)))
}

// FieldNames returns the names of the fields that have a path: first those of the key, with key., then those of the value,
// with value.
func (s *Schema) FieldNames() []string {
	return append(fieldNames(s.Key, "key."), fieldNames(s.Value, "value.")...)
}

var errNoField = errors.New("no such field")

// fieldsOf returns the fields of a path within a key or value. The path may omit the field cpu of a per-CPU map's
// value.
func (s *Schema) fieldsOf(m *Message, name string) (path []*Field, err error) {
	path, err = m.fieldsOf(name)
	if errors.Is(err, errNoField) && s.CPUs > 0 && m == s.Value {
		path, err = m.Fields[0].Message.fieldsOf(name)
		path = append([]*Field{&m.Fields[0]}, path...)
	}
	return path, err
}

func (m *Message) fieldsOf(name string) (path []*Field, err error) {
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
	if path = shortened(path); len(path) == 0 {
		return nil, errNoField
	}
	last := path[len(path)-1]
	switch last.Kind {
	case KindMessage, KindUnion:
		return nil, fmt.Errorf("field %s is a struct: choose one of %s", name, strings.Join(fieldNames(last.Message, name+"."), ", "))
	case KindNone:
		return nil, fmt.Errorf("field %s (%s) cannot be read: it is the kernel's or a pointer", name, last.Type)
	}
	return path, nil
}

// shortened appends the field of a union's member that is not a struct: it has the name of the member.
func shortened(path []*Field) []*Field {
	if n := len(path); n > 1 && path[n-2].Kind == KindUnion {
		if inner := path[n-1].Message.Fields; len(inner) > 0 && inner[0].Name == path[n-1].Name {
			path = append(path, &inner[0])
		}
	}
	return path
}

// Present reports whether an entry has the field: each union of the path has the member of the path.
func (p *Path) Present(key, value []byte) bool {
	for i, f := range p.Fields {
		if f.Kind == KindUnion && i+1 < len(p.Fields) && f.Member(key, value) != p.Fields[i+1] {
			return false
		}
	}
	return true
}

// fieldNames returns the names of the fields that have a path.
func fieldNames(m *Message, prefix string) []string {
	var names []string
	for i := range m.Fields {
		switch f := &m.Fields[i]; f.Kind {
		case KindNone:
		case KindMessage, KindUnion:
			names = append(names, fieldNames(f.Message, prefix+f.Name+".")...)
		default:
			names = append(names, prefix+f.Name)
		}
	}
	return names
}
