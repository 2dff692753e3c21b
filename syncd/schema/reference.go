package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"mapsync/printable"
)

// This file has the fields that contain an id of another map. Each node assigns these ids itself, so a peer receives what the id means.

// MaxMeaning is the maximum length of the meaning of an id in bytes.
const MaxMeaning = 255

// referencePrefix begins the setting of a reference.
const referencePrefix = "ref:"

// Reference describes what an id means: the values of some fields of the entry that a map has under that id.
type Reference struct {
	// Map is the name of the referenced map. Its key is the id.
	Map string
	// Fields are the paths of the fields, in the order in which they are sent. They are fields of the value.
	Fields []string
}

// ParseReference parses MAP[FIELD,...].
func ParseReference(text string) (Reference, error) {
	name, list, found := strings.Cut(text, "[")
	list, closed := strings.CutSuffix(list, "]")
	r := Reference{Map: name, Fields: strings.Split(list, ",")}
	if !found || !closed || name == "" || slices.ContainsFunc(r.Fields, func(f string) bool { return strings.TrimSpace(f) == "" }) {
		return Reference{}, fmt.Errorf("%.80q is not a reference: write ref:MAP[FIELD,...], with the fields of MAP that say what an id means", referencePrefix+text)
	}
	for i, f := range r.Fields {
		r.Fields[i] = strings.TrimPrefix(strings.TrimSpace(f), "value.")
	}
	return r, nil
}

// parseReference adds a reference to the setting, and what follows it.
func (set *Setting) parseReference(text string) error {
	end := strings.IndexByte(text, ']') + 1
	r, err := ParseReference(text[:max(end, 0)])
	if end == 0 || err != nil {
		_, err = ParseReference(text)
		return err
	}
	if set.Reference = r.String(); text[end:] == "" {
		return nil
	}
	rest, found := strings.CutPrefix(text[end:], ",")
	if !found {
		return fmt.Errorf("unknown role %.80q", text[end:])
	}
	if err := set.parse(rest); err != nil {
		return err
	}
	if set.Roles != 0 || set.Default != "" || set.VolatileBits != 0 || set.Family != "" {
		return errors.New("a reference has no other role: only name=NAME and number=N may follow it")
	}
	return nil
}

// String returns the reference as MAP[FIELD,...].
func (r Reference) String() string { return r.Map + "[" + strings.Join(r.Fields, ",") + "]" }

// ReferenceFields returns the fields of the reference, separated by commas. The names of the maps may differ between nodes.
func (f *Field) ReferenceFields() string {
	_, list, _ := strings.Cut(f.Reference, "[")
	return strings.TrimSuffix(list, "]")
}

// isMeaning reports whether text is valid as the meaning of an id.
func isMeaning(text string) bool {
	return text != "" && len(text) <= MaxMeaning && printable.IsName(text)
}

// ReferencePlace is the place of an id in an entry.
type ReferencePlace struct {
	// Key is true if the id is in the key, and false if it is in the value.
	Key bool
	// Offset and Size are in bytes. Offset counts from the beginning of the half.
	Offset, Size int
	// Reference is Field.Reference.
	Reference string
}

// References returns the ids of an entry. For a schema with unions, those of [Schema.Variant] apply to an entry.
func (s *Schema) References() []ReferencePlace {
	return s.Value.references(s.Key.references(nil, true, 0), false, 0)
}

func (m *Message) references(list []ReferencePlace, key bool, base int) []ReferencePlace {
	for i := range m.Fields {
		switch f := &m.Fields[i]; f.Kind {
		case KindReference:
			list = append(list, ReferencePlace{Key: key, Offset: base + f.Offset, Size: f.Size, Reference: f.Reference})
		case KindMessage, KindUnion:
			list = f.Message.references(list, key, base+f.Offset)
		}
	}
	return list
}

// checkReferences returns an error if a field with an id is in an array.
func (m *Message) checkReferences(inArray bool) error {
	for i := range m.Fields {
		f := &m.Fields[i]
		if f.Kind == KindReference && inArray {
			return fmt.Errorf("field %s cannot be a reference: it is in an array, or in a per-CPU value", f.Name)
		}
		if f.Message == nil {
			continue
		}
		if err := f.Message.checkReferences(inArray || f.Count > 0); err != nil {
			return err
		}
	}
	return nil
}

// ReferencesOf returns the references of all fields, each once, sorted.
func (s *Schema) ReferencesOf() []string {
	var list []string
	for _, p := range s.References() {
		list = append(list, p.Reference)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
