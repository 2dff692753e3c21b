// Package similar compares names with one that an operator may have mistyped.
package similar

import "strings"

// Hint returns the end of an error about an unknown name: " (did you mean NAME?)" with the most similar of names, or "" if none
// is similar.
func Hint(unknown string, names []string) string {
	if unknown == "" {
		return ""
	}
	best, least := "", max(1, len(unknown)/3)+1
	for _, name := range names {
		n := Edits(strings.ToLower(unknown), strings.ToLower(name))
		if strings.HasPrefix(name, unknown) {
			n = min(n, 1)
		}
		if n < least {
			best, least = name, n
		}
	}
	if best == "" {
		return ""
	}
	return " (did you mean " + best + "?)"
}

// Edits returns the Levenshtein distance of two strings, in bytes.
func Edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
