package schema

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// This file defines fields of maps without types, by their position: @OFFSET:SIZE.

// cutMap separates the map and the field of a setting. A position contains a colon, too.
func cutMap(place string) (name, field string, ok bool) {
	colon := strings.LastIndexByte(place, ':')
	for _, prefix := range []string{":@", ":key.@", ":value.@"} {
		if i := strings.LastIndex(place, prefix); i >= 0 {
			colon = i
		}
	}
	if colon <= 0 || colon == len(place)-1 {
		return "", "", false
	}
	return place[:colon], place[colon+1:], true
}

// parsePosition parses @OFFSET:SIZE, in bytes.
func parsePosition(text string) (Range, error) {
	offset, size, ok := strings.Cut(strings.TrimPrefix(text, "@"), ":")
	o, offsetErr := strconv.ParseUint(offset, 10, 31)
	n, sizeErr := strconv.ParseUint(size, 10, 31)
	if !strings.HasPrefix(text, "@") || !ok || offsetErr != nil || sizeErr != nil || n == 0 {
		return Range{}, fmt.Errorf("%.80q is not a position: write @OFFSET:SIZE, in bytes, as @16:8", text)
	}
	return Range{Offset: int(o), Size: int(n)}, nil
}

// position returns the position in a field setting. ok is false if it has the name of a field.
func (set *Setting) position() (name string, key, ok bool) {
	name, key = strings.CutPrefix(set.Field, "key.")
	if !key {
		name = strings.TrimPrefix(set.Field, "value.")
	}
	return name, key, strings.HasPrefix(name, "@")
}

// defineFields defines the fields of the settings that have a position. The rest of the bytes stays in fields of
// bytes.
func (s *Schema) defineFields(settings []Setting) error {
	var key, value []Field
	for i := range settings {
		set := &settings[i]
		name, inKey, ok := set.position()
		if set.Map != s.Map || !ok {
			if set.Map == s.Map && set.Name != "" {
				return fmt.Errorf("field %s cannot have name=%s: its type has a name", set.Field, set.Name)
			}
			continue
		}
		if !s.Opaque {
			return fmt.Errorf("field %s: the map has types: write the name of a field instead", set.Field)
		}
		f, err := byteField(name, set.Name)
		if err != nil {
			return fmt.Errorf("field %s: %w", set.Field, err)
		}
		if inKey {
			key = append(key, f)
		} else {
			value = append(value, f)
		}
	}
	if len(key)+len(value) == 0 {
		return nil
	}
	if err := splitBytes(s.Key, key); err != nil {
		return fmt.Errorf("key %w", err)
	}
	if err := splitBytes(s.oneValue(), value); err != nil {
		return fmt.Errorf("value %w", err)
	}
	return nil
}

// byteField returns the field at a position.
func byteField(position, name string) (Field, error) {
	r, err := parsePosition(position)
	if err != nil {
		return Field{}, err
	}
	f := Field{
		Name: name, Number: byteNumber(r.Offset), Offset: r.Offset, Size: r.Size, Kind: KindUint, Type: fmt.Sprintf("__u%d", r.Size*8),
	}
	if name == "" {
		f.Name = fmt.Sprintf("at_%d", r.Offset)
	}
	if r.Size != 1 && r.Size != 2 && r.Size != 4 && r.Size != 8 {
		f.Kind, f.Type = KindBytes, fmt.Sprintf("unsigned char[%d]", r.Size)
	}
	return f, nil
}

// byteNumber returns the number of a field at an offset. It depends on the offset alone, so that nodes with other
// settings agree on it.
func byteNumber(offset int) int {
	number := offset + 1
	if number >= reservedFirst {
		number += reservedLast - reservedFirst + 1
	}
	return number
}

// splitBytes replaces the field bytes of m, which is its first one, by fields and by the bytes between them.
func splitBytes(m *Message, fields []Field) error {
	if len(fields) == 0 {
		return nil
	}
	slices.SortFunc(fields, func(a, b Field) int { return cmp.Compare(a.Offset, b.Offset) })
	size, after := m.Fields[0].Size, m.Fields[1:]
	var all []Field
	at := 0
	rest := func(to int) {
		if to > at {
			f, _ := byteField(fmt.Sprintf("@%d:%d", at, to-at), fmt.Sprintf("bytes_%d", at))
			f.Kind, f.Type = KindBytes, fmt.Sprintf("unsigned char[%d]", to-at)
			all = append(all, f)
		}
	}
	for _, f := range fields {
		switch {
		case f.Offset < at:
			return fmt.Errorf("has two fields with byte %d", f.Offset)
		case f.Offset+f.Size > size:
			return fmt.Errorf("has field %s, which ends at byte %d of %d", f.Name, f.Offset+f.Size, size)
		case len(all) > MaxFields/2:
			return errors.New("has too many fields")
		}
		rest(f.Offset)
		all = append(all, f)
		at = f.Offset + f.Size
	}
	rest(size)
	for i := range after { // the origin of drained sums
		after[i].Number = byteNumber(after[i].Offset)
	}
	m.Fields = append(all, after...)
	return checkUnique(m)
}

// fieldAt returns the name of the field at a position, as defineFields has defined it. It returns other names as they
// are.
func (m *Message) fieldAt(name string) string {
	r, err := parsePosition(name)
	if err != nil || m == nil {
		return name
	}
	for i := range m.Fields {
		if f := &m.Fields[i]; f.Offset == r.Offset && f.Bytes() == r.Size {
			return f.Name
		}
	}
	return name
}
