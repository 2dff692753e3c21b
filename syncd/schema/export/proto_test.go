package export_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/schematest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a golden file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update rewrites it), got:\n%s\nwant:\n%s", path, got, want)
	}
}

func TestProto(t *testing.T) {
	file := protoFile(t, schematest.Conntrack())
	golden(t, "proto.golden", []byte(file))
	compile(t, file)
}

// protoFile returns the .proto file of a schema.
func protoFile(t rapid.TB, s *schema.Schema) string {
	t.Helper()
	var out bytes.Buffer
	if err := export.Proto(&out, s); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// compile compiles a .proto file with protocompile, the compiler that buf uses.
func compile(t rapid.TB, file string) protoreflect.FileDescriptor {
	t.Helper()
	compiler := protocompile.Compiler{
		Resolver: &protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{"map.proto": file})},
	}
	files, err := compiler.Compile(context.Background(), "map.proto")
	if err != nil {
		t.Fatalf("compile: %v in:\n%s", err, file)
	}
	return files[0]
}

// TestProtoOfLayouts exports every layout of the object, and compiles the result with buf's
// compiler.
func TestProtoOfLayouts(t *testing.T) {
	schemas, err := schema.FromObject("../testdata/layouts.o")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range schemas {
		for _, s := range []*schema.Schema{s, s.PerCPU(3)} {
			file := compile(t, protoFile(t, s))
			if got, want := file.Messages().Get(1).Fields().Len(), sentFields(s.Value); got != want {
				t.Errorf("map %s: got %d fields in the value, want %d", s.Map, got, want)
			}
			if err := export.Table(io.Discard, s); err != nil {
				t.Error(err)
			}
		}
	}
}

func sentFields(m *schema.Message) (n int) {
	for i := range m.Fields {
		if m.Fields[i].Sent() {
			n++
		}
	}
	return n
}

// TestProtoContainsContract checks that the exported protocol equals mapsync's own, except for reserved
// fields, and for keys and values, which are messages in place of bytes.
func TestProtoContainsContract(t *testing.T) {
	own := mapsyncv1.File_mapsync_v1_replication_proto
	file := compile(t, protoFile(t, schematest.Conntrack()))
	if file.Package() != own.Package() {
		t.Errorf("package: got %s, want %s", file.Package(), own.Package())
	}
	method, ownMethod := file.Services().Get(0).Methods().Get(0), own.Services().Get(0).Methods().Get(0)
	if method.FullName() != ownMethod.FullName() || method.Input().Name() != ownMethod.Input().Name() ||
		method.Output().Name() != ownMethod.Output().Name() || !method.IsStreamingClient() || !method.IsStreamingServer() {
		t.Errorf("method: got %v, want %v, with streams in both directions", method, ownMethod)
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		switch m.Name() {
		case "CtMapKey", "CtMapValue":
		case "CtMapDelta":
			sameContract(t, m, own.Messages().ByName("Delta"))
		default:
			sameContract(t, m, own.Messages().ByName(m.Name()))
		}
	}
	for i := range file.Enums().Len() {
		e := file.Enums().Get(i)
		if e.Name() == "SchemaChecksum" {
			continue // TestProtoHasChecksum
		}
		ownValues := own.Enums().ByName(e.Name()).Values()
		for j := range max(e.Values().Len(), ownValues.Len()) {
			v, ownValue := e.Values().Get(j), ownValues.Get(j)
			if v.Name() != ownValue.Name() || v.Number() != ownValue.Number() {
				t.Errorf("enum value: got %s = %d, want %s = %d", v.Name(), v.Number(), ownValue.Name(), ownValue.Number())
			}
		}
	}
}

