package export

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"net/netip"
	"strconv"
	"time"

	"mapsync/printable"
	"mapsync/syncd/schema"
)

// Printer writes entries as text and as JSON, directly from struct bytes. Its only state is its
// fields, and it is safe for concurrent use.
//
// Names of interfaces and values have escapes in place of characters that are not printable, in both formats.
//
// The text format is for display: {saddr=10.0.0.1 dport=443}. It omits fields that are zero, and
// the trailing zero elements of arrays. A map without BTF has only bytes, which are written in hex.
//
// The JSON format is for scripts: an object with every field that is sent, zero or not, and arrays
// of full length. As in protobuf's JSON, 64-bit integers are strings, enums are the names of their
// values (numbers if unnamed), and times are in RFC 3339 format. A time that is zero is null. A
// time that cannot be converted is the kernel's number, as a string. Addresses and interface names
// are strings, also if an index has no name. Bytes are a string of hex. Char arrays are text, one
// character per byte up to the last byte that is not zero.
type Printer struct {
	// All includes fields that are never sent: local fields, and in hex the fields that the kernel
	// owns.
	All bool

	schema *schema.Schema
	links  schema.Links
}

// NewPrinter returns a printer for entries of s. links may be nil: interfaces are then written as
// numbers.
func NewPrinter(s *schema.Schema, links schema.Links) *Printer {
	return &Printer{schema: s, links: links}
}

// AppendKey appends a key as text. It writes bytes that are too few for the type in hex.
func (p *Printer) AppendKey(dst, key []byte) []byte {
	return p.appendText(dst, p.schema.Key, key, key, nil)
}

// AppendValue appends a value as text. key is that of the entry, which conditions of unions may need. If t is nil, times are
// written as the kernel's numbers.
func (p *Printer) AppendValue(dst, key, value []byte, t *schema.Times) []byte {
	return p.appendText(dst, p.schema.Value, key, value, t)
}

func (p *Printer) appendText(dst []byte, m *schema.Message, key, data []byte, t *schema.Times) []byte {
	if p.bare(m) || len(data) < m.Size {
		return hex.AppendEncode(dst, data)
	}
	w := writer{p: p, times: t, dst: dst, key: key, half: data}
	w.message(m, data)
	return w.dst
}

// bare reports whether a half of an entry has only bytes, without fields from the settings.
func (p *Printer) bare(m *schema.Message) bool {
	return p.schema.Opaque && len(m.Fields) == 1 && m.Fields[0].IsUntyped()
}

// AppendField appends the content of one field as text, without a name and without quotes. half is the half of an entry
// that has the field, of its full size.
func (p *Printer) AppendField(dst []byte, path *schema.Path, half []byte) []byte {
	w := writer{p: p, dst: dst, half: half, bare: true}
	for _, f := range path.Fields[:len(path.Fields)-1] {
		half = f.BytesAt(half, 0)
	}
	w.field(path.Last(), half)
	return w.dst
}

// writer writes one key or value.
type writer struct {
	p     *Printer
	times *schema.Times
	dst   []byte
	key   []byte // of the entry
	half  []byte // the whole key or value
	json  bool
	bare  bool // text without quotes
}

// message writes a message and reports whether it wrote any field.
func (w *writer) message(m *schema.Message, data []byte) (any bool) {
	w.dst = append(w.dst, '{')
	for i := range m.Fields {
		f := &m.Fields[i]
		if !f.Sent() && !w.p.All {
			continue
		}
		if !w.json && allZero(data[f.Offset:][:f.Bytes()]) {
			continue
		}
		mark := len(w.dst)
		w.name(f, any)
		if w.field(f, data) || w.json {
			any = true
		} else {
			w.dst = w.dst[:mark]
		}
	}
	w.dst = append(w.dst, '}')
	return any
}

// union writes a union like a message with the member that it has. A member of another type than a struct is not nested.
func (w *writer) union(f *schema.Field, data []byte) (nonzero bool) {
	member := f.Member(w.key, w.half)
	if member == nil {
		member = &f.Message.Fields[0]
	}
	if inner := member.Message.Fields; len(inner) > 0 && inner[0].Name == member.Name {
		return w.message(member.Message, data)
	}
	return w.message(&schema.Message{Fields: []schema.Field{*member}}, data)
}

// name writes the name of a field and the separators before its value.
func (w *writer) name(f *schema.Field, more bool) {
	switch {
	case !w.json:
		if more {
			w.dst = append(w.dst, ' ')
		}
		w.dst = append(w.dst, f.Name...)
		if f.Kind != schema.KindMessage && f.Kind != schema.KindUnion || f.Count > 0 {
			w.dst = append(w.dst, '=')
		}
	default:
		if more {
			w.dst = append(w.dst, ',')
		}
		w.dst = append(appendQuoted(w.dst, f.Name), ':')
	}
}

// field writes the value of a field and reports whether it is not zero.
func (w *writer) field(f *schema.Field, data []byte) (nonzero bool) {
	_, count := f.Elements()
	if count < 0 {
		return w.element(f, data, 0)
	}
	w.dst = append(w.dst, '[')
	end := len(w.dst)
	for i := range count {
		if i > 0 {
			w.dst = append(w.dst, w.comma())
		}
		if w.element(f, data, i) || w.json {
			nonzero, end = true, len(w.dst)
		}
	}
	w.dst = append(w.dst[:end], ']')
	return nonzero
}

