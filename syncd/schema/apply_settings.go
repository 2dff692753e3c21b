package schema

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mapsync/syncd/similar"
)

// maxSuggestions is the maximum number of suggestions for an unknown field name.
const maxSuggestions = 4

// Apply applies the settings of this map to its fields, in place of their tags, and checks the
// result. Call it without settings too. For a per-CPU map, call it after [Schema.PerCPU]. After an
// error the schema must not be used.
func (s *Schema) Apply(settings []Setting) error {
	if err := s.defineFields(settings); err != nil {
		return fmt.Errorf("map %q: %w", s.Map, err)
	}
	if err := s.chooseMembers(settings); err != nil {
		return fmt.Errorf("map %q: %w", s.Map, err)
	}
	done := map[*Field]bool{}
	for i := range settings {
		set := &settings[i]
		if set.Map != s.Map || set.Case != (Case{}) {
			continue
		}
		f, key, err := s.find(set.Field)
		if err != nil {
			return fmt.Errorf("map %q: %w", s.Map, err)
		}
		if done[f] {
			return fmt.Errorf("map %q: field %s is set twice", s.Map, set.Field)
		}
		done[f] = true
		if err := f.override(set, key); err != nil {
			return fmt.Errorf("map %q: field %s %w", s.Map, set.Field, err)
		}
	}
	if err := s.resolveCases(settings); err != nil {
		return fmt.Errorf("map %q: %w", s.Map, err)
	}
	for _, half := range []struct {
		m      *Message
		prefix string
	}{{s.Key, "key."}, {s.oneValue(), ""}} {
		if err := s.check(half.m, half.prefix, false); err != nil {
			return fmt.Errorf("map %q: %w", s.Map, err)
		}
		if err := s.findFamilies(half.m, half.prefix); err != nil {
			return fmt.Errorf("map %q: %w", s.Map, err)
		}
		if err := half.m.checkReferences(s.CPUs > 0); err != nil {
			return fmt.Errorf("map %q: %w", s.Map, err)
		}
	}
	return nil
}

// findFamilies finds the fields that decide about the addresses with RoleIP. They are in the same struct, or have a path.
func (s *Schema) findFamilies(m *Message, prefix string) error {
	for i := range m.Fields {
		f := &m.Fields[i]
		if f.Message != nil {
			if err := s.findFamilies(f.Message, prefix+f.Name+"."); err != nil {
				return err
			}
		}
		if f.Roles&RoleIP == 0 || f.decl == nil {
			continue
		}
		half := "value."
		if strings.HasPrefix(prefix, "key.") {
			half = ""
		}
		path, err := s.Path(half + prefix + f.decl.family)
		if err != nil {
			path, err = s.Path(f.decl.family)
		}
		switch {
		case err != nil:
			return fmt.Errorf("field %s%s: family: %w", prefix, f.Name, err)
		case path.Key != strings.HasPrefix(prefix, "key.") || path.Count() != 1:
			return fmt.Errorf("field %s%s: the family %s must be in the same half of an entry, and in no array", prefix, f.Name, f.decl.family)
		case !path.Last().isNumber():
			return fmt.Errorf("field %s%s: the family %s must be a number", prefix, f.Name, f.decl.family)
		}
		f.Family = &path
	}
	return nil
}

// override applies a setting in place of the field's tags.
func (f *Field) override(set *Setting, key bool) error {
	if f.decl == nil { // the schema was not built from BTF
		f.decl = &declared{number: f.Number}
		f.decl.save(f)
	}
	merged := *set
	if set.Number == 0 && !set.Clear {
		merged.Number = f.decl.tags.Number
	}
	return f.applySetting(&merged, key)
}

// oneValue returns the value type. For a per-CPU map it returns the type of one CPU's value.
func (s *Schema) oneValue() *Message {
	if s.CPUs > 0 {
		return s.Value.Fields[0].Message
	}
	return s.Value
}

