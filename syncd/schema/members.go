package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// This file defines unions whose member a condition decides.

// Limits of unions with conditions.
const (
	maxUnions   = 8   // in a value
	maxMembers  = 64  // of one union
	maxVariants = 256 // combinations of their members
	// bytesMember is the member of a union that no condition selects.
	bytesMember = "bytes"
	// uncoveredNumber is the number of a field for the bytes at offset 0 of a union that its member does not cover.
	uncoveredNumber = 20000
)

// unionPlace is a union of a type, and the fields that represent it while no condition decides about its member.
type unionPlace struct {
	name   string // of the field; of an anonymous union the joined names of its members
	typ    *btf.Union
	offset int
	number int
	fields []string
}

// Member returns the member that a union has in an entry, or nil if the conditions are those of another node.
func (f *Field) Member(key, value []byte) *Field {
	if i := f.memberIndex(key, value); i >= 0 {
		return &f.Message.Fields[i]
	}
	return nil
}

func (f *Field) memberIndex(key, value []byte) int {
	for i := range f.cases {
		if f.cases[i].matches(key, value) {
			return f.cases[i].member
		}
	}
	return -1
}

// placedUnion is a union of a value. If it is in a member of another one, outer is the index of that union in the list, and member that
// of the member. Otherwise outer is -1.
type placedUnion struct {
	*Field
	outer, member int
}

// unions returns the unions with conditions of the value, in the order of their fields, outer ones first.
func (s *Schema) unions() []placedUnion { return s.Value.appendUnions(nil, -1, 0) }

func (m *Message) appendUnions(list []placedUnion, outer, member int) []placedUnion {
	for i := range m.Fields {
		f := &m.Fields[i]
		switch {
		case f.Kind == KindUnion:
			at := len(list)
			list = append(list, placedUnion{f, outer, member})
			for k := range f.Message.Fields {
				list = f.Message.Fields[k].Message.appendUnions(list, at, k)
			}
		case f.Kind == KindMessage && f.Count == 0:
			list = f.Message.appendUnions(list, outer, member)
		}
	}
	return list
}

// Variants returns the number of combinations of members that the unions of a value can have: 1 without unions.
func (s *Schema) Variants() int {
	n := 1
	for _, u := range s.unions() {
		n *= len(u.Message.Fields)
	}
	return n
}

// VariantOf returns a function that returns the combination of members of an entry, from 0 to Variants()-1. It is nil if there
// is one combination only. The function is safe for concurrent use.
func (s *Schema) VariantOf() func(key, value []byte) int {
	unions := s.unions()
	if len(unions) == 0 {
		return nil
	}
	return func(key, value []byte) (v int) {
		var chosen [maxUnions]int
		for i := range unions {
			u := &unions[i]
			if u.outer < 0 || chosen[u.outer] == u.member { // a union in another member decides nothing
				chosen[i] = max(u.memberIndex(key, value), 0)
			}
			v = v*len(u.Message.Fields) + chosen[i]
		}
		return v
	}
}

// Variant returns the schema of entries with combination v of members. It has no unions with conditions.
func (s *Schema) Variant(v int) *Schema {
	unions := s.unions()
	if len(unions) == 0 {
		return s
	}
	members := make(map[*Field]int, len(unions))
	for _, u := range slices.Backward(unions) {
		members[u.Field] = v % len(u.Message.Fields)
		v /= len(u.Message.Fields)
	}
	one := *s
	one.Value = s.Value.withMembers(members)
	return &one
}

// withMembers returns a copy of m in which each union has one member.
func (m *Message) withMembers(members map[*Field]int) *Message {
	c := *m
	c.Fields = slices.Clone(m.Fields)
	for i := range m.Fields {
		f := &c.Fields[i]
		if f.Message == nil || f.Count > 0 {
			continue
		}
		f.Message = f.Message.withMembers(members)
		if f.Kind == KindUnion {
			k := members[&m.Fields[i]]
			f.Kind, f.Message.Fields = KindMessage, f.Message.Fields[k:k+1:k+1]
		}
	}
	return &c
}

