package filter

import (
	"encoding/hex"
	"strconv"
	"strings"

	"mapsync/syncd/schema"
)

// ParseKey returns the keys that a [mapsync/syncd/schema/export.Printer] may write as text, such as {saddr=10.0.0.1 dport=443}: fields that
// it does not name are zero, and padding is, too. Several keys are possible if a field has several forms. There is none if the text is not
// that of a key of s, or if it has an array.
func ParseKey(s *schema.Schema, l schema.Links, text string) [][]byte {
	if key, err := hex.DecodeString(text); err == nil && len(key) == s.Key.Size {
		return [][]byte{key}
	}
	rest, ok := strings.CutPrefix(text, "{")
	keys, path := [][]byte{make([]byte, s.Key.Size)}, []string{"key"}
	for ok && rest != "" {
		switch end := strings.IndexAny(rest, "={"); {
		case rest[0] == ' ':
			rest = rest[1:]
		case rest[0] == '}' && len(path) > 0:
			path, rest = path[:len(path)-1], rest[1:]
		case end <= 0 || len(path) == 0:
			return nil
		case rest[end] == '{':
			path, rest = append(path, rest[:end]), rest[end+1:]
		default:
			name := strings.Join(path, ".") + "." + rest[:end]
			var value string
			value, rest = cutValue(rest[end+1:])
			if keys = withField(s, l, keys, name+"="+value); len(keys) == 0 || len(keys) > maxKeys {
				return nil
			}
		}
	}
	if !ok || len(path) > 0 {
		return nil
	}
	return keys
}

// withField returns the copies of keys with each content of a field that meets a condition with =, or none.
func withField(s *schema.Schema, l schema.Links, keys [][]byte, condition string) (next [][]byte) {
	f, err := Parse(s, condition)
	if err != nil || f.field.Count() != 1 {
		return nil
	}
	for _, key := range keys {
		next = append(next, f.operand.keys(l, &f.field, key)...)
	}
	return next
}

// cutValue returns the value of a field at the start of text, and what follows it.
func cutValue(text string) (value, rest string) {
	if quoted, err := strconv.QuotedPrefix(text); err == nil {
		value, err = strconv.Unquote(quoted)
		if err == nil {
			return value, text[len(quoted):]
		}
	}
	if end := strings.IndexAny(text, " }"); end >= 0 {
		return text[:end], text[end:]
	}
	return text, ""
}
