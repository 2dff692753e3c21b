package docs

import (
	"os"
	"regexp"
	"testing"
)

var (
	requiredGo = regexp.MustCompile(`(?m)^go (\S+)$`)
	// namedGo matches the version of Go in a requirement, or in the name of its archive.
	namedGo = regexp.MustCompile(`Go (\d\S*) or later|dl/go(\d\S*)\.linux`)
)

// TestPagesNameTheGoVersion: the pages whose commands install Go, or require it, name the version of go.mod.
func TestPagesNameTheGoVersion(t *testing.T) {
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := requiredGo.FindSubmatch(module)
	if m == nil {
		t.Fatal("go.mod: got no line go, want one")
	}
	for path, want := range map[string]int{"../README.md": 1, "quickstart.md": 2} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := namedGo.FindAllSubmatch(text, -1)
		if len(found) != want {
			t.Errorf("%s: got %d versions of Go, want %d", path, len(found), want)
		}
		for _, f := range found {
			if got := string(f[1]) + string(f[2]); got != string(m[1]) {
				t.Errorf("%s: got %q, want version %s of go.mod", path, f[0], m[1])
			}
		}
	}
}
