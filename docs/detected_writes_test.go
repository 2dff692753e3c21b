package docs

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated tables of the pages")

const (
	detectedBegin = "<!-- scripts/detected-writes writes this table -->\n"
	detectedEnd   = "<!-- end of the table -->\n"
)

// TestDetectedWrites checks that the table in capture.md has the results of the tests of syncd/capture, which fail
// if a kernel has others.
func TestDetectedWrites(t *testing.T) {
	results, err := os.ReadFile("../syncd/capture/testdata/detected_writes.txt")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("capture.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), detectedBegin)
	_, after, ended := strings.Cut(rest, detectedEnd)
	if !found || !ended {
		t.Fatalf("capture.md: got no table, want one between %q and %q", detectedBegin, detectedEnd)
	}
	want := before + detectedBegin + detectedTable(t, string(results)) + detectedEnd + after
	if *update {
		if err := os.WriteFile("capture.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(page) != want {
		t.Errorf("capture.md: the table differs from the results, run scripts/detected-writes")
	}
}

// detectedTable returns the table of the results: a row for each writer, a column for each attach method and kernel.
func detectedTable(t *testing.T, results string) string {
	var columns []string // "kprobe 5.10"
	for _, attach := range []string{"kprobe", "fexit"} {
		for _, kernel := range []string{"5.10", "6.1", "6.12", "testing"} {
			columns = append(columns, attach+" "+kernel)
		}
	}
	cells, writers := map[string]string{}, []string{}
	for line := range strings.Lines(results) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 4 {
			t.Fatalf("results: got line %q, want four fields", line)
		}
		kernel, attach, writer, cell := f[0], f[1], f[2], f[3]
		if column := attach + " " + kernel; attach == "syscall" && !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
		if cells[writer+attach+" "+kernel] = cell; !slices.Contains(writers, writer) {
			writers = append(writers, writer)
		}
	}
	if n := len(columns); n != 9 {
		t.Errorf("results: got %d columns, want 9, one of them with the method syscall: %q", n, columns)
	}
	var b strings.Builder
	b.WriteString("| writer |")
	for _, column := range columns {
		fmt.Fprintf(&b, " %s |", column)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", 1+len(columns)) + "\n")
	for _, writer := range writers {
		fmt.Fprintf(&b, "| %s |", writer)
		for _, column := range columns {
			cell := cells[writer+column]
			switch {
			case cell == "":
				t.Errorf("results: got none for %q by %s, want one", writer, column)
			case cell == "unsupported":
				cell = "–"
			case strings.HasPrefix(cell, "0/"):
				cell = "**" + cell + "**"
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}
