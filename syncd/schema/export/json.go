package export

import (
	"encoding/hex"

	"mapsync/printable"
	"mapsync/syncd/schema"
)

// AppendJSONKey appends a key as a JSON object. It appends a string of hex if the map has no BTF,
// or if the bytes are too few.
func (p *Printer) AppendJSONKey(dst, key []byte) []byte {
	return p.appendJSON(dst, p.schema.Key, key, key, nil)
}

// AppendJSONValue appends a value in the same format as AppendJSONKey. key is that of the entry.
func (p *Printer) AppendJSONValue(dst, key, value []byte, t *schema.Times) []byte {
	return p.appendJSON(dst, p.schema.Value, key, value, t)
}

func (p *Printer) appendJSON(dst []byte, m *schema.Message, key, data []byte, t *schema.Times) []byte {
	if p.bare(m) || len(data) < m.Size {
		return append(hex.AppendEncode(append(dst, '"'), data), '"')
	}
	w := writer{p: p, times: t, dst: dst, key: key, half: data, json: true}
	w.message(m, data)
	return w.dst
}

// quote writes the quotation mark of a JSON string if yes is true.
func (w *writer) quote(yes bool) {
	if yes {
		w.dst = append(w.dst, '"')
	}
}

func (w *writer) number(f *schema.Field, n uint64) {
	w.quote(w.json && f.Size > 4)
	w.digits(f, n)
	w.quote(w.json && f.Size > 4)
}

// appendQuoted appends s as a JSON string of printable characters. Of these, it escapes the same as [encoding/json].
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if Plain(s) {
		return append(append(dst, s...), '"')
	}
	for _, r := range s {
		dst = appendQuotedRune(dst, r)
	}
	return append(dst, '"')
}

// Plain reports whether JSON contains s without escapes.
func Plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

func appendQuotedRune(dst []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '<', '>', '&':
		return append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&0xf])
	}
	return printable.AppendRune(dst, r)
}
