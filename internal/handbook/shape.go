package handbook

import (
	"fmt"
	"regexp"
	"strings"
)

// wrapped matches the end of a line that continues on the next line.
var wrapped = regexp.MustCompile(`\n[ \t]+`)

// shaped lists the parts of an output that CompareShape ignores, beside those that Compare ignores.
var shaped = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(:\d+)?\b`), "ADDRESS"},
	{regexp.MustCompile(`[-+]?\b\d+(\.\d+)*\b`), "NUMBER"},
}

// CompareShape is Compare, except that addresses, numbers and the ends of wrapped lines may differ. A line
// that begins with a space continues the line before it.
func CompareShape(page, output string) error {
	if err := Compare(shape(page), shape(output)); err != nil {
		return fmt.Errorf("%w\n--- full output\n%s", err, strings.TrimRight(output, "\n"))
	}
	return nil
}

// shape returns an output without the parts that CompareShape ignores.
func shape(output string) string {
	text := strings.Join(normalise(wrapped.ReplaceAllString(output, " ")), "\n")
	for _, s := range shaped {
		text = s.pattern.ReplaceAllString(text, s.name)
	}
	return text
}
