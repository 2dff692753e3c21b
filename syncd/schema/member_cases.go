package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// This file has the conditions that decide about the members of unions.

// memberCase is a condition under which a union has a member.
type memberCase struct {
	member int // index in the fields of the union's message
	// The field is in the key or in the value, at an offset from its beginning. Without a field, the condition is true.
	always bool
	key    bool
	field  fieldAccessor
	mask   uint64   // any of these bits; 0: values decide
	values []uint64 // one of these
}

// matches reports whether an entry meets the condition.
func (c *memberCase) matches(key, value []byte) bool {
	if c.always {
		return true
	}
	half := value
	if c.key {
		half = key
	}
	end := int(c.field.off + c.field.size)
	if end > len(half) {
		return false
	}
	n := c.field.load(ptrAt(half, int(c.field.off)))
	if c.mask != 0 {
		return n&c.mask != 0
	}
	return slices.Contains(c.values, n)
}

// Case is a member of a union, and the condition under which the union has it.
type Case struct {
	// Member is the name of the member. An anonymous struct has the name of its first member.
	Member string
	// When is FIELD=VALUE[,VALUE] or FIELD&MASK, for any of the bits; empty: in all other cases.
	When string
}

// parseCase parses as:MEMBER, or as:MEMBER when CONDITION.
func parseCase(text string) (Case, error) {
	member, when, conditional := strings.Cut(strings.TrimPrefix(text, "as:"), " when ")
	c := Case{Member: strings.TrimSpace(member), When: strings.TrimSpace(when)}
	if !isIdentifier(c.Member) || conditional && c.When == "" {
		return c, fmt.Errorf("%.80q is not a member of a union: write as:MEMBER when FIELD=VALUE[,VALUE], FIELD&MASK, or as:MEMBER", text)
	}
	return c, nil
}

// String returns the case as in the setting.
func (c *Case) String() string {
	if c.When == "" {
		return "as:" + c.Member
	}
	return "as:" + c.Member + " when " + c.When
}

// resolveCase finds the member and the field of a case. prefix is the path of the union up to its name.
func (s *Schema) resolveCase(c *Case, prefix string, union *Field) (memberCase, error) {
	index := slices.IndexFunc(union.Message.Fields, func(f Field) bool { return f.Name == c.Member })
	if index < 0 {
		names := make([]string, len(union.Message.Fields))
		for i := range union.Message.Fields {
			names[i] = union.Message.Fields[i].Name
		}
		return memberCase{}, fmt.Errorf("%s: the union has no such member; its members: %s", c.String(), strings.Join(names, ", "))
	}
	if c.When == "" {
		return memberCase{member: index, always: true}, nil
	}
	path, values, err := s.conditionField(c, prefix)
	if err != nil {
		return memberCase{}, err
	}
	found := memberCase{member: index, key: path.Key}
	if err := found.compare(&path, values); err != nil {
		return memberCase{}, fmt.Errorf("%s: the field %w", c.String(), err)
	}
	return found, nil
}

// conditionField returns the field of a condition, and the condition from its operator on.
func (s *Schema) conditionField(c *Case, prefix string) (path Path, values string, err error) {
	at := strings.IndexAny(c.When, "=&")
	if at <= 0 {
		return path, "", fmt.Errorf("%s: the condition has no operator: write FIELD=VALUE[,VALUE] or FIELD&MASK", c.String())
	}
	name := strings.TrimSpace(c.When[:at])
	if path, err = s.Path("value." + prefix + name); err != nil {
		if path, err = s.Path(name); err != nil {
			return path, "", fmt.Errorf("%s: %w", c.String(), err)
		}
	}
	f := path.Last()
	if path.Count() != 1 || f.Count > 0 || !f.isNumber() || !f.Sent() {
		return path, "", fmt.Errorf("%s: field %s is not a single number that is sent unchanged", c.String(), name)
	}
	return path, c.When[at:], nil
}

// resolveCases reads the conditions again after all roles were applied: a role may change the order of bytes. It returns an error if a
// condition has a field that differs between nodes.
func (s *Schema) resolveCases(settings []Setting) error {
	done := make(map[*Field]int)
	for i := range settings {
		set := &settings[i]
		if set.Map != s.Map || set.Case == (Case{}) {
			continue
		}
		path := strings.TrimPrefix(set.Field, "value.")
		m, name, err := s.enclosing(path)
		if err != nil {
			return fmt.Errorf("field %s: %w", set.Field, err)
		}
		at := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Kind == KindUnion && f.Name == name })
		if at < 0 {
			return fmt.Errorf("field %s: its union has not been found", set.Field)
		}
		f := &m.Fields[at]
		c := &f.cases[done[f]]
		if done[f]++; set.Case.When != "" {
			field, values, err := s.conditionField(&set.Case, strings.TrimSuffix(path, name))
			if err == nil {
				c.values, c.mask = nil, 0
				err = c.compare(&field, values)
			}
			if err != nil {
				return fmt.Errorf("field %s: %w", set.Field, err)
			}
		}
		if f.When != "" {
			f.When += "; "
		}
		f.When += c.text(&set.Case)
	}
	return nil
}

// text returns a case with the numbers of its values, which are the same on nodes that agree.
func (c *memberCase) text(of *Case) string {
	if c.always {
		return of.String()
	}
	name := strings.TrimSpace(of.When[:strings.IndexAny(of.When, "=&")])
	if c.mask != 0 {
		return fmt.Sprintf("as:%s when %s&%#x", of.Member, name, c.mask)
	}
	numbers := make([]string, len(c.values))
	for i, n := range c.values {
		numbers[i] = strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("as:%s when %s=%s", of.Member, name, strings.Join(numbers, ","))
}

// compare sets the field and the values of a condition.
func (c *memberCase) compare(path *Path, text string) error {
	f, base := path.Last(), 0
	for _, outer := range path.Fields[:len(path.Fields)-1] {
		base += outer.Offset
	}
	c.field = accessorOf(f, base)
	if text[0] == '&' {
		mask, err := strconv.ParseUint(strings.TrimSpace(text[1:]), 0, 64)
		if err != nil || mask == 0 || mask>>(c.field.bits-1)>>1 != 0 {
			return fmt.Errorf("cannot have the mask %.40q: write a number other than 0 of %d bits", text[1:], c.field.bits)
		}
		c.mask = mask
		return nil
	}
	for word := range strings.SplitSeq(text[1:], ",") {
		n, err := f.parseValue(strings.TrimSpace(word))
		if err != nil {
			return err
		}
		unused := 64 - c.field.bits
		if c.field.signed && n<<unused>>unused == n {
			n = uint64(int64(n<<unused) >> unused)
		}
		if !c.field.fits(n, c.field.signed) {
			return fmt.Errorf("of %d bits cannot be %s", c.field.bits, word)
		}
		c.values = append(c.values, n)
	}
	return nil
}

// parseValue parses a value of an integer field: a number, or a name of its enum.
func (f *Field) parseValue(word string) (uint64, error) {
	if f.Enum != nil {
		for _, v := range f.Enum.Values {
			if v.Name == word {
				return v.Value, nil
			}
		}
	}
	if n, err := strconv.ParseUint(word, 0, 64); err == nil {
		return n, nil
	}
	n, err := strconv.ParseInt(word, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot be %.40q: write a number, or the name of a constant of its enum", word)
	}
	return uint64(n), nil
}
