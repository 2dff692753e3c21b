package schema

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	deep := &Message{Size: 1, Fields: []Field{{Name: "f", Number: 1, Size: 1, Kind: KindUint}}}
	for range MaxDepth + 1 {
		deep = &Message{Size: 1, Fields: []Field{{Name: "f", Number: 1, Size: 1, Kind: KindMessage, Message: deep}}}
	}
	loop := &Message{Size: 1, Fields: []Field{{Name: "f", Number: 1, Size: 1, Kind: KindMessage}}}
	loop.Fields[0].Message = loop
	wide := &Message{Size: 0, Fields: []Field{{Name: "x", Kind: KindNone}, {Name: "y", Kind: KindNone}}}
	for range MaxDepth - 1 {
		wide = &Message{Size: 0, Fields: []Field{
			{Name: "x", Number: 1, Kind: KindMessage, Message: wide}, {Name: "y", Number: 2, Kind: KindMessage, Message: wide},
		}}
	}
	tests := []struct {
		name  string
		field Field
	}{
		{"too deep", Field{Size: 1, Kind: KindMessage, Message: deep}},
		{"endless", Field{Size: 1, Kind: KindMessage, Message: loop}},
		{"many fields", Field{Size: 0, Kind: KindMessage, Message: wide}},
		{"many elements", Field{Size: 0, Count: MaxSize, Kind: KindMessage, Message: wide}},
		{"many empty elements", Field{Size: 0, Count: MaxSize, Kind: KindMessage, Message: &Message{}}},
		{"no type", Field{Size: 1, Kind: KindMessage}},
		{"number", Field{Number: 19500, Size: 1, Kind: KindUint}},
		{"number", Field{Number: 1 << 29, Size: 1, Kind: KindUint}},
		{"number", Field{Number: -1, Size: 1, Kind: KindUint}},
		{"size", Field{Size: 3, Kind: KindUint}},
		{"size", Field{Size: 2, Kind: KindFloat}},
		{"size", Field{Size: math.MaxInt, Kind: KindBytes}},
		{"count", Field{Size: 1, Count: math.MaxInt, Kind: KindUint}},
		{"count", Field{Size: 1, Count: -1, Kind: KindUint}},
		{"kind", Field{Size: 1, Kind: 99}},
		{"enum", Field{Size: 1, Kind: KindEnum}},
		{"bits", Field{Size: 1, BitSize: 9, Kind: KindUint}},
		{"bits", Field{Size: 8, BitSize: 2, BitOffset: math.MaxInt, Kind: KindUint}},
		{"bits", Field{Size: 4, BitSize: 4, Kind: KindFloat}},
		{"bit array", Field{Size: 1, BitSize: 2, Count: 2, Kind: KindUint}},
		{"two clocks", Field{Size: 8, Kind: KindTime, Roles: RoleKtime | RoleJiffies}},
		{"no clock", Field{Size: 8, Kind: KindTime}},
		{"default", Field{Size: 2, Kind: KindUint, Default: []byte{1}}},
		{"text", Field{Size: 2, Kind: KindUint, Doc: "\x1b[2J"}},
	}
	for _, test := range tests {
		test.field.Name = "a"
		s := oneValue(Field{Name: "b", Number: 7, Size: 1, Kind: KindUint})
		test.field.Offset = 1
		if test.field.Number == 0 {
			test.field.Number = 1
		}
		s.Value.Fields = append(s.Value.Fields, test.field)
		s.Value.Size = 64
		if err := s.Check(); !errors.Is(err, ErrType) || !strings.Contains(err.Error(), "value") {
			t.Errorf("check schema with %s: got %v, want ErrType", test.name, err)
		}
	}
}

// TestCheckSchema checks errors that depend on more than one field.
func TestCheckSchema(t *testing.T) {
	tests := map[string]func(s *Schema){
		"no key":                            func(s *Schema) { s.Key = nil },
		"no size":                           func(s *Schema) { s.Value.Size, s.Value.Fields = 0, nil },
		"large":                             func(s *Schema) { s.Value.Size = MaxSize + 1 },
		"outside":                           func(s *Schema) { s.Value.Size = 3 },
		"overlap":                           func(s *Schema) { s.Value.Fields[1].Offset = 1 },
		"same name":                         func(s *Schema) { s.Value.Fields[1].Name = "a" },
		"same number":                       func(s *Schema) { s.Value.Fields[1].Number = 1 },
		"bad name":                          func(s *Schema) { s.Value.Fields[1].Name = "a.b" },
		"long name":                         func(s *Schema) { s.Value.Fields[1].Name = strings.Repeat("a", 129) },
		"map":                               func(s *Schema) { s.Map = "\x00" },
		"local key":                         func(s *Schema) { s.Key.Fields[0].Roles = RoleLocal },
		"time in a key":                     func(s *Schema) { s.Key.Fields[0].Kind, s.Key.Fields[0].Roles = KindTime, RoleSeconds },
		"scalar with the type of a message": func(s *Schema) { s.Value.Fields[0].Message = s.Key },
		"CPUs":                              func(s *Schema) { s.CPUs = 2 },
	}
	for name, change := range tests {
		s := oneValue(Field{Name: "a", Size: 2, Kind: KindUint}, Field{Name: "b", Size: 2, Kind: KindUint})
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		change(s)
		if err := s.Check(); !errors.Is(err, ErrType) {
			t.Errorf("check schema with %s: got %v, want ErrType", name, err)
		}
		if _, err := NewEncoder(s, nil); !errors.Is(err, ErrType) {
			t.Errorf("new encoder for schema with %s: got %v, want ErrType", name, err)
		}
	}
}

func TestEqual(t *testing.T) {
	tests := map[string]struct {
		change           func(f *Field)
		equal, identical bool
	}{
		"doc":      {func(f *Field) { f.Doc, f.Type = "x", "y" }, true, true},
		"port":     {func(f *Field) { f.Roles = RolePort }, true, true},
		"default":  {func(f *Field) { f.Default = []byte{1, 2} }, true, false},
		"volatile": {func(f *Field) { f.Roles = RoleVolatile | RolePort }, true, false},
		"sum":      {func(f *Field) { f.Roles = RoleSum }, true, false},
		"name":     {func(f *Field) { f.Name = "b" }, false, false},
		"number":   {func(f *Field) { f.Number = 2 }, false, false},
		"order":    {func(f *Field) { f.Roles = RoleBE }, false, false},
		"local":    {func(f *Field) { f.Roles = RoleLocal }, false, false},
		"kind":     {func(f *Field) { f.Kind = KindSint }, false, false},
	}
	for name, test := range tests {
		a, b := oneValue(Field{Name: "a", Size: 2, Kind: KindUint}), oneValue(Field{Name: "a", Size: 2, Kind: KindUint})
		test.change(&b.Value.Fields[0])
		if Equal(a, b) != test.equal {
			t.Errorf("Equal with different %s: got %v, want %v", name, !test.equal, test.equal)
		}
		if Identical(a, b) != test.identical {
			t.Errorf("Identical with different %s: got %v, want %v", name, !test.identical, test.identical)
		}
	}
	if fields := slices.Clone(conntrackSchema().Value.Fields); !equalMessages(conntrackSchema().Value, &Message{Size: 176, Fields: fields}) {
		t.Error("Equal of a schema with itself: got false, want true")
	}
}