// TestProtoHasChecksum checks that the file has the checksum of the schema as nodes send it, which differs if the types or their
// roles differ.
func TestProtoHasChecksum(t *testing.T) {
	sums := make(map[protoreflect.EnumNumber]string)
	schemas := map[string]*schema.Schema{
		"the map": schematest.Conntrack(), "its former version": schematest.OldVersion(), "per CPU": schematest.PerCPU(), "with origin": schematest.Conntrack().WithOrigin(8),
	}
	for name, s := range schemas {
		data, err := proto.Marshal(&mapsyncv1.MapAccepted{Schema: wire.SchemaToProto(s)})
		if err != nil {
			t.Fatal(err)
		}
		accepted := dynamicpb.NewMessage(compile(t, protoFile(t, s)).Messages().ByName("MapAccepted"))
		if err := proto.Unmarshal(data, accepted); err != nil {
			t.Fatal(err)
		}
		sent := accepted.Get(accepted.Descriptor().Fields().ByName("schema")).Bytes()
		want := protoreflect.EnumNumber(crc32.ChecksumIEEE(sent) & math.MaxInt32)
		got := compile(t, protoFile(t, s)).Enums().ByName("SchemaChecksum").Values().ByName("SCHEMA_CHECKSUM_CRC32").Number()
		if got != want || len(sent) == 0 {
			t.Errorf("%s: got checksum %d, want %d of %d bytes", name, got, want, len(sent))
		}
		sums[got] = name
	}
	if len(sums) != len(schemas) {
		t.Errorf("checksums: got %v, want one of each of %d schemas", sums, len(schemas))
	}
}

func sameContract(t *testing.T, m, own protoreflect.MessageDescriptor) {
	t.Helper()
	if own == nil {
		t.Errorf("message %s: not in mapsync's protocol", m.FullName())
		return
	}
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); own.Fields().ByNumber(f.Number()) == nil {
			t.Errorf("field %s: not in mapsync's protocol", f.FullName())
		}
	}
	for i := range own.Fields().Len() {
		want := own.Fields().Get(i)
		got := m.Fields().ByNumber(want.Number())
		if got == nil {
			if !m.ReservedRanges().Has(want.Number()) || !m.ReservedNames().Has(want.Name()) {
				t.Errorf("%s: field %s is neither present nor reserved", m.FullName(), want.Name())
			}
			continue
		}
		if got.Name() != want.Name() || got.Cardinality() != want.Cardinality() || !sameOnWire(got, want) ||
			(got.ContainingOneof() == nil) != (want.ContainingOneof() == nil) {
			t.Errorf("field %s: got %v, want %v", got.FullName(), got, want)
		}
	}
}

func sameOnWire(got, want protoreflect.FieldDescriptor) bool {
	switch {
	case got.Message() != nil && want.Message() != nil:
		return strings.TrimPrefix(string(got.Message().Name()), "CtMap") == string(want.Message().Name())
	case got.Enum() != nil && want.Enum() != nil:
		return got.Enum().Name() == want.Enum().Name()
	}
	delimited := func(f protoreflect.FieldDescriptor) bool {
		return f.Message() != nil || f.Kind() == protoreflect.BytesKind
	}
	return got.Kind() == want.Kind() || delimited(got) && delimited(want)
}

