package export

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/template"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
)

// contractText is the protocol that a subscriber needs, with the messages of one map. It repeats
// part of proto/mapsync/v1. A test compares the two.
//
//go:embed proto.tmpl
var contractText string

var contract = template.Must(template.New("contract").Parse(contractText))

// Proto writes a proto3 file with the messages of s and of the service that streams them. The file
// contains everything that a gRPC client needs to subscribe to the map and read typed deltas. It is
// for one map, because all deltas of a batch have the same type. mapsync's own protocol
// (proto/mapsync/v1) has bytes where the file has messages, which is equal on the wire. The names
// of package and service are equal too, so a program cannot link both, or the files of two maps.
// The file has the checksum of the schema, with which a client finds a node with other types.
//
// The error for an invalid schema wraps [schema.ErrType].
func Proto(w io.Writer, s *schema.Schema) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("export map %s: %w", s.Map, err)
	}
	name := camelName(s.Map, "Map")
	key := exportHalf(s.Key, name+"Key", "is a key of map "+s.Map+".")
	value := exportHalf(s.Value, name+"Value", "is a value of map "+s.Map+".")
	checksum, err := wire.SchemaChecksum(s)
	if err != nil {
		return fmt.Errorf("export map %s: %w", s.Map, err)
	}
	var file bytes.Buffer
	err = contract.Execute(&file, struct {
		Map, Quoted, Name, GoName string
		Opaque                    bool
		Key, Value                string
		Checksum                  int32
	}{oneLine(s.Map), strconv.QuoteToASCII(s.Map), name, strings.ToLower(name), s.Opaque, key, value, checksum})
	if err != nil {
		return fmt.Errorf("write .proto file: %w", err)
	}
	if _, err := w.Write(file.Bytes()); err != nil {
		return fmt.Errorf("write .proto file: %w", err)
	}
	return nil
}

// exporter writes the message of a key or value. It nests all types that the message needs in it,
// at one level.
type exporter struct {
	out   bytes.Buffer
	names nameSet
	// Types written, and types still to be written.
	messages []namedMessage
	enums    []namedEnum
}

type namedMessage struct {
	name string
	m    *schema.Message
}

type namedEnum struct {
	name string
	e    *schema.Enum
}

func exportHalf(m *schema.Message, name, comment string) string {
	x := &exporter{names: nameSet{name: true}}
	x.collect(m)
	writeComment(&x.out, "", fmt.Sprintf("%s %s C: %s, %d bytes.", name, comment, m.Name, m.Size))
	fmt.Fprintf(&x.out, "message %s {\n", name)
	x.fields(m, "  ")
	for _, nested := range x.messages {
		x.out.WriteByte('\n')
		writeComment(&x.out, "  ", fmt.Sprintf("C: %s, %d bytes.", nested.m.Name, nested.m.Size))
		fmt.Fprintf(&x.out, "  message %s {\n", nested.name)
		x.fields(nested.m, "    ")
		x.out.WriteString("  }\n")
	}
	for _, nested := range x.enums {
		x.enum(nested)
	}
	x.out.WriteString("}\n")
	return x.out.String()
}

// collect assigns a name to every type that m needs. It reserves the names of fields first, so the
// name of a type never equals the name of a field.
func (x *exporter) collect(m *schema.Message) {
	eachMessage(m, func(m *schema.Message) {
		for _, name := range fieldNames(m) {
			x.names[name] = true
		}
	})
	eachMessage(m, func(m *schema.Message) {
		for i := range m.Fields {
			switch f := &m.Fields[i]; f.WireType() {
			case "message":
				if f.Sent() && x.messageName(f.Message) == "" {
					x.messages = append(x.messages, namedMessage{x.names.take(camelName(f.Message.Name, "Struct")), f.Message})
				}
			case "enum":
				if f.Sent() && x.enumName(f.Enum) == "" {
					x.enums = append(x.enums, namedEnum{x.names.take(camelName(f.Enum.Name, "Enum")), f.Enum})
				}
			}
		}
	})
}

// eachMessage calls the function for m and every nested message that is sent, outer messages first.
func eachMessage(m *schema.Message, what func(*schema.Message)) {
	what(m)
	for i := range m.Fields {
		if f := &m.Fields[i]; f.Message != nil && f.Sent() {
			eachMessage(f.Message, what)
		}
	}
}

// messageName returns the name of a message that equals m, so that two fields of one C type share a
// type.
func (x *exporter) messageName(m *schema.Message) string {
	for i := range x.messages {
		if other := x.messages[i].m; other == m || sameMessage(other, m) {
			return x.messages[i].name
		}
	}
	return ""
}

func (x *exporter) enumName(e *schema.Enum) string {
	for i := range x.enums {
		if other := x.enums[i].e; other == e || sameEnum(other, e) {
			return x.enums[i].name
		}
	}
	return ""
}

// fields writes the fields of a message, and reserves the names and numbers of fields that are not
// sent.
func (x *exporter) fields(m *schema.Message, indent string) {
	names := fieldNames(m)
	taken := make(map[int]bool)
	for i := range m.Fields {
		taken[m.Fields[i].Number] = taken[m.Fields[i].Number] || m.Fields[i].Sent()
	}
	for i := range m.Fields {
		f := &m.Fields[i]
		if i > 0 {
			x.out.WriteByte('\n')
		}
		if !f.Sent() {
			x.reserve(f, names[i], indent, !taken[f.Number])
			taken[f.Number] = true
			continue
		}
		writeComment(&x.out, indent, sentence(f.Doc)+sentence(meaning(f)))
		writeComment(&x.out, indent, "C: "+cType(f)+".")
		x.out.WriteString(indent)
		if repeated(f) {
			x.out.WriteString("repeated ")
		}
		fmt.Fprintf(&x.out, "%s %s = %d;\n", x.typeName(f), names[i], f.Number)
	}
}

// reserve reserves the name of a field that is not sent. It also reserves its number unless another
// field has it.
func (x *exporter) reserve(f *schema.Field, name, indent string, number bool) {
	why := f.Doc
	switch {
	case f.Kind != schema.KindNone:
		why = sentence(f.Doc) + "local to each node"
	case why == "":
		why = "owned by the kernel, or a pointer"
	}
	writeComment(&x.out, indent, sentence(why)+"Not sent.")
	writeComment(&x.out, indent, "C: "+cType(f)+".")
	if number && 0 < f.Number && f.Number <= schema.MaxNumber {
		fmt.Fprintf(&x.out, "%sreserved %d;\n", indent, f.Number)
	}
	fmt.Fprintf(&x.out, "%sreserved %q;\n", indent, name)
}

func (x *exporter) typeName(f *schema.Field) string {
	switch f.WireType() {
	case "message":
		return x.messageName(f.Message)
	case "enum":
		return x.enumName(f.Enum)
	}
	return f.WireType()
}
