package mutate

import (
	"slices"
	"strings"
)

// edits are insertions into and replacements in a source text that keep its lines.
type edits struct {
	text string
	list []edit
}

type edit struct {
	at, end int
	text    string
	// Of insertions at one place, those that close an expression come first, inner before
	// outer; then those that open one, outer before inner.
	opens bool
	size  int // of the expression that it opens or closes, in bytes
}

// wrap puts text before and after the code between two offsets.
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
	case a.opens != b.opens && !a.opens:
		return -1
	case a.opens != b.opens:
		return 1
	case a.opens:
		return b.size - a.size
	}
	return a.size - b.size
}

// String returns the text with all edits made. Two wraps of the same code nest in the
// order in which they were added, the first outermost.
func (e *edits) String() string {
	list := slices.Clone(e.list)
	// Reversed first: of closings of the same size, the one added last is the innermost.
	closing := func(x edit) bool { return !x.opens }
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
