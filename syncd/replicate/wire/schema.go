package wire

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
)

// MaxSchemaBytes is the maximum size of an encoded schema in bytes, so that it fits into a request.
const MaxSchemaBytes = 128 << 10

// SchemaToProto returns the wire format of a schema, without the parts that only this node displays.
//
// The parts left out are those of the display, for example the name of the map. The result shares no
// memory with s, apart from strings. A receiver compiles its decoder from it, so offsets, sizes and
// kinds are those of this node's map.
func SchemaToProto(s *schema.Schema) *mapsyncv1.Schema {
	return &mapsyncv1.Schema{
		Key: messageToProto(s.Key), Value: messageToProto(s.Value), Opaque: s.Opaque, Cpus: uint32(s.CPUs),
	}
}

// SchemaChecksum returns the low 31 bits of the CRC-32 of the schema as a peer or an observer receives it. Programs with
// generated code compare it: schemas with the same checksum have the same messages of keys and values.
func SchemaChecksum(s *schema.Schema) (int32, error) {
	data, err := proto.Marshal(SchemaToProto(s))
	if err != nil {
		return 0, fmt.Errorf("encode schema: %w", err)
	}
	return int32(crc32.ChecksumIEEE(data) & math.MaxInt32), nil
}

// messageToProto returns the wire format of a struct type; nil for nil. It calls itself for nested
// types, whose depth Schema.Check limits.
func messageToProto(m *schema.Message) *mapsyncv1.MessageType {
	if m == nil {
		return nil
	}
	p := &mapsyncv1.MessageType{Name: m.Name, Size: uint32(m.Size)}
	for i := range m.Fields {
		p.Fields = append(p.Fields, fieldToProto(&m.Fields[i]))
	}
	return p
}

// fieldToProto returns the wire format of a field. Roles are sent, because they decide which bytes are
// converted and which are local to a node.
func fieldToProto(f *schema.Field) *mapsyncv1.Field {
	p := &mapsyncv1.Field{
		Name: f.Name, Number: uint32(f.Number), Offset: uint32(f.Offset), Size: uint32(f.Size), Count: uint32(f.Count),
		BitOffset: uint32(f.BitOffset), BitSize: uint32(f.BitSize), Kind: kindToProto(f.Kind), Type: f.Type,
		Message: messageToProto(f.Message), Signed: f.Signed, When: f.When, Reference: f.ReferenceFields(),
	}
	roles := f.Roles
	if roles&schema.RoleIP != 0 { // the family is for display on this node
		roles = roles&^schema.RoleIP | schema.RoleIPv6
	}
	// Roles are bits in the schema and a list of numbers on the wire.
	for ; roles != 0; roles &= roles - 1 {
		p.Roles = append(p.Roles, mapsyncv1.FieldRole(1+bits.TrailingZeros32(uint32(roles))))
	}
	if e := f.Enum; e != nil {
		p.Enum = &mapsyncv1.EnumType{Name: e.Name, Signed: e.Signed}
		for _, v := range e.Values {
			p.Enum.Values = append(p.Enum.Values, &mapsyncv1.EnumValue{Name: v.Name, Value: int64(v.Value)})
		}
	}
	return p
}

// kindToProto relies on the numbers of kinds and roles on the wire: those of package schema, plus
// 1. 0 is the unspecified kind, which no node sends.
func kindToProto(k schema.Kind) mapsyncv1.FieldKind { return mapsyncv1.FieldKind(k) + 1 }