// TestProtoNames checks names that are legal in C but not in protobuf.
func TestProtoNames(t *testing.T) {
	enum := func(name string, values ...string) *schema.Enum {
		e := &schema.Enum{Name: name}
		for i, v := range values {
			e.Values = append(e.Values, schema.EnumValue{Name: v, Value: uint64(i + 1)})
		}
		return e
	}
	var fields []schema.Field
	add := func(f schema.Field) {
		f.Number, f.Offset, f.Size, f.Type, f.Doc = len(fields)+1, 4*len(fields), 4, "int", "a */ doc"
		fields = append(fields, f)
	}
	for _, name := range []string{
		"message", "string", "reserved", "option", "repeated", "oneof", "foo_bar", "fooBar", "foo__bar", "foo_bar_",
		"_", "__", "___1", "CtKey", "Inner", "uint32", "CT_OPEN", "Mapsync", "mapsync", "google",
	} {
		add(schema.Field{Name: name, Kind: schema.KindUint})
	}
	add(schema.Field{Name: "a", Kind: schema.KindEnum, Enum: enum("state", "CT_OPEN", "option", "reserved", "STATE_NEW", "New", "n_e_w", "new", "")})
	add(schema.Field{Name: "b", Kind: schema.KindEnum, Enum: enum("state", "CT_OPEN", "max", "1st", "A_UNSPECIFIED")})
	add(schema.Field{Name: "c", Kind: schema.KindEnum, Enum: enum("a", "STATE", "A_UNSPECIFIED", "message", "state")})
	add(schema.Field{Name: "d", Kind: schema.KindEnum, Enum: enum("")})
	add(schema.Field{Name: "gone", Kind: schema.KindNone})
	fields[len(fields)-1].Number = 1
	for _, m := range []struct{ field, message string }{
		{"minner", "inner"},
		{"mInner", "Inner"},
		{"minner_", "inner_"},
		{"mx_key", "x_key"},
		{"mValue", "Value"},
		{"mstring", "string"},
		{"m_1", "1"},
		{"m_", "_"},
		{"m__T_", "\u00e9<T>"},
	} {
		add(schema.Field{Name: m.field, Kind: schema.KindMessage, Message: &schema.Message{Name: m.message, Size: 4, Fields: []schema.Field{
			{Name: "Inner2", Number: 1, Size: 4, Kind: schema.KindSint, Type: m.message},
		}}})
	}
	for i := range 2 { // same name, different types
		add(schema.Field{Name: "same" + string('a'+rune(i)), Kind: schema.KindMessage, Message: &schema.Message{Name: "twin", Size: 4, Fields: []schema.Field{
			{Name: "x", Number: i + 1, Size: 4, Kind: schema.KindSint, Type: "int"},
		}}})
	}
	m := &schema.Message{Name: "x */", Size: 4 * len(fields), Fields: fields}
	key := &schema.Message{Name: "k", Size: 4, Fields: []schema.Field{{Name: "k", Number: 1, Size: 4, Kind: schema.KindUint}}}
	for _, name := range []string{"x", "", "1", "hello", "map", "\" */ {{.Key}}", "\u00e9message", "delta"} {
		file := compile(t, protoFile(t, &schema.Schema{Map: name, Key: key, Value: m}))
		value := file.Messages().Get(1)
		renamed := map[string]protoreflect.Name{
			"fooBar": "fooBar2", "foo__bar": "foo__bar3", "foo_bar_": "foo_bar_4", "_": "field_", "__": "field__2",
			"minner_": "minner_2",
		}
		for i := range fields {
			want := cmp.Or(renamed[fields[i].Name], protoreflect.Name(fields[i].Name))
			f := value.Fields().ByNumber(protoreflect.FieldNumber(fields[i].Number))
			if fields[i].Sent() && f.Name() != want {
				t.Errorf("map %q: name of field %s: got %s, want %s", name, fields[i].Name, f.Name(), want)
			}
		}
		twins := value.Fields().ByName("samea").Message() != value.Fields().ByName("sameb").Message()
		if !twins {
			t.Errorf("map %q: got one type for two different types, want two", name)
		}
	}
}

func TestProtoRefusesInvalidSchema(t *testing.T) {
	s := schematest.Conntrack()
	s.Key.Fields[0].Number = 19000
	if err := export.Proto(io.Discard, s); !errors.Is(err, schema.ErrType) {
		t.Errorf("export with field number 19000: got %v, want schema.ErrType", err)
	}
	for _, name := range []string{"ct\n*/", "ct\x1b", "ct\u2028", "ct\xff"} {
		s := schematest.Conntrack()
		s.Map = name
		if err := export.Proto(io.Discard, s); !errors.Is(err, schema.ErrType) {
			t.Errorf("export of map %q: got %v, want schema.ErrType", name, err)
		}
	}
}