// chooseMembers replaces the unions of the settings by unions with conditions.
func (s *Schema) chooseMembers(settings []Setting) error {
	var paths []string
	cases := make(map[string][]Case)
	for i := range settings {
		if set := &settings[i]; set.Map == s.Map && set.Case != (Case{}) {
			path := strings.TrimPrefix(set.Field, "value.")
			if cases[path] == nil {
				paths = append(paths, path)
			}
			cases[path] = append(cases[path], set.Case)
		}
	}
	// Outer unions first: their members may contain unions.
	slices.SortStableFunc(paths, func(a, b string) int { return strings.Count(a, ".") - strings.Count(b, ".") })
	for _, path := range paths {
		if err := s.chooseMember(path, cases[path]); err != nil {
			return fmt.Errorf("field %s: %w", path, err)
		}
	}
	if unions := s.unions(); len(unions) > maxUnions || s.Variants() > maxVariants {
		return fmt.Errorf("%d unions with conditions have %d combinations, at most %d unions and %d combinations can be", len(unions), s.Variants(), maxUnions, maxVariants)
	}
	return nil
}

// chooseMember replaces one union.
func (s *Schema) chooseMember(path string, cases []Case) error {
	if strings.HasPrefix(path, "key.") || s.CPUs > 0 {
		return errors.New("a condition can decide about a union in a value that is not per CPU")
	}
	m, name, err := s.enclosing(path)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(m.unions, func(u unionPlace) bool { return u.name == name })
	if i < 0 {
		return s.noUnion(path)
	}
	place := m.unions[i]
	f, err := place.field(m.Name)
	if err != nil {
		return err
	}
	prefix := strings.TrimSuffix(path, name)
	for k := range cases {
		c, err := s.resolveCase(&cases[k], prefix, f)
		if err != nil {
			return err
		}
		if len(f.cases) > 0 && f.cases[len(f.cases)-1].always {
			return fmt.Errorf("%s is never used: a case before it has no condition", cases[k].String())
		}
		f.cases = append(f.cases, c)
		member, doc := &f.Message.Fields[c.member], "in all other cases"
		if !c.always {
			doc = "when " + cases[k].When
		}
		member.Doc = addDoc(member.Doc, doc)
	}
	f.keepMembers()
	m.replaceUnion(&place, f)
	return nil
}

// enclosing returns the message of the value that has the last name of a path, and that name.
func (s *Schema) enclosing(path string) (m *Message, name string, err error) {
	names := strings.Split(path, ".")
	m = s.Value
	for _, outer := range names[:len(names)-1] {
		i := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Name == outer })
		if i < 0 || m.Fields[i].Message == nil {
			return nil, "", s.noField(path)
		}
		if m.Fields[i].Count > 0 {
			return nil, "", fmt.Errorf("a union in the array %s cannot have a condition", outer)
		}
		m = m.Fields[i].Message
	}
	return m, names[len(names)-1], nil
}

// noUnion returns the error for a path that does not lead to a union.
func (s *Schema) noUnion(path string) error {
	list := s.Value.unionNames(nil, "")
	if len(list) == 0 {
		return errors.New("the map's values have no unions")
	}
	return fmt.Errorf("%.80q is not a union; unions of the value: %s", path, strings.Join(list[:min(len(list), maxSuggestions)], ", "))
}

// unionNames appends the paths of unions.
func (m *Message) unionNames(list []string, prefix string) []string {
	for i := range m.unions {
		list = append(list, prefix+m.unions[i].name)
	}
	for i := range m.Fields {
		if f := &m.Fields[i]; f.Message != nil && f.Count == 0 && len(list) < maxSuggestions {
			list = f.Message.unionNames(list, prefix+f.Name+".")
		}
	}
	return list
}

