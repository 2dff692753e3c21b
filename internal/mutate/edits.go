package mutate

import (
	"slices"
	"strings"
)

// edits are insertions and replacements in a source text. They preserve its line numbers.
type edits struct {
	text string
	list []edit
}

type edit struct {
	at, end int
	text    string
	// opening orders insertions at the same offset. Insertions that close an expression come first,
	// inner before outer. Insertions that open an expression follow, outer before inner.
	opening bool
	size    int // of the enclosed expression, in bytes
}

// wrap inserts text before and after the code between two offsets.
func (e *edits) wrap(from, to int, before, after string) {
	e.list = append(e.list,
		edit{from, from, before, true, to - from},
		edit{to, to, after, false, to - from})
}

// replace replaces the code between two offsets.
func (e *edits) replace(from, to int, text string) {
	e.list = append(e.list, edit{from, to, text, true, -1})
}

func compareEdits(a, b edit) int {
	switch {
	case a.at != b.at:
		return a.at - b.at
	case a.opening != b.opening && !a.opening:
		return -1
	case a.opening != b.opening:
		return 1
	case a.opening:
		return b.size - a.size
	}
	return a.size - b.size
}

// String returns the text with all edits applied. Two wraps of the same code nest in the order in
// which they were added, the first outermost.
func (e *edits) String() string {
	list := slices.Clone(e.list)
	// Reversed first: of closings with the same size, the last added is the innermost.
	closing := func(x edit) bool { return !x.opening }
	reversed := make([]edit, 0, len(list))
	for _, x := range slices.Backward(list) {
		if closing(x) {
			reversed = append(reversed, x)
		}
	}
	list = append(slices.DeleteFunc(list, closing), reversed...)
	slices.SortStableFunc(list, compareEdits)
	var out strings.Builder
	at := 0
	for _, x := range list {
		out.WriteString(e.text[at:x.at])
		out.WriteString(x.text)
		at = x.end
	}
	out.WriteString(e.text[at:])
	return out.String()
}