// SchemaFromProto checks and returns the schema of a peer's map with the given name. p is read only. The
// errors wrap ErrMalformed, or the error of Schema.Check.
//
// A schema that passes is safe to compile: sizes, offsets and nesting are within their limits. It need
// not fit the map of this node, which schema.NewDecoder decides.
func SchemaFromProto(name string, p *mapsyncv1.Schema) (*schema.Schema, error) {
	switch {
	case p == nil:
		return nil, fmt.Errorf("read no schema: %w", ErrMalformed)
	case proto.Size(p) > MaxSchemaBytes:
		// The size is checked before the schema is converted, because a peer can send any schema.
		return nil, fmt.Errorf("read schema of %d bytes, more than %d: %w", proto.Size(p), MaxSchemaBytes, ErrMalformed)
	}
	s := &schema.Schema{Map: name, Opaque: p.GetOpaque(), CPUs: int(p.GetCpus())}
	var err error
	if s.Key, err = messageFromProto(p.GetKey(), 1); err != nil {
		return nil, fmt.Errorf("read type of keys: %w", err)
	}
	if s.Value, err = messageFromProto(p.GetValue(), 1); err != nil {
		return nil, fmt.Errorf("read type of values: %w", err)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("check schema: %w", err)
	}
	return s, nil
}

// messageFromProto returns the struct type of a message at a nesting depth, 1 for the outermost.
// The errors wrap ErrMalformed.
//
// A hostile peer could nest types deeply within MaxSchemaBytes. The number of fields needs no limit of
// its own, because each costs some bytes of the message.
func messageFromProto(p *mapsyncv1.MessageType, depth int) (*schema.Message, error) {
	switch {
	case p == nil:
		return nil, fmt.Errorf("read no type: %w", ErrMalformed)
	case depth > schema.MaxDepth+1:
		// The limit bounds the recursion. Schema.Check verifies the rest.
		return nil, fmt.Errorf("read types nested more than %d deep: %w", schema.MaxDepth, ErrMalformed)
	}
	m := &schema.Message{Name: p.GetName(), Size: int(p.GetSize()), Fields: make([]schema.Field, len(p.GetFields()))}
	for i, f := range p.GetFields() {
		if err := fieldFromProto(&m.Fields[i], f, depth); err != nil {
			return nil, fmt.Errorf("field %q: %w", f.GetName(), err)
		}
	}
	return m, nil
}

// fieldFromProto fills in a field. Schema.Check verifies sizes and offsets later.
//
// Unknown kinds and roles are refused: a field that this release would convert in another way than its
// peer would give wrong values. The errors wrap ErrMalformed.
func fieldFromProto(f *schema.Field, p *mapsyncv1.Field, depth int) (err error) {
	*f = schema.Field{
		Name: p.GetName(), Number: int(p.GetNumber()), Offset: int(p.GetOffset()), Size: int(p.GetSize()), Count: int(p.GetCount()),
		BitOffset: int(p.GetBitOffset()), BitSize: int(p.GetBitSize()), Kind: schema.Kind(p.GetKind() - 1), Type: p.GetType(),
		Signed: p.GetSigned(), When: p.GetWhen(),
	}
	if f.Kind == schema.KindReference {
		f.Reference = schema.Reference{Fields: []string{p.GetReference()}}.String()
	}
	// The conversion truncates a number that is out of range, so it is compared with the original.
	if kindToProto(f.Kind) != p.GetKind() || f.Kind > schema.KindReference {
		return fmt.Errorf("read unknown kind %d: %w", p.GetKind(), ErrMalformed)
	}
	for _, r := range p.GetRoles() {
		if r < mapsyncv1.FieldRole_FIELD_ROLE_KTIME || r > mapsyncv1.FieldRole_FIELD_ROLE_JIFFIES_256 {
			return fmt.Errorf("read unknown role %d: %w", r, ErrMalformed)
		}
		f.Roles |= schema.Role(1) << (r - 1)
	}
	if e := p.GetEnum(); e != nil {
		f.Enum = &schema.Enum{Name: e.GetName(), Signed: e.GetSigned()}
		for _, v := range e.GetValues() {
			f.Enum.Values = append(f.Enum.Values, schema.EnumValue{Name: v.GetName(), Value: uint64(v.GetValue())})
		}
	}
	if p.GetMessage() != nil {
		f.Message, err = messageFromProto(p.GetMessage(), depth+1)
	}
	return err
}
