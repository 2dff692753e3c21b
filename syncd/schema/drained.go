package schema

import "fmt"

// OriginField is the name of the field that a drained map's sums have at the end of their keys.
const OriginField = "drain_origin"

// WithOrigin returns the schema of the sums of a drained map: its keys end with an origin of size bytes. Fields of its
// values may have the role sum. Both schemas share their other fields.
func (s *Schema) WithOrigin(size int) *Schema {
	sums := *s
	key := *s.Key
	number := 0
	for i := range key.Fields {
		number = max(number, key.Fields[i].Number)
	}
	key.Fields = append(key.Fields[:len(key.Fields):len(key.Fields)], Field{
		Name: OriginField, Number: number + 1, Offset: key.Size, Size: size, Kind: KindBytes,
		Type: fmt.Sprintf("unsigned char[%d]", size), Doc: "identifies the node, and its boot, that has drained the entries",
	})
	key.Size += size
	sums.Key, sums.Drained = &key, true
	return &sums
}

// Sums returns the ranges of a value whose fields have the role sum, one for each element of an array, in ascending
// order.
func (s *Schema) Sums() []Range {
	return s.Value.elements(func(f *Field) bool { return f.Roles&RoleSum != 0 })
}

// elements returns the ranges of the fields for which want is true, except messages: one for each element of an array.
func (m *Message) elements(want func(*Field) bool) (list []Range) {
	m.eachElement(0, func(f *Field, at int) { list = append(list, Range{Offset: at, Size: f.Size}) }, want)
	return list
}

// eachElement calls do for each element of the fields for which want is true, except messages, with its offset. The message starts
// at offset base.
func (m *Message) eachElement(base int, do func(f *Field, at int), want func(*Field) bool) {
	for i := range m.Fields {
		f := &m.Fields[i]
		for e := range max(f.Count, 1) {
			at := base + f.Offset + e*f.Size
			switch {
			case f.Kind == KindMessage:
				f.Message.eachElement(at, do, want)
			case want(f):
				do(f, at)
			}
		}
	}
}
