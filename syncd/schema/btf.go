package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// FromTypes builds the schema of a map from the types of its keys and values. Errors wrap [ErrType]
// and name the field. The caller then applies settings with [Schema.Apply], for a per-CPU map after
// [Schema.PerCPU].
func FromTypes(name string, key, value btf.Type) (*Schema, error) {
	k, err := typeOf(name, "key", key)
	if err != nil {
		return nil, fmt.Errorf("read key type of map %q: %w", name, err)
	}
	v, err := typeOf(name, "value", value)
	if err != nil {
		return nil, fmt.Errorf("read value type of map %q: %w", name, err)
	}
	return &Schema{Map: name, Key: k, Value: v}, nil
}

// FromSizes builds the opaque schema of a map without BTF: key and value are bytes of the given
// sizes.
func FromSizes(name string, keySize, valueSize int) *Schema {
	opaque := func(half string, size int) *Message {
		return &Message{Name: cleanName(name) + "_" + half, Size: size, Fields: []Field{
			{Name: "bytes", Number: 1, Size: size, Kind: KindBytes, Type: fmt.Sprintf("unsigned char[%d]", size)},
		}}
	}
	return &Schema{Map: name, Opaque: true, Key: opaque("key", keySize), Value: opaque("value", valueSize)}
}

// builder turns one type into a Message. The type may be malicious, so every operation is bounded.
type builder struct {
	key          bool
	memberBudget int // members that may still be read
	unionBudget  int // bytes of unions that may still be compared
	path         []string
	inside       []btf.Type // the enclosing structs and unions
	enums        map[*btf.Enum]*Enum
}

// draft is a Message under construction.
type draft struct {
	msg     *Message
	ordinal int // of the last named member
}

func newBuilder(half string) *builder {
	return &builder{
		key: half == "key", memberBudget: MaxFields, unionBudget: 16 * MaxSize,
		path: []string{half}, enums: map[*btf.Enum]*Enum{},
	}
}

// typeOf builds the Message of one half of a map's entries.
func typeOf(mapName, half string, t btf.Type) (*Message, error) {
	b := newBuilder(half)
	m, err := b.root(mapName, half, t)
	if err != nil {
		return nil, err
	}
	if total := countFields(m); total > MaxFields {
		return nil, b.fail("has more than %d fields", MaxFields)
	}
	return m, b.finish(m)
}

// root builds the Message of a whole key or value. A type that is not a struct becomes the only
// field of the Message.
func (b *builder) root(mapName, half string, t btf.Type) (*Message, error) {
	sh, err := shapeOf(t)
	if err != nil {
		return nil, b.fail("%v", err)
	}
	if sh.bytes() == 0 {
		return nil, b.fail("%s has no size", sh.spelt)
	}
	m := &Message{Name: cleanName(mapName) + "_" + half, Size: sh.bytes()}
	sc := &draft{msg: m}
	if sh.array || !sh.composite() {
		return m, b.named(sc, &btf.Member{Name: half, Type: t}, &sh, 0)
	}
	m.Name = sh.structName(m.Name)
	if err := b.refuseTags(sh.tags); err != nil {
		return nil, err
	}
	if u, ok := sh.typ.(*btf.Union); ok {
		return m, b.anonymousUnion(sc, u, 0)
	}
	return m, b.members(sc, sh.typ.(*btf.Struct), 0)
}

// members adds the members of a struct that starts at offset base.
func (b *builder) members(sc *draft, s *btf.Struct, base int) error {
	if err := b.enter(s); err != nil {
		return err
	}
	defer b.leave()
	end := 0
	for i := range s.Members {
		m := &s.Members[i]
		sh, err := b.shape(m)
		if err != nil {
			return err
		}
		first, last, err := b.extent(m, &sh, int(s.Size))
		if err != nil {
			return err
		}
		if last > first && first < end {
			return b.fail("member %s overlaps the one before it", memberName(m))
		}
		end = max(end, last)
		if err := b.member(sc, m, &sh, base); err != nil {
			return err
		}
	}
	return nil
}

// member adds one member of a struct or union that starts at offset base.
func (b *builder) member(sc *draft, m *btf.Member, sh *shape, base int) error {
	if m.Name != "" {
		if !isIdentifier(m.Name) {
			return b.fail("member has the name %.40q", m.Name)
		}
		b.path = append(b.path, m.Name)
		defer func() { b.path = b.path[:len(b.path)-1] }()
		return b.named(sc, m, sh, base)
	}
	if err := b.refuseTags(slices.Concat(m.Tags, sh.tags)); err != nil {
		return err
	}
	offset := base + int(m.Offset.Bytes())
	if sh.array || sh.bytes() == 0 || m.BitfieldSize > 0 {
		return nil // padding
	}
	switch t := sh.typ.(type) {
	case *btf.Struct:
		if !sh.composite() {
			return b.fail("%s has no name", sh.spelt)
		}
		return b.members(sc, t, offset)
	case *btf.Union:
		return b.anonymousUnion(sc, t, offset)
	}
	return nil // padding
}

