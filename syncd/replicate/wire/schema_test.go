package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
)

// TestSchemaOnTheWire checks the conversion of schemas to protobuf and back, and invalid schemas.
func TestSchemaOnTheWire(t *testing.T) {
	for _, s := range []*schema.Schema{schematest.OldVersion(), schematest.NewVersion(), schematest.InterfaceKey(), schematest.Timed(), schema.FromSizes("x", 48, 176), perCPU(), schematest.Rich()} {
		data := encoded(t, SchemaToProto(s))
		var p mapsyncv1.Schema
		if err := proto.Unmarshal(data, &p); err != nil {
			t.Fatalf("unmarshal: got error %v, want nil", err)
		}
		got, err := SchemaFromProto(s.Map, &p)
		if err != nil {
			t.Fatalf("read schema: got error %v, want nil", err)
		}
		if !schema.Equal(s, got) {
			t.Errorf("schema %s: got differences %s, want none", s.Map, cmp.Diff(fmt.Sprintf("%+v", s), fmt.Sprintf("%+v", got)))
		}
		// Equal leaves out what a node only displays, for example the names of an enum's values.
		withoutName := *s
		withoutName.Map = got.Map
		if diff := cmp.Diff(&withoutName, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(schema.Field{}, schema.Message{}),
			cmpopts.IgnoreFields(schema.Field{}, "Doc", "Default")); diff != "" {
			t.Errorf("schema %s (-want +got):\n%s", s.Map, diff)
		}
		if again := encoded(t, SchemaToProto(got)); string(again) != string(data) {
			t.Errorf("schema %s: got other bytes when encoded again, want the same", s.Map)
		}
	}
	for name, spoil := range map[string]func(*mapsyncv1.Schema){
		"no key":       func(p *mapsyncv1.Schema) { p.Key = nil },
		"unknown kind": func(p *mapsyncv1.Schema) { p.Value.Fields[0].Kind = 13 },
		"no kind":      func(p *mapsyncv1.Schema) { p.Value.Fields[0].Kind = 0 },
		"wide kind":    func(p *mapsyncv1.Schema) { p.Value.Fields[0].Kind += 256 },
		"unknown role": func(p *mapsyncv1.Schema) { p.Value.Fields[0].Roles = []mapsyncv1.FieldRole{15} },
		"outside":      func(p *mapsyncv1.Schema) { p.Value.Fields[0].Offset = 1 << 31 },
		"too deep": func(p *mapsyncv1.Schema) {
			for range schema.MaxDepth + 2 {
				p.Value = &mapsyncv1.MessageType{Name: "x", Size: p.Value.Size, Fields: []*mapsyncv1.Field{
					{Name: "x", Number: 1, Size: p.Value.Size, Kind: mapsyncv1.FieldKind_FIELD_KIND_MESSAGE, Message: p.Value},
				}}
			}
		},
		"too large": func(p *mapsyncv1.Schema) { p.Key.Fields[0].Type = strings.Repeat("x", MaxSchemaBytes) },
	} {
		p := SchemaToProto(schematest.OldVersion())
		spoil(p)
		if _, err := SchemaFromProto("typed", p); err == nil {
			t.Errorf("%s: schema: got no error, want one", name)
		}
	}
}

func perCPU() *schema.Schema {
	s := schematest.OldVersion()
	s.Value.Fields = s.Value.Fields[5:6]
	return s.PerCPU(4)
}

