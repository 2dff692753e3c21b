package export

import (
	"bytes"
	"fmt"
	"strings"

	"mapsync/printable"
	"mapsync/syncd/schema"
)

// referencedMap returns the name of the map to which a field refers.
func referencedMap(f *schema.Field) string {
	name, _, _ := strings.Cut(f.Reference, "[")
	return oneLine(name)
}

// repeated reports whether the field is an array on the wire.
func repeated(f *schema.Field) bool { return f.Count > 0 }

// meaning returns sentences about the field's content for readers of the wire format. The last
// sentence has no full stop.
func meaning(f *schema.Field) string {
	var parts []string
	switch {
	case f.Kind == schema.KindTime:
		parts = append(parts, "Unix time in nanoseconds by the node's clock, 0 if not set", "In the kernel: "+clockName(f.Roles))
	case f.Kind == schema.KindIfname:
		parts = append(parts, "Name of a network interface of the node", "In the kernel: index of the interface")
	case f.Kind == schema.KindReference:
		parts = append(parts, "What an id of map "+referencedMap(f)+" means: "+f.ReferenceFields(), "In the kernel: the id, which each node assigns itself")
	case f.IsIPv4():
		parts = append(parts, "IPv4 address as a number: 10.0.0.1 is 0x0a000001")
	case f.Roles&schema.RoleIPv4 != 0:
		parts = append(parts, "IPv4 address in network byte order")
	case f.Roles&(schema.RoleIPv6|schema.RoleIP) != 0:
		parts = append(parts, "IPv6 address in network byte order, or an IPv4 address in the first 4 bytes")
	case f.Roles&schema.RoleMAC != 0:
		parts = append(parts, "MAC address")
	case f.Roles&schema.RolePort != 0:
		parts = append(parts, "Port")
	}
	if f.Swapped() && !f.IsIPv4() {
		parts = append(parts, "In the kernel: network byte order")
	}
	if f.Kind == schema.KindEnum && f.Size > 4 {
		parts = append(parts, "Enum of 64 bits, which protobuf does not support: "+listValues(f.Enum))
	}
	if text := leftOut(f); text != "" {
		parts = append(parts, text)
	}
	if f.Roles&schema.RoleVolatile != 0 {
		parts = append(parts, "Volatile: syncd need not send a change of this field alone")
	}
	if f.Roles&schema.RoleSum != 0 {
		parts = append(parts, "The sum over all CPUs is significant")
	}
	return strings.Join(parts, ". ")
}

// leftOut returns which zeros at the end of a field the wire format leaves out, or "" if it leaves out none.
func leftOut(f *schema.Field) string {
	switch {
	case f.Kind == schema.KindBytes && !repeated(f):
		return "Trailing zero bytes are left out"
	case repeated(f) && f.Kind == schema.KindBytes:
		return fmt.Sprintf("%d elements of %d bytes; trailing zeros are left out", f.Count, f.Size)
	case repeated(f):
		return fmt.Sprintf("%d elements; trailing zero elements are left out", f.Count)
	}
	return ""
}

// clockName returns the unit and the clock of a field with a time role.
func clockName(r schema.Role) string {
	switch {
	case r&schema.RoleBoottime != 0:
		return "nanoseconds of CLOCK_BOOTTIME"
	case r&schema.RoleJiffies != 0:
		return "jiffies"
	case r&schema.RoleJiffies256 != 0:
		return "units of 256 jiffies"
	case r&schema.RoleSeconds != 0:
		return "seconds of CLOCK_MONOTONIC"
	}
	return "nanoseconds of CLOCK_MONOTONIC"
}

// cType returns the C declaration of a field and its position.
func cType(f *schema.Field) string {
	if f.BitSize > 0 {
		return fmt.Sprintf("%s %s : %d; offset %s", f.Type, f.Name, f.BitSize, place(f.FirstBit()))
	}
	base, dims, _ := strings.Cut(f.Type, "[")
	if dims != "" {
		dims = "[" + dims
	}
	if base = strings.TrimSpace(base); !strings.HasSuffix(base, "*") {
		base += " "
	}
	return fmt.Sprintf("%s%s%s; offset %d, size %d", base, f.Name, dims, f.Offset, f.Bytes())
}

// listValues returns the first values of an enum as text.
func listValues(e *schema.Enum) string {
	const most = 16
	values := make([]string, 0, most)
	for i, v := range e.Values {
		if i == most {
			values = append(values, "...")
			break
		}
		if e.Signed {
			values = append(values, fmt.Sprintf("%s = %d", v.Name, int64(v.Value)))
		} else {
			values = append(values, fmt.Sprintf("%s = %d", v.Name, v.Value))
		}
	}
	return strings.Join(values, ", ")
}

// enum writes an enum. Its zero value comes first, as proto3 requires.
func (x *exporter) enum(n namedEnum) {
	names := x.enumNames(n.name, n.e)
	seen := make(map[int32]bool)
	var zero, rest []string
	alias, wraps := false, false
	for i, v := range n.e.Values {
		number := int32(v.Value)
		alias = alias || seen[number]
		seen[number] = true
		wraps = wraps || !n.e.Signed && number < 0
		line := fmt.Sprintf("    %s = %d;\n", names[i], number)
		if number == 0 {
			zero = append(zero, line)
		} else {
			rest = append(rest, line)
		}
	}
	if len(zero) == 0 {
		name := strings.ToUpper(snakeName(n.name)) + "_UNSPECIFIED"
		zero = []string{"    // Not a value of the C enum.\n", fmt.Sprintf("    %s = 0;\n", x.names.take(name))}
	}
	x.out.WriteByte('\n')
	comment := fmt.Sprintf("C: enum %s.", n.e.Name)
	if wraps {
		comment += " Values of 2147483648 and more are negative here, because protobuf's enums are signed."
	}
	writeComment(&x.out, "  ", comment)
	fmt.Fprintf(&x.out, "  enum %s {\n", n.name)
	if alias {
		x.out.WriteString("    option allow_alias = true;\n")
	}
	x.out.WriteString(strings.Join(zero, "") + strings.Join(rest, "") + "  }\n")
}

// sentence converts a phrase to a sentence, followed by a space.
func sentence(phrase string) string {
	if phrase = strings.TrimSuffix(strings.TrimSpace(phrase), "."); phrase == "" {
		return ""
	}
	return strings.ToUpper(phrase[:1]) + phrase[1:] + ". "
}

// writeComment writes text as a comment with limited line length.
func writeComment(out *bytes.Buffer, indent, text string) {
	const width = 90
	if text == "" {
		return
	}
	line := indent + "//"
	for word := range strings.FieldsSeq(oneLine(text)) {
		if len(line)+1+len(word) > width && len(line) > len(indent)+2 {
			out.WriteString(line + "\n")
			line = indent + "//"
		}
		line += " " + word
	}
	out.WriteString(line + "\n")
}

// oneLine returns a text that neither ends a comment nor a line of a table.
func oneLine(s string) string { return printable.Text(strings.Join(strings.Fields(s), " ")) }