func (w *writer) comma() byte {
	if w.json {
		return ','
	}
	return ' '
}

// element writes one element and reports whether it is not zero.
func (w *writer) element(f *schema.Field, data []byte, i int) (nonzero bool) {
	switch f.Kind {
	case schema.KindMessage:
		return w.message(f.Message, f.BytesAt(data, i))
	case schema.KindUnion:
		return w.union(f, f.BytesAt(data, i))
	}
	if address := f.AddressSize(); address > 0 || f.Kind == schema.KindBytes || f.Kind == schema.KindNone {
		b := f.BytesAt(data, i)
		w.bytes(f, b, address)
		return !allZero(b)
	}
	n := f.NumberAt(data, i)
	switch f.Kind {
	case schema.KindBool:
		w.dst = strconv.AppendBool(w.dst, n != 0)
	case schema.KindEnum:
		w.enum(f, n)
	case schema.KindFloat:
		w.float(f, n)
	case schema.KindTime:
		w.time(f, n)
	case schema.KindIfname, schema.KindReference:
		w.named(f, n)
	default:
		w.number(f, n)
	}
	return n != 0
}

func (w *writer) digits(f *schema.Field, n uint64) {
	if f.IsSigned() || f.Kind == schema.KindTime && f.Signed {
		w.dst = strconv.AppendInt(w.dst, int64(n), 10)
	} else {
		w.dst = strconv.AppendUint(w.dst, n, 10)
	}
}

func (w *writer) enum(f *schema.Field, n uint64) {
	for i := range f.Enum.Values {
		if f.Enum.Values[i].Value == n {
			w.string(f.Enum.Values[i].Name)
			return
		}
	}
	w.number(f, n)
}

func (w *writer) float(f *schema.Field, n uint64) {
	v := schema.FloatOf(f, n)
	switch {
	case math.IsNaN(v):
		w.string("NaN")
	case math.IsInf(v, 1):
		w.string("Infinity")
	case math.IsInf(v, -1):
		w.string("-Infinity")
	default:
		w.dst = strconv.AppendFloat(w.dst, v, 'g', -1, f.Size*8)
	}
}

func (w *writer) time(f *schema.Field, n uint64) {
	if n == 0 && w.json {
		w.dst = append(w.dst, "null"...)
		return
	}
	w.quote(w.json)
	if unix, ok := schema.UnixOf(f, n, w.times); ok && n != 0 {
		w.dst = time.Unix(0, unix).UTC().AppendFormat(w.dst, time.RFC3339Nano)
	} else {
		w.digits(f, n)
	}
	w.quote(w.json)
}

// named writes the name of an interface or the meaning of an id, or its number if there is none.
func (w *writer) named(f *schema.Field, index uint64) {
	if names := schema.NamesOf(w.p.links, f); names != nil && 0 < index && index <= math.MaxUint32 {
		if name, ok := names.Name(uint32(index)); ok {
			w.string(name)
			return
		}
	}
	w.quote(w.json)
	if index != 0 || !w.json {
		w.dst = strconv.AppendUint(w.dst, index, 10)
	}
	w.quote(w.json)
}

func (w *writer) string(s string) {
	if w.json {
		w.dst = appendQuoted(w.dst, s)
	} else {
		w.dst = printable.Append(w.dst, s)
	}
}

func (w *writer) bytes(f *schema.Field, b []byte, address int) {
	if address == 0 && f.IsText() {
		w.text(b)
		return
	}
	w.quote(w.json)
	switch address {
	case 4, 16:
		w.dst = w.address(f, b).AppendTo(w.dst)
	case 6:
		for i, c := range b {
			if i > 0 {
				w.dst = append(w.dst, ':')
			}
			w.dst = hex.AppendEncode(w.dst, []byte{c})
		}
	default:
		w.dst = hex.AppendEncode(w.dst, b)
	}
	w.quote(w.json)
}

// text writes a char array.
func (w *writer) text(b []byte) {
	b = bytes.TrimRight(b, "\x00")
	if w.json {
		w.quote(true)
		for _, c := range b {
			w.dst = appendQuotedRune(w.dst, rune(c))
		}
		w.quote(true)
		return
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			w.dst = hex.AppendEncode(w.dst, b)
			return
		}
	}
	if w.bare {
		w.dst = append(w.dst, b...)
		return
	}
	w.dst = strconv.AppendQuote(w.dst, string(b))
}

// address returns an IP address of a field.
func (w *writer) address(f *schema.Field, b []byte) netip.Addr {
	ipv4, known := f.IsIPv4In(w.half)
	if !known {
		return addressOf(b)
	}
	if ipv4 && allZero(b[4:]) {
		b = b[:4]
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// addressOf returns an IP address. If only the first 4 of 16 bytes are not zero, they are an IPv4
// address, as in dual-stack layouts.
func addressOf(b []byte) netip.Addr {
	if len(b) == 16 && allZero(b[4:]) && !allZero(b[:4]) {
		b = b[:4]
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func allZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