// field returns the union as a field with all members, and a last one of bytes.
func (u *unionPlace) field(outer string) (*Field, error) {
	size := int(u.typ.Size)
	name := cleanName(outer + "_" + u.name)
	b := newBuilder("value")
	alternatives, err := b.alternatives(u.typ, name)
	if err != nil {
		return nil, err
	}
	union := &Message{Name: name, Size: size}
	for i := range alternatives {
		m := alternatives[i].msg
		if hasKindNone(m) {
			return nil, fmt.Errorf("the union holds a pointer, or something that the kernel owns, in its member %s", firstName(&u.typ.Members[i]))
		}
		if err := b.finish(m); err != nil {
			return nil, err
		}
		if one := m.Fields; len(one) == 1 && one[0].Kind == KindMessage && one[0].Count == 0 && u.typ.Members[i].Name != "" {
			m = one[0].Message
		}
		member := *m
		member.Name, member.Size = cleanName(name+"_"+firstName(&u.typ.Members[i])), size
		member.Fields = slices.Clone(m.Fields)
		member.carryUncovered()
		union.Fields = append(union.Fields, memberField(firstName(&u.typ.Members[i]), i+1, &member))
	}
	other := bytesMember
	for slices.ContainsFunc(union.Fields, func(f Field) bool { return f.Name == other }) {
		other = "other_" + other
	}
	rest := &Message{Name: cleanName(name + "_" + other), Size: size, Fields: []Field{{
		Name: other, Number: 1, Size: size, Kind: KindBytes, Type: fmt.Sprintf("unsigned char[%d]", size),
	}}}
	union.Fields = append(union.Fields, memberField(other, len(alternatives)+1, rest))
	f := &Field{
		Name: u.name, Number: u.number, Offset: u.offset, Size: size, Kind: KindUnion, Message: union,
		Type: strings.TrimSpace("union " + clean(u.typ.Name, "_")), Doc: "one of its members, by the conditions in the settings",
	}
	f.decl = &declared{number: u.number}
	f.decl.save(f)
	return f, nil
}

func memberField(name string, number int, m *Message) Field {
	f := Field{Name: name, Number: number, Size: m.Size, Kind: KindMessage, Message: m, Type: m.Name}
	f.decl = &declared{number: number}
	f.decl.save(&f)
	return f
}

// carryUncovered adds fields for the bytes of a union outside all fields of its member.
func (m *Message) carryUncovered() {
	covered := make([]byte, m.Size)
	for i := range m.Fields {
		f := &m.Fields[i]
		for at := range f.Bytes() {
			covered[f.Offset+at] = 1
		}
	}
	for at := 0; at < m.Size; at++ {
		end := at
		for end < m.Size && covered[end] == 0 {
			end++
		}
		if end > at {
			m.Fields = append(m.Fields, Field{
				Name: fmt.Sprintf("bytes_%d", at), Number: uncoveredNumber + at, Offset: at, Size: end - at, Kind: KindBytes,
				Type: fmt.Sprintf("unsigned char[%d]", end-at), decl: &declared{},
			})
			f := &m.Fields[len(m.Fields)-1]
			f.decl.number = f.Number
			f.decl.save(f)
			at = end
		}
	}
}

// keepMembers removes the members that no case selects.
func (f *Field) keepMembers() {
	last := len(f.Message.Fields) - 1
	if !slices.ContainsFunc(f.cases, func(c memberCase) bool { return c.always }) {
		f.cases = append(f.cases, memberCase{member: last, always: true})
		f.Message.Fields[last].Doc = "in all other cases"
	}
	var kept []Field
	for i := range f.Message.Fields {
		used := false
		for k := range f.cases {
			if f.cases[k].member == i {
				f.cases[k].member, used = -1-len(kept), true // marked: the indexes change
			}
		}
		if used {
			kept = append(kept, f.Message.Fields[i])
		}
	}
	for k := range f.cases {
		f.cases[k].member = -1 - f.cases[k].member
	}
	f.Message.Fields = kept
}

// replaceUnion replaces the fields that represent a union by f.
func (m *Message) replaceUnion(place *unionPlace, f *Field) {
	at := len(m.Fields)
	var fields []Field
	for i := range m.Fields {
		if slices.Contains(place.fields, m.Fields[i].Name) {
			at = min(at, len(fields))
			continue
		}
		fields = append(fields, m.Fields[i])
	}
	m.Fields = slices.Insert(fields, min(at, len(fields)), *f)
}
