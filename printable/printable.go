// Package printable makes texts of other nodes and programs safe to print: on a terminal, in the log and in JSON.
//
// A character is printable if [unicode.IsPrint] reports so: letters, marks, numbers, punctuation, symbols and the ASCII
// space. Control and format characters are not, such as ESC, the line feed and changes of the text direction. A terminal
// obeys them instead of showing them.
package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Is reports whether s is UTF-8 and has only printable characters.
func Is(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// IsName reports whether s is printable and has no space. Spaces separate the parts of a line.
func IsName(s string) bool { return Is(s) && !strings.Contains(s, " ") }

// Text returns s with an escape in place of each character that is not printable, for example \u001b. It returns one
// line. It replaces bytes that are not UTF-8 by U+FFFD.
func Text(s string) string {
	if Is(s) {
		return s
	}
	return string(Append(nil, s))
}

// Truncated returns Text of the first bytes of s, at most most, and "..." if s is longer. It leaves out a character that
// is cut at the end.
func Truncated(s string, most int) string {
	if len(s) <= most {
		return Text(s)
	}
	return Text(strings.ToValidUTF8(s[:most], "")) + "..."
}

// Append appends Text of s.
func Append(dst []byte, s string) []byte {
	for _, r := range s {
		dst = AppendRune(dst, r)
	}
	return dst
}

// AppendRune appends a character, or its escape if it is not printable. The escape is also valid in a string of JSON.
func AppendRune(dst []byte, r rune) []byte {
	if unicode.IsPrint(r) {
		return utf8.AppendRune(dst, r)
	}
	if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
		return fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
	}
	return fmt.Appendf(dst, `\u%04x`, r)
}
