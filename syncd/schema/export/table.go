package export

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"mapsync/syncd/schema"
)

// Table writes a table of s's key and value for display. It includes fields that are never sent, and
// the padding. Offsets and sizes are in bytes from the beginning of the key or value. For arrays of
// structs they are those of the first element. A bitfield at offset 4:3 begins at bit 3 of byte 4,
// where bit 0 is the lowest. WIRE is the protobuf type, and NUMBER is the number of the field in
// its message.
func Table(w io.Writer, s *schema.Schema) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "map %s", oneLine(s.Map))
	if s.Opaque {
		text.WriteString(", without BTF: its entries are bytes without meaning")
	}
	if s.CPUs > 0 {
		fmt.Fprintf(&text, ", a value for each of %d CPUs", s.CPUs)
	}
	text.WriteByte('\n')
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	for _, half := range []struct {
		name string
		m    *schema.Message
	}{{"key", s.Key}, {"value", s.Value}} {
		fmt.Fprintf(table, "\n%s: %s, %d bytes\n\n", half.name, half.m.Name, half.m.Size)
		fmt.Fprintln(table, "FIELD\tOFFSET\tSIZE\tTYPE\tWIRE\tNUMBER\tROLE\tNOTES")
		tableMessage(table, half.m, "", 0, 0)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("lay out table: %w", err)
	}
	for line := range bytes.Lines(text.Bytes()) {
		if _, err := w.Write(append(bytes.TrimRight(line, " \n"), '\n')); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

func tableMessage(w io.Writer, m *schema.Message, path string, base, depth int) {
	indent := strings.Repeat("  ", depth)
	end := 0 // in bits: the end of the last field
	for _, f := range byPlace(m) {
		start := f.FirstBit()
		if start < end { // a member of a union
			end = start
		}
		tablePadding(w, indent, base, end, start)
		end = max(end, f.EndBit())
		wire, number := "not sent", "-"
		if f.Sent() {
			wire, number = f.WireType(), fmt.Sprint(f.Number)
			if repeated(f) {
				wire = "repeated " + wire
			}
		}
		offset, size := place(base*8+start), fmt.Sprint(f.Bytes())
		if f.BitSize > 0 {
			offset = fmt.Sprintf("%d:%d", (base*8+start)/8, start%8)
			size = bits(f.BitSize)
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", indent, path+f.Name, offset, size, f.Type, wire, number,
			dash(strings.Join(f.Roles.Names(), ",")), oneLine(f.Doc))
		if f.Message != nil {
			within := path + f.Name
			if f.Count > 0 {
				within += "[]"
			}
			tableMessage(w, f.Message, within+".", base+f.Offset, depth+1)
		}
	}
	tablePadding(w, indent, base, end, m.Size*8)
}

// tablePadding writes a line for the padding between two bits.
func tablePadding(w io.Writer, indent string, base, from, to int) {
	if from >= to {
		return
	}
	size := fmt.Sprint((to - from) / 8)
	if from%8 != 0 || to%8 != 0 {
		size = bits(to - from)
	}
	fmt.Fprintf(w, "%s(padding)\t%s\t%s\t\tnot sent\t-\t-\t\n", indent, place(base*8+from), size)
}

// byPlace returns a message's fields in the order of their offsets.
func byPlace(m *schema.Message) []*schema.Field {
	fields := make([]*schema.Field, len(m.Fields))
	for i := range m.Fields {
		fields[i] = &m.Fields[i]
	}
	slices.SortStableFunc(fields, func(a, b *schema.Field) int { return a.FirstBit() - b.FirstBit() })
	return fields
}

// place returns an offset in bits as text.
func place(bit int) string {
	if bit%8 == 0 {
		return fmt.Sprint(bit / 8)
	}
	return fmt.Sprintf("%d:%d", bit/8, bit%8)
}

func bits(n int) string {
	if n == 1 {
		return "1 bit"
	}
	return fmt.Sprintf("%d bits", n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
