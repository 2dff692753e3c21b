package schema

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file.
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
		t.Errorf("%s differs (-update writes it anew). Got:\n%s", path, got)
	}
}

func TestShow(t *testing.T) {
	var out bytes.Buffer
	for _, s := range []*Schema{conntrack(), perCPU(), opaque()} {
		if err := Show(&out, s); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "show.golden", out.Bytes())
}

func opaque() *Schema {
	bytes := func(size int) *Message {
		return &Message{Name: "m", Size: size, Fields: []Field{
			{Name: "bytes", Number: 1, Size: size, Kind: KindBytes, Type: "unsigned char[4]"},
		}}
	}
	return &Schema{Map: "4 bytes \"of\n*/ what?\"", Opaque: true, Key: bytes(4), Value: bytes(4)}
}

func TestExport(t *testing.T) {
	file := export(t, conntrack())
	golden(t, "export.proto.golden", []byte(file))
	compile(t, file)
}

func export(t rapid.TB, s *Schema) string {
	t.Helper()
	var out bytes.Buffer
	if err := Export(&out, s); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// compile compiles a .proto file with protocompile, which is the compiler within buf.
func compile(t rapid.TB, file string) protoreflect.FileDescriptor {
	t.Helper()
	compiler := protocompile.Compiler{
		Resolver: &protocompile.SourceResolver{Accessor: protocompile.SourceAccessorFromMap(map[string]string{"map.proto": file})},
	}
	files, err := compiler.Compile(context.Background(), "map.proto")
	if err != nil {
		t.Fatalf("%v in:\n%s", err, file)
	}
	return files[0]
}

// Every layout of the object: from C to what buf compiles.
func TestExportLayouts(t *testing.T) {
	schemas, err := FromObject(layouts)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range schemas {
		for _, s := range []*Schema{s, s.PerCPU(3)} {
			file := compile(t, export(t, s))
			if got, want := file.Messages().Get(1).Fields().Len(), sentFields(s.Value); got != want {
				t.Errorf("map %s: value has %d fields, not %d", s.Map, got, want)
			}
			if err := Show(io.Discard, s); err != nil {
				t.Error(err)
			}
		}
	}
}

func sentFields(m *Message) (n int) {
	for i := range m.Fields {
		if m.Fields[i].Sent() {
			n++
		}
	}
	return n
}

// The exported contract is the daemon's own, but for what it reserves and for keys and
// values, which are messages in place of bytes.
func TestExportedContract(t *testing.T) {
	own := mapsyncv1.File_mapsync_v1_replication_proto
	file := compile(t, export(t, conntrack()))
	if file.Package() != own.Package() {
		t.Errorf("package is %s", file.Package())
	}
	method, ownMethod := file.Services().Get(0).Methods().Get(0), own.Services().Get(0).Methods().Get(0)
	if method.FullName() != ownMethod.FullName() || method.Input().Name() != ownMethod.Input().Name() ||
		method.Output().Name() != ownMethod.Output().Name() || !method.IsStreamingClient() || !method.IsStreamingServer() {
		t.Errorf("method is %v", method)
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
		ownValues := own.Enums().ByName(e.Name()).Values()
		for j := range max(e.Values().Len(), ownValues.Len()) {
			v, ownValue := e.Values().Get(j), ownValues.Get(j)
			if v.Name() != ownValue.Name() || v.Number() != ownValue.Number() {
				t.Errorf("%s is %d", v.FullName(), v.Number())
			}
		}
	}
}

func sameContract(t *testing.T, m, own protoreflect.MessageDescriptor) {
	t.Helper()
	if own == nil {
		t.Errorf("%s is none of the daemon's", m.FullName())
		return
	}
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); own.Fields().ByNumber(f.Number()) == nil {
			t.Errorf("%s is none of the daemon's", f.FullName())
		}
	}
	for i := range own.Fields().Len() {
		want := own.Fields().Get(i)
		got := m.Fields().ByNumber(want.Number())
		if got == nil {
			if !m.ReservedRanges().Has(want.Number()) || !m.ReservedNames().Has(want.Name()) {
				t.Errorf("%s has no field %s, and does not reserve it", m.FullName(), want.Name())
			}
			continue
		}
		if got.Name() != want.Name() || got.Cardinality() != want.Cardinality() || !sameOnWire(got, want) ||
			(got.ContainingOneof() == nil) != (want.ContainingOneof() == nil) {
			t.Errorf("%s is %v, the daemon has %v", got.FullName(), got, want)
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

// C allows names that protobuf does not.
func TestExportNames(t *testing.T) {
	enum := func(name string, values ...string) *Enum {
		e := &Enum{Name: name}
		for i, v := range values {
			e.Values = append(e.Values, EnumValue{v, uint64(i + 1)})
		}
		return e
	}
	var fields []Field
	add := func(f Field) {
		f.Number, f.Offset, f.Size, f.Type, f.Doc = len(fields)+1, 4*len(fields), 4, "int", "a\n*/ doc"
		fields = append(fields, f)
	}
	for _, name := range []string{
		"message", "string", "reserved", "option", "repeated", "oneof", "foo_bar", "fooBar", "foo__bar", "foo_bar_",
		"_", "__", "___1", "CtKey", "Inner", "uint32", "CT_OPEN", "Mapsync", "mapsync", "google",
	} {
		add(Field{Name: name, Kind: KindUint})
	}
	add(Field{Name: "a", Kind: KindEnum, Enum: enum("state", "CT_OPEN", "option", "reserved", "STATE_NEW", "New", "n_e_w", "new", "")})
	add(Field{Name: "b", Kind: KindEnum, Enum: enum("state", "CT_OPEN", "max", "1st", "A_UNSPECIFIED")})
	add(Field{Name: "c", Kind: KindEnum, Enum: enum("a", "STATE", "A_UNSPECIFIED", "message", "state")})
	add(Field{Name: "d", Kind: KindEnum, Enum: enum("")})
	add(Field{Name: "gone", Kind: KindNone})
	fields[len(fields)-1].Number = 1
	for _, name := range []string{"inner", "Inner", "inner_", "x_key", "Value", "string", "1", "_", "\u00e9<T>"} {
		add(Field{Name: "m" + legalName(name), Kind: KindMessage, Message: &Message{Name: name, Size: 4, Fields: []Field{
			{Name: "Inner2", Number: 1, Size: 4, Kind: KindSint, Type: name},
		}}})
	}
	for i := range 2 { // of one name, but not the same
		add(Field{Name: "same" + string('a'+rune(i)), Kind: KindMessage, Message: &Message{Name: "twin", Size: 4, Fields: []Field{
			{Name: "x", Number: i + 1, Size: 4, Kind: KindSint, Type: "int"},
		}}})
	}
	m := &Message{Name: "x\n*/", Size: 4 * len(fields), Fields: fields}
	key := &Message{Name: "k", Size: 4, Fields: []Field{{Name: "k", Number: 1, Size: 4, Kind: KindUint}}}
	for _, name := range []string{"x", "", "1", "hello", "map", "\"\t\n*/ {{.Key}}", "\u00e9\u2028message", "delta"} {
		file := compile(t, export(t, &Schema{Map: name, Key: key, Value: m}))
		value := file.Messages().Get(1)
		renamed := map[string]protoreflect.Name{
			"fooBar": "fooBar2", "foo__bar": "foo__bar3", "foo_bar_": "foo_bar_4", "_": "field_", "__": "field__2",
			"minner_": "minner_2",
		}
		for i := range fields {
			want := cmp.Or(renamed[fields[i].Name], protoreflect.Name(fields[i].Name))
			f := value.Fields().ByNumber(protoreflect.FieldNumber(fields[i].Number))
			if fields[i].Sent() && f.Name() != want {
				t.Errorf("map %q: field %s became %s", name, fields[i].Name, f.Name())
			}
		}
		twins := value.Fields().ByName("samea").Message() != value.Fields().ByName("sameb").Message()
		if !twins {
			t.Errorf("map %q: two types became one", name)
		}
	}
}

func TestExportRefuses(t *testing.T) {
	s := conntrack()
	s.Key.Fields[0].Number = 19000
	if err := Export(io.Discard, s); !errors.Is(err, ErrType) {
		t.Errorf("number 19000: error %v", err)
	}
}
