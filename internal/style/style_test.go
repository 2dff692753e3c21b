package style

import (
	"slices"
	"testing"
)

func TestReport(t *testing.T) {
	var r Report
	if err := r.Add("a.go", []byte("package a\n\n// A peer tells its records.\nvar tell = \"nobody waits\" // fine\n")); err != nil {
		t.Fatal(err)
	}
	if len(r.Sentences) != 2 || r.Sentences[0].Line != 3 || r.Sentences[1].Line != 4 || r.Words != 8 {
		t.Errorf("findings in Go: got %v of %d words, want lines 3 and 4 of 8 words", r.Sentences, r.Words)
	}
	r = Report{}
	_ = r.Add("a.md", []byte("# Title\n\nWho waits? There is no peer.\nThe peer sends.\n"))
	if len(r.Sentences) != 1 || r.Sentences[0].Line != 3 || r.Rate() < 90 || r.Rate() > 91 {
		t.Errorf("findings in a page: got %v, rate %.1f, want line 3, rate 90.9", r.Sentences, r.Rate())
	}
	r = Report{}
	_ = r.Add("a.c", []byte("int tell; /* nobody */\n/* The kernel tells it. */\n"))
	if len(r.Sentences) != 1 || r.Sentences[0].Line != 2 {
		t.Errorf("findings in C: got %v, want line 2", r.Sentences)
	}
	if (Report{}).Rate() != 0 {
		t.Error("rate without words: want 0")
	}
	if err := r.Add("b.go", []byte("package b\nvar s = \"open\n")); err == nil {
		t.Error("a file with a syntax error is accepted")
	}
}

func TestBanned(t *testing.T) {
	found, err := Banned("a.go", []byte("package a\n\ntype intakeState struct{ toldFor int }\n\nfunc (x *intakeState) Retell(walk int) { lie := 1; belief, earliest := 2, lie; _, _ = belief, earliest }\n"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Text)
	}
	want := []string{
		`identifier intakeState: use the term "inbound map stream"`, `identifier toldFor: use the term "sent"`, `identifier Retell: use the term "resend"`,
		`identifier walk: use the term "full sync"`, `identifier lie: use the term "stress"`,
	}
	if !slices.Equal(names, want) {
		t.Errorf("banned identifiers: got %q, want %q", names, want)
	}
	for file, want := range map[string]struct {
		data string
		line int
	}{
		"retell.go": {"package a", 0}, "a.md": {"walk", -1}, "walk.md": {"", 0}, "b.c": {"/* tell\n */ int told_by; // walk", 2}, "c.proto": {"\nmessage Walk {}", 2},
		"d.go": {"package a\n\nconst c = \"rate(mapsync_walks_total[1m])\"", 3}, "e.go": {"package a\n\nconst c = \"mapsync_stream_walks_total\"", -1},
		"metric.go": {`package a; var m = desc("debt_total", "Help.")`, 1}, "deprecated.go": {`package a; var m = desc("map_rechecks_total", "Help.")`, -1},
		"log.go": {`package a; func f() { log.Warn("map was claimed, debt") }`, 1}, "flag.go": {`package a; var f = flag.Int("walk-limit", 1, "")`, 1},
		"tag.go": {"package a; type t struct {\nx int `json:\"retold\"` }", 2}, "range.go": {"package a; func f() { for claim := range 3 { _ = claim } }", 1},
		"label.go": {"package a; func f() { walk: for { break walk } }", 1}, "import.go": {`package a; import tale "fmt"; var _ = tale.Sprint`, 1},
		"rules.yaml": {"a: 1\nb: {desc: the table knows no wire}", 2}, "panel.json": {`{"title": "survivors"}`, 1}, "internal/vm/run.go": {`package a; var guest = "guest"`, -1},
	} {
		found, err := Banned(file, []byte(want.data))
		if err != nil || (len(found) == 1) != (want.line >= 0) || len(found) == 1 && found[0].Line != want.line {
			t.Errorf("banned names in %s: got %v, %v, want line %d", file, found, err, want.line)
		}
	}
	if _, err := Banned("b.go", []byte("no Go")); err == nil {
		t.Error("a file with a syntax error is accepted")
	}
}

func TestParts(t *testing.T) {
	for name, want := range map[string][]string{
		"toldFor": {"told", "for"}, "HTTPServer": {"http", "server"}, "max_told2": {"max", "told"}, "tells": {"tells"}, "aB": {"a", "b"}, "_": nil,
	} {
		if got := parts(name); !slices.Equal(got, want) {
			t.Errorf("parts of %s: got %q, want %q", name, got, want)
		}
	}
}

func TestMessages(t *testing.T) {
	const code = `package a

func TestA(t *testing.T) {
	t.Errorf("count: got %d", 1)
	t.Errorf("count: got %d, "+"want %d", 1, 2)
	t.Fatal("got " + "an error")
	t.Fatal(err)
	t.Logf("got %d", 1)
	fatal("got ")
	t.Error()
	t.Fatalf("%+v: %v", 1, err)
}
`
	checkTests(t, Messages, code, []int{4, 6, 11})
}

// checkTests checks the lines of the findings in a test file. There are none in another file.
func checkTests(t *testing.T, check func(string, []byte) ([]Finding, error), code string, want []int) {
	t.Helper()
	for file, want := range map[string][]int{"a_test.go": want, "a.go": nil} {
		found, err := check(file, []byte(code))
		if err != nil {
			t.Fatal(err)
		}
		var lines []int
		for _, f := range found {
			lines = append(lines, f.Line)
		}
		if !slices.Equal(lines, want) {
			t.Errorf("findings in %s: got lines %v, want %v", file, lines, want)
		}
	}
	if _, err := check("b_test.go", []byte("no Go")); err == nil {
		t.Error("a file with a syntax error: got no error, want one")
	}
}
