package export

import (
	"fmt"
	"slices"
	"strings"

	"mapsync/syncd/schema"
)

// nameSet is a set of names that are in use.
type nameSet map[string]bool

// take returns name, or name with a number appended if name is in use. It adds the result to the
// set.
func (s nameSet) take(name string) string {
	unique := name
	for n := 2; s[unique]; n++ {
		unique = fmt.Sprintf("%s%d", name, n)
	}
	s[unique] = true
	return unique
}

// legalName returns a name that protobuf accepts. A legal C name stays unchanged.
func legalName(name string) string {
	legal := strings.Map(func(r rune) rune {
		if r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	if legal == "" || '0' <= legal[0] && legal[0] <= '9' {
		legal = "_" + legal
	}
	return legal
}

// camelName converts ct_map to CtMap. It adds prefix if the result does not begin with a letter.
func camelName(name, prefix string) string {
	var camel strings.Builder
	for word := range strings.SplitSeq(legalName(name), "_") {
		if word != "" {
			camel.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	if s := camel.String(); s != "" && s[0] >= 'A' {
		return s
	}
	return prefix + camel.String()
}

// fieldNames returns the names of m's fields as protobuf accepts them. Two names must differ in
// JSON (foo_bar and fooBar are equal there), and no name may be empty there (_). Earlier fields
// keep their names.
func fieldNames(m *schema.Message) []string {
	names := make([]string, len(m.Fields))
	taken, inJSON := nameSet{}, nameSet{}
	for i := range m.Fields {
		name := legalName(m.Fields[i].Name)
		if jsonName(name) == "" {
			name = "field" + name
		}
		plain := name
		for n := 2; taken[name] || inJSON[jsonName(name)]; n++ {
			name = fmt.Sprintf("%s%d", plain, n)
		}
		taken[name], inJSON[jsonName(name)] = true, true
		names[i] = name
	}
	return names
}

// jsonName returns the name that protobuf generates for JSON.
func jsonName(name string) string {
	var made strings.Builder
	upper := false
	for _, r := range name {
		if r == '_' {
			upper = true
			continue
		}
		if upper && 'a' <= r && r <= 'z' {
			r -= 'a' - 'A'
		}
		upper = false
		made.WriteRune(r)
	}
	return made.String()
}

// enumNames returns the names of e's values. The C names stay unchanged in most cases. A name
// changes if the message already uses it, or if protobuf treats two names of the enum as equal.
// Protobuf ignores case, underscores, and the enum's name as a prefix.
func (x *exporter) enumNames(enumName string, e *schema.Enum) []string {
	names := make([]string, len(e.Values))
	prefix := foldName(enumName)
	folded := make(map[string]uint64)
	for i, v := range e.Values {
		name := legalName(v.Name)
		if x.names[name] || name == "option" || name == "reserved" {
			name = strings.ToUpper(snakeName(enumName)) + "_" + name
		}
		plain := name
		for n := 2; ; n++ {
			fold := foldName(name)
			if rest := strings.TrimPrefix(fold, prefix); rest != "" {
				fold = rest
			}
			if other, ok := folded[fold]; !x.names[name] && (!ok || other == v.Value) {
				folded[fold] = v.Value
				break
			}
			name = fmt.Sprintf("%s_%d", plain, n)
		}
		x.names[name] = true
		names[i] = name
	}
	return names
}

func foldName(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// snakeName converts CtState to Ct_State.
func snakeName(camel string) string {
	var snake strings.Builder
	for i, r := range camel {
		if i > 0 && 'A' <= r && r <= 'Z' {
			snake.WriteByte('_')
		}
		snake.WriteRune(r)
	}
	return snake.String()
}

// sameMessage reports whether two messages are exported as the same type.
func sameMessage(a, b *schema.Message) bool {
	return a.Name == b.Name && a.Size == b.Size && slices.EqualFunc(a.Fields, b.Fields, sameField)
}

func sameField(a, b schema.Field) bool {
	if a.Kind != b.Kind || a.Message != nil && !sameMessage(a.Message, b.Message) ||
		a.Kind == schema.KindEnum && !sameEnum(a.Enum, b.Enum) {
		return false
	}
	return a.Name == b.Name && a.Number == b.Number && a.Offset == b.Offset && a.Size == b.Size && a.Count == b.Count &&
		a.BitOffset == b.BitOffset && a.BitSize == b.BitSize && a.Roles == b.Roles && a.Type == b.Type && a.Doc == b.Doc
}

func sameEnum(a, b *schema.Enum) bool {
	return a.Name == b.Name && a.Signed == b.Signed && slices.Equal(a.Values, b.Values)
}