// named adds a named member. It counts the member even if the member adds no field.
func (b *builder) named(sc *draft, m *btf.Member, sh *shape, base int) error {
	sc.ordinal++
	if sc.ordinal >= reservedFirst {
		return b.fail("is member %d: protobuf keeps the number", sc.ordinal)
	}
	tags, err := parseTags(sh.tags, m.Tags)
	if err != nil {
		return b.fail("%v", err)
	}
	if sh.bytes() == 0 {
		return nil
	}
	f := Field{
		Name: m.Name, Number: sc.ordinal, Offset: base + int(m.Offset.Bytes()),
		Size: sh.size, Count: sh.elements(), Type: sh.spelt,
	}
	f.decl = &declared{number: sc.ordinal, tags: tags}
	present, err := b.kind(&f, m, sh, sc.msg.Name)
	if err != nil || !present {
		return err
	}
	if u, ok := sh.typ.(*btf.Union); ok && !sh.array {
		sc.msg.unions = append(sc.msg.unions, unionPlace{name: f.Name, typ: u, offset: base + int(m.Offset.Bytes()), number: sc.ordinal, fields: []string{f.Name}})
	}
	sc.msg.Fields = append(sc.msg.Fields, f)
	return nil
}

// kind sets the encoding of a field from its type. present is false if the member has nothing to
// send or keep.
func (b *builder) kind(f *Field, m *btf.Member, sh *shape, outer string) (present bool, err error) {
	place := cleanName(outer + "_" + f.Name)
	if m.BitfieldSize > 0 {
		return true, b.bitfield(f, m, sh, place)
	}
	switch t := sh.typ.(type) {
	case *btf.Int:
		integer(f, t, sh)
	case *btf.Enum:
		f.Kind, f.Enum = KindEnum, b.enum(t, sh, place)
	case *btf.Float:
		f.Kind = KindBytes
		if t.Size == 4 || t.Size == 8 {
			f.Kind = KindFloat
		}
	case *btf.Pointer:
		f.Kind, f.Doc = KindNone, "a pointer is valid on one node only"
	case *btf.Struct:
		if sh.wellKnownType(f) {
			break
		}
		f.Kind = KindMessage
		f.Message = &Message{Name: sh.structName(place), Size: sh.size}
		err = b.members(&draft{msg: f.Message}, t, 0)
	case *btf.Union:
		return b.namedUnion(f, t, sh, place)
	}
	if f.Kind == KindNone && b.key && err == nil {
		return false, b.fail("%s cannot be in a key", sh.spelt)
	}
	return true, err
}

// shape returns the shape of a member's type, within the limit on members.
func (b *builder) shape(m *btf.Member) (shape, error) {
	if b.memberBudget--; b.memberBudget < 0 {
		return shape{}, b.fail("has more than %d fields", MaxFields)
	}
	sh, err := shapeOf(m.Type)
	if err != nil {
		return sh, b.fail("member %s: %v", memberName(m), err)
	}
	return sh, nil
}

// extent returns the first bit of a member in its struct or union, and the bit after its last one.
func (b *builder) extent(m *btf.Member, sh *shape, size int) (first, last int, err error) {
	first = int(m.Offset)
	last = first + int(m.BitfieldSize)
	if m.BitfieldSize == 0 {
		last = first + sh.bytes()*8
		if first%8 != 0 {
			return 0, 0, b.fail("member %s begins within a byte", memberName(m))
		}
	}
	if last > size*8 {
		return 0, 0, b.fail("member %s is outside of the %d bytes around it", memberName(m), size)
	}
	return first, last, nil
}

// enter records that the members of t follow. It leaves one level of nesting for [Schema.PerCPU].
func (b *builder) enter(t btf.Type) error {
	if slices.Contains(b.inside, t) {
		return b.fail("contains itself")
	}
	if len(b.inside) >= MaxDepth-1 {
		return b.fail("is nested deeper than %d", MaxDepth-1)
	}
	b.inside = append(b.inside, t)
	return nil
}

func (b *builder) leave() { b.inside = b.inside[:len(b.inside)-1] }

// fail returns an error for the current field.
func (b *builder) fail(format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrType, strings.Join(b.path, "."), fmt.Sprintf(format, args...))
}

func (b *builder) refuseTags(tags []string) error {
	for _, tag := range tags {
		if strings.HasPrefix(tag, tagPrefix) {
			return b.fail("tag %.80q is not of a field", tag)
		}
	}
	return nil
}

// finish applies the tags of all fields. It runs at the end, because only then is it determined
// which members of unions are fields.
func (b *builder) finish(m *Message) error {
	for i := range m.Fields {
		f := &m.Fields[i]
		b.path = append(b.path, f.Name)
		f.decl.save(f)
		if err := f.applySetting(&f.decl.tags, b.key); err != nil {
			return b.fail("%v", err)
		}
		if f.Message != nil {
			if err := b.finish(f.Message); err != nil {
				return err
			}
		}
		b.path = b.path[:len(b.path)-1]
	}
	if err := checkUnique(m); err != nil {
		return b.fail("%v", err)
	}
	return nil
}

// countFields returns the number of fields of m, including those of each element of an array of
// structs. The result is at most MaxFields + 1.
func countFields(m *Message) int {
	total := len(m.Fields)
	for i := range m.Fields {
		if f := &m.Fields[i]; f.Message != nil {
			total += min(countFields(f.Message)*max(f.Count, 1), MaxFields)
		}
	}
	return min(total, MaxFields+1)
}

func memberName(m *btf.Member) string {
	if m.Name == "" {
		return "without a name"
	}
	return fmt.Sprintf("%.40q", m.Name)
}
