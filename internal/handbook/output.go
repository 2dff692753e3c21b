package handbook

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// anyLines is the line on a page that stands for any number of lines.
const anyLines = "..."

// variable lists the parts of an output that differ between two executions, with their replacements.
var variable = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`\bchanged=TIME pending$`), "changed=TIME"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d\b`), "DATE"},
	{regexp.MustCompile(`\bversion \S+, incarnation \d+`), "version VERSION, incarnation NUMBER"},
	{regexp.MustCompile(`\bcapture by \w+, \w+ buffer: \d+ events, \d+ lost.*`), "CAPTURE"},
	{regexp.MustCompile(`\bpid=\d+`), "pid=NUMBER"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h))+\b`), "DURATION"},
	{regexp.MustCompile(`\b\d+ (s|min|h|days?)( \d+ (s|min|h))?\b`), "DURATION"},
}

// jobMessage matches the lines that a shell prints when a background process starts or ends.
var jobMessage = regexp.MustCompile(`^(\[\d+\] \d+$|(\S+: line \d+: +\d+|\[\d+\][+-]?) +(Killed|Terminated|Done|Exit)\b)`)

// Compare returns an error that shows both outputs if the output of a command differs from the one on
// the page. Times, dates, durations, versions, process numbers, the way of capture, "pending" after a
// record and the number of spaces may differ. A line "..." on the page stands for any number of lines.
func Compare(page, output string) error {
	want, got := normalise(page), normalise(output)
	if matches(want, got) {
		return nil
	}
	return fmt.Errorf("output differs from that on the page\n--- page\n%s\n--- output\n%s\n--- compared as\n%s\n--- and\n%s",
		strings.TrimRight(page, "\n"), strings.TrimRight(output, "\n"), strings.Join(want, "\n"), strings.Join(got, "\n"))
}

// normalise returns the lines of an output without their variable parts, and without empty lines at
// its end.
func normalise(output string) (lines []string) {
	for line := range strings.Lines(output) {
		line = strings.Join(strings.Fields(line), " ")
		if jobMessage.MatchString(line) {
			continue
		}
		for _, v := range variable {
			line = v.pattern.ReplaceAllString(line, v.name)
		}
		lines = append(lines, line)
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// matches reports whether the lines of a page describe the lines of an output.
func matches(page, output []string) bool {
	i := slices.Index(page, anyLines)
	if i < 0 {
		return slices.Equal(page, output)
	}
	if len(output) < i || !slices.Equal(page[:i], output[:i]) {
		return false
	}
	for rest := output[i:]; ; rest = rest[1:] {
		if matches(page[i+1:], rest) {
			return true
		}
		if len(rest) == 0 {
			return false
		}
	}
}