// TestPeerSchemaValidation checks that an invalid schema is an error, and that a valid one is
// unchanged after the conversion. The keys of the table are parts of the errors.
func TestPeerSchemaValidation(t *testing.T) {
	for _, s := range []*schema.Schema{schematest.OldVersion(), schematest.NewVersion(), schematest.InterfaceKey()} {
		got, err := SchemaFromProto("typed", SchemaToProto(s))
		if err != nil || fmt.Sprint(SchemaToProto(got)) != fmt.Sprint(SchemaToProto(s)) {
			t.Errorf("schema: got error %v or another schema, want no error and the same schema", err)
		}
	}
	deep := func(levels int) *mapsyncv1.MessageType {
		m := &mapsyncv1.MessageType{Name: "leaf", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindUint)}}}
		for range levels {
			m = &mapsyncv1.MessageType{Name: "m", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindMessage), Message: m}}}
		}
		return m
	}
	for want, change := range map[string]func(*mapsyncv1.Schema){
		"read schema of":              func(s *mapsyncv1.Schema) { s.Key.Name = strings.Repeat("k", MaxSchemaBytes) },
		"type of keys: read no type":  func(s *mapsyncv1.Schema) { s.Key = nil },
		"type of values: read no typ": func(s *mapsyncv1.Schema) { s.Value = nil },
		"unknown kind 0":              func(s *mapsyncv1.Schema) { s.Key.Fields[0].Kind = 0 },
		"unknown kind 99":             func(s *mapsyncv1.Schema) { s.Key.Fields[0].Kind = 99 },
		"unknown role 0":              func(s *mapsyncv1.Schema) { s.Key.Fields[0].Roles = []mapsyncv1.FieldRole{0} },
		"unknown role 99":             func(s *mapsyncv1.Schema) { s.Key.Fields[0].Roles = []mapsyncv1.FieldRole{99} },
		"nested more than":            func(s *mapsyncv1.Schema) { s.Value = deep(schema.MaxDepth + 1) },
	} {
		p := SchemaToProto(schematest.OldVersion())
		change(p)
		if _, err := SchemaFromProto("typed", p); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("schema: want error %q, got: %v", want, err)
		}
	}
	if _, err := SchemaFromProto("typed", nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("no schema: got %v, want ErrMalformed", err)
	}
	if _, err := messageFromProto(deep(schema.MaxDepth), 1); err != nil {
		t.Errorf("schema with the maximum depth: got %v, want no error", err)
	}
}

// TestMaxSchemaSize checks schemas with the maximum size.
func TestMaxSchemaSize(t *testing.T) {
	sized := func(size int) *schema.Schema {
		s := schematest.OldVersion()
		s.Key.Name = ""
		room := size - proto.Size(SchemaToProto(s))
		for n := room; n > 0; n-- {
			s.Key.Name = strings.Repeat("k", n)
			if proto.Size(SchemaToProto(s)) <= size {
				break
			}
		}
		if got := proto.Size(SchemaToProto(s)); got != size {
			t.Fatalf("schema size: got %d bytes, want %d", got, size)
		}
		return s
	}
	const tooLarge = "more than 131072"
	for _, size := range []int{MaxSchemaBytes, MaxSchemaBytes + 1} {
		s := sized(size)
		_, err := SchemaFromProto("typed", SchemaToProto(s))
		if got := err != nil && strings.Contains(err.Error(), tooLarge); got != (size > MaxSchemaBytes) {
			t.Errorf("read a schema of %d bytes: got %v, want an error about the size: %t", size, err, size > MaxSchemaBytes)
		}
	}
}

// TestMaxTypeDepth checks that the depth of types is bounded in keys and values.
func TestMaxTypeDepth(t *testing.T) {
	nested := func(levels int) *mapsyncv1.MessageType {
		m := &mapsyncv1.MessageType{Name: "leaf", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindUint)}}}
		for range levels {
			m = &mapsyncv1.MessageType{Name: "m", Size: 1, Fields: []*mapsyncv1.Field{{Name: "f", Number: 1, Size: 1, Kind: kindToProto(schema.KindMessage), Message: m}}}
		}
		return m
	}
	for name, change := range map[string]func(*mapsyncv1.Schema, *mapsyncv1.MessageType){
		"key":   func(s *mapsyncv1.Schema, m *mapsyncv1.MessageType) { s.Key = m },
		"value": func(s *mapsyncv1.Schema, m *mapsyncv1.MessageType) { s.Value = m },
	} {
		for _, levels := range []int{schema.MaxDepth, schema.MaxDepth + 1} {
			p := SchemaToProto(schematest.OldVersion())
			change(p, nested(levels))
			_, err := SchemaFromProto("typed", p)
			if deep := err != nil && strings.Contains(err.Error(), "nested more than"); deep != (levels > schema.MaxDepth) {
				t.Errorf("%s with %d levels: got %v, want an error about the levels: %t", name, levels, err, levels > schema.MaxDepth)
			}
		}
	}
}
