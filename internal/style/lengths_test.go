package style

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// functionOf returns the text of a function of n lines.
func functionOf(name string, n int) string {
	return "func " + name + "() {" + strings.Repeat("\n", n) + "}\n"
}

func TestPercentile95(t *testing.T) {
	var l Lengths
	if got := l.Percentile95(); got != 0 {
		t.Errorf("95th percentile without functions: got %d, want 0", got)
	}
	add := func(file, text string) {
		t.Helper()
		if err := l.Add(file, []byte("package a\n\n"+text)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 19 {
		add(fmt.Sprintf("a%d.go", i), functionOf("f", i+1)+"\nfunc declared()\n")
	}
	add("long.go", "// Long is documented.\n"+functionOf("Long", 90))
	if got := l.Percentile95(); got != 19 {
		t.Errorf("95th percentile of 1 to 19 and 90 lines: got %d, want 19", got)
	}
	for _, file := range []string{"a_test.go", "a.pb.go", "a_x86_bpfel.go", "a.md"} {
		add(file, functionOf("f", 99))
	}
	add("longer.go", functionOf("Longer", 91))
	if got := l.Percentile95(); got != 90 {
		t.Errorf("95th percentile of 1 to 19, 90 and 91 lines: got %d, want 90", got)
	}
	want := []Finding{{"longer.go", 3, "function Longer of 91 lines"}, {"long.go", 4, "function Long of 90 lines"}}
	if got := l.Longest(2); !slices.Equal(got, want) {
		t.Errorf("longest functions: got %v, want %v", got, want)
	}
	if got := len(l.Longest(99)); got != 21 {
		t.Errorf("all functions: got %d, want 21", got)
	}
	if err := l.Add("b.go", []byte("no Go")); err == nil {
		t.Error("a file with a syntax error: got no error, want one")
	}
}

func TestFileLines(t *testing.T) {
	text := func(n int) []byte { return []byte("package a" + strings.Repeat("\n", n)) }
	for file, want := range map[string]bool{
		"a.go": true, "a_test.go": true, "a.c": true, "a.h": true, "a.pb.go": false, "a_x86_bpfel.go": false, "a.md": false,
	} {
		var l Lengths
		if err := l.Add(file, text(MaxFileLines)); err != nil || len(l.Files) > 0 {
			t.Errorf("%s of %d lines: got %v, %v, want no finding", file, MaxFileLines, l.Files, err)
		}
		if err := l.Add(file, text(MaxFileLines+1)); err != nil || len(l.Files) > 0 != want {
			t.Errorf("%s of %d lines: got %v, %v, want a finding: %t", file, MaxFileLines+1, l.Files, err, want)
		}
	}
}
