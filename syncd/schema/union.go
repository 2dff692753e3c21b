package schema

import (
	"bytes"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Limits of the remarks about a union.
const (
	maxListed = 6    // members listed by name
	maxDoc    = 1024 // bytes
)

// choice is the representation of a union: one of its members, or all of its bytes.
type choice struct {
	draft          // fields of the member, empty if the bytes are the field
	whole     bool // the bytes are the field
	anonymous bool // the member is an anonymous struct or union
	kind      Kind // of the bytes: KindBytes, or KindNone if they are local
	doc       string
}

// choose selects the member that represents a union: the first one that covers every bit that any
// member covers. If a member contains data that must not be sent, the whole union is not sent.
func (b *builder) choose(u *btf.Union, name string) (*choice, error) {
	alts, err := b.alternatives(u, name)
	if err != nil {
		return nil, err
	}
	c := &choice{draft: draft{msg: &Message{Name: name}}}
	if slices.ContainsFunc(alts, func(a draft) bool { return hasKindNone(a.msg) }) {
		c.whole, c.kind, c.doc = true, KindNone, "not sent: one of them holds a pointer or is the kernel's"
	} else if len(alts) > 0 {
		i, err := b.widest(alts, int(u.Size))
		if err != nil {
			return nil, err
		}
		c.take(alts, i, u)
	}
	if len(u.Members) > 1 {
		c.doc = addDoc("a union of "+listMembers(u), c.doc)
	}
	return c, nil
}

// take selects alternative i to represent the union, or its bytes if i is -1.
func (c *choice) take(alts []draft, i int, u *btf.Union) {
	if i < 0 {
		c.whole, c.kind, c.doc = true, KindBytes, "sent as bytes because no member covers the others"
		return
	}
	c.draft, c.anonymous = alts[i], u.Members[i].Name == ""
	if len(alts) > 1 {
		c.doc = "sent as " + spellMember(&u.Members[i])
	}
}

// alternatives returns the fields of each member separately.
func (b *builder) alternatives(u *btf.Union, name string) ([]draft, error) {
	if err := b.enter(u); err != nil {
		return nil, err
	}
	defer b.leave()
	var alts []draft
	for i := range u.Members {
		m := &u.Members[i]
		sh, err := b.shape(m)
		if err != nil {
			return nil, err
		}
		if _, _, err := b.extent(m, &sh, int(u.Size)); err != nil {
			return nil, err
		}
		alt := draft{msg: &Message{Name: name, Size: int(u.Size)}}
		if err := b.member(&alt, m, &sh, 0); err != nil {
			return nil, err
		}
		alts = append(alts, alt)
	}
	return alts, nil
}

// widest returns the first alternative that covers everything that any alternative covers, or -1 if
// there is none.
func (b *builder) widest(alts []draft, size int) (int, error) {
	if b.unionBudget -= 2 * len(alts) * size; b.unionBudget < 0 {
		return 0, b.fail("has too many or too large unions")
	}
	all := make([]byte, size)
	for _, a := range alts {
		a.msg.cover(all)
	}
	one := make([]byte, size)
	for i, a := range alts {
		clear(one)
		a.msg.cover(one)
		if bytes.Equal(one, all) {
			return i, nil
		}
	}
	return -1, nil
}

// cover sets the bits of mask that the fields of m preserve.
func (m *Message) cover(mask []byte) {
	for i := range m.Fields {
		f := &m.Fields[i]
		at := mask[f.Offset : f.Offset+f.Bytes()]
		switch {
		case f.BitSize > 0:
			for bit := f.BitOffset; bit < f.BitOffset+f.BitSize; bit++ {
				at[bit/8] |= 1 << (bit % 8)
			}
		case f.Kind == KindMessage:
			for ; len(at) > 0; at = at[f.Size:] {
				f.Message.cover(at[:f.Size])
			}
		case f.Kind == KindBool: // bool preserves only the value 1
			for i := range at {
				at[i] |= 1
			}
		case f.Kind != KindNone:
			for i := range at {
				at[i] = 0xff
			}
		}
	}
}

func hasKindNone(m *Message) bool {
	return slices.ContainsFunc(m.Fields, func(f Field) bool {
		return f.Kind == KindNone || f.Message != nil && hasKindNone(f.Message)
	})
}

// anonymousUnion adds the representation of a union without a name: fields of the enclosing struct,
// at offset base within it.
func (b *builder) anonymousUnion(sc *draft, u *btf.Union, base int) error {
	c, err := b.choose(u, sc.msg.Name)
	if err != nil {
		return err
	}
	if c.whole {
		c.ordinal = 1
		c.msg.Fields = []Field{{
			Name: joinNames(u), Size: int(u.Size), Kind: c.kind,
			Type: strings.TrimSpace("union " + clean(u.Name, "_")), decl: &declared{number: 1},
		}}
	}
	if sc.ordinal+c.ordinal >= reservedFirst {
		return b.fail("has member %d: protobuf keeps the number", reservedFirst)
	}
	place := unionPlace{name: joinNames(u), typ: u, offset: base, number: sc.ordinal + 1}
	for i, f := range c.msg.Fields {
		place.fields = append(place.fields, f.Name)
		f.Offset += base
		f.decl.number += sc.ordinal
		if i == 0 {
			f.Doc = addDoc(c.doc, f.Doc)
		}
		sc.msg.Fields = append(sc.msg.Fields, f)
	}
	if len(place.fields) > 0 {
		sc.msg.unions = append(sc.msg.unions, place)
	}
	sc.ordinal += c.ordinal
	return nil
}

// namedUnion sets f, a union or an array of unions. A single union has the representation of the
// selected member, under the name of the union.
func (b *builder) namedUnion(f *Field, u *btf.Union, sh *shape, place string) (present bool, err error) {
	c, err := b.choose(u, sh.structName(place))
	if err != nil {
		return false, err
	}
	f.Doc = c.doc
	switch {
	case c.whole:
		f.Kind = c.kind
	case len(c.msg.Fields) == 0:
		return false, nil // padding
	case sh.array || c.anonymous:
		c.msg.Name = sh.structName(place)
		f.Kind, f.Message = KindMessage, c.msg
	default:
		return true, b.standIn(f, &c.msg.Fields[0])
	}
	return true, nil
}

// standIn sets f, a union, to the definition of its member.
func (b *builder) standIn(f, member *Field) error {
	stand := *member
	stand.Name, stand.Type, stand.Number = f.Name, f.Type, f.Number
	stand.Offset += f.Offset
	stand.Doc = addDoc(f.Doc, member.Doc)
	tags := member.decl.tags
	if err := tags.add(&f.decl.tags); err != nil {
		return b.fail("%v", err)
	}
	stand.decl = &declared{number: f.decl.number, tags: tags}
	*f = stand
	return nil
}

// joinNames returns a name for an unnamed union, built from the names of its members.
func joinNames(u *btf.Union) string { return cleanName(joinSome(u.Members, "_or_", firstName)) }

// listMembers returns the members of a union as text, for display.
func listMembers(u *btf.Union) string { return joinSome(u.Members, ", ", spellMember) }

// spellMember returns the name of a member of a union. For an anonymous struct it returns the names
// of the struct's members.
func spellMember(m *btf.Member) string {
	if s, ok := m.Type.(*btf.Struct); ok && m.Name == "" {
		return "{" + joinSome(s.Members, ", ", firstName) + "}"
	}
	return firstName(m)
}

// joinSome joins the results of spell for the first members.
func joinSome(members []btf.Member, by string, spell func(*btf.Member) string) string {
	var names []string
	for i := range members {
		if i == maxListed {
			names = append(names, "more")
			break
		}
		names = append(names, spell(&members[i]))
	}
	return strings.Join(names, by)
}

// firstName returns a name for a member: its own, or the first nested name.
func firstName(m *btf.Member) string {
	for range MaxDepth {
		if m.Name != "" {
			return clean(m.Name, "_")
		}
		var inner []btf.Member
		switch t := m.Type.(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if len(inner) == 0 {
			break
		}
		m = &inner[0]
	}
	return "unnamed"
}

func addDoc(outer, inner string) string {
	doc := outer + inner
	if outer != "" && inner != "" {
		doc = outer + "; " + inner
	}
	return doc[:min(len(doc), maxDoc)]
}