// find returns the field of a path, and whether it belongs to the key.
func (s *Schema) find(path string) (f *Field, key bool, err error) {
	m := s.oneValue()
	rest, key := strings.CutPrefix(path, "key.")
	if key {
		m = s.Key
	} else {
		rest = strings.TrimPrefix(path, "value.")
	}
	var outer *Field
	for name := range strings.SplitSeq(rest, ".") {
		outer = f
		i := -1
		name = m.fieldAt(name)
		if m != nil {
			i = slices.IndexFunc(m.Fields, func(f Field) bool { return f.Name == name })
		}
		if i < 0 {
			return nil, false, s.noField(path)
		}
		f = &m.Fields[i]
		m = f.Message
	}
	if outer != nil {
		member := f
		short := shortened([]*Field{outer, f})
		if f = short[len(short)-1]; outer.Kind == KindUnion && f == member {
			return nil, false, fmt.Errorf("field %s is a member of a union, which has no role of its own: set the roles of its fields", path)
		}
	}
	return f, key, nil
}

// noField returns the error for a path without a field. The error contains the most similar paths.
func (s *Schema) noField(path string) error {
	path = path[:min(len(path), maxName)]
	paths := append(pathsOf(nil, s.Key, "key."), pathsOf(nil, s.oneValue(), "")...)
	if len(paths) == 0 {
		return errors.New("the map has no fields")
	}
	wanted := strings.TrimPrefix(path, "value.")
	far := make(map[string]int, len(paths))
	for _, p := range paths {
		far[p] = distance(wanted, p)
	}
	slices.SortStableFunc(paths, func(a, b string) int { return cmp.Compare(far[a], far[b]) })
	near := paths[:min(len(paths), maxSuggestions)]
	return fmt.Errorf("unknown field %q; similar fields: %s", path, strings.Join(near, ", "))
}

// pathsOf appends the paths of the fields of m, limited to about 1000.
func pathsOf(paths []string, m *Message, prefix string) []string {
	for i := range m.Fields {
		f := &m.Fields[i]
		if len(paths) > 1000 {
			break
		}
		paths = append(paths, prefix+f.Name)
		if f.Message != nil {
			paths = pathsOf(paths, f.Message, prefix+f.Name+".")
		}
	}
	return paths
}

// distance returns the edit distance between wanted and path. If wanted has no dots, it also
// compares only the last name of path.
func distance(wanted, path string) int {
	if i := strings.LastIndexByte(path, '.'); !strings.Contains(wanted, ".") && i >= 0 {
		return min(1+similar.Edits(wanted, path[i+1:]), similar.Edits(wanted, path))
	}
	return similar.Edits(wanted, path)
}

// check validates the properties that depend on the result of all settings. inUnion reports whether m is in a union with conditions.
func (s *Schema) check(m *Message, prefix string, inUnion bool) error {
	if err := checkUnique(m); err != nil {
		return fmt.Errorf("struct %s %w", m.Name, err)
	}
	for i := range m.Fields {
		f := &m.Fields[i]
		if f.Roles&RoleSum != 0 && s.CPUs == 0 && !s.Drained {
			return fmt.Errorf("field %s%s of type %s cannot have role sum: it needs a per-CPU map, or the setting drain-sums", prefix, f.Name, f.Type)
		}
		if wrong := f.Roles & (RoleLocal | RoleSum); inUnion && wrong != 0 {
			return fmt.Errorf("field %s%s cannot have role %s: it is in a union with conditions", prefix, f.Name, strings.Join(wrong.Names(), ","))
		}
		if f.Message != nil {
			if err := s.check(f.Message, prefix+f.Name+".", inUnion || f.Kind == KindUnion); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkUnique returns an error if two fields of m share a name or a number.
func checkUnique(m *Message) error {
	names := make(map[string]bool, len(m.Fields))
	numbers := make(map[int]string, len(m.Fields))
	for i := range m.Fields {
		f := &m.Fields[i]
		if names[f.Name] {
			return fmt.Errorf("has two fields %s", f.Name)
		}
		if other, taken := numbers[f.Number]; taken {
			return fmt.Errorf("has fields %s and %s of the same number %d", other, f.Name, f.Number)
		}
		names[f.Name], numbers[f.Number] = true, f.Name
	}
	return nil
}
