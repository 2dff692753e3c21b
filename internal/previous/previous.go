// Package previous builds syncd of the previous release, for tests that run it beside this release.
// It takes the source from the history of the checkout.
package previous

import (
	"bytes"
	_ "embed" // the commit
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ProgramVariable is an environment variable with the path of a syncd of the previous release that
// is built already, as in a virtual machine without a checkout.
const ProgramVariable = "MAPSYNC_PREVIOUS_SYNCD"

//go:embed commit
var commit string

// Commit returns the commit of the previous release: 40 hexadecimal digits.
func Commit() string { return strings.TrimSpace(commit) }

// Program returns the path of syncd of the previous release. The file exists until the end of the
// test. Program skips the test if the history of the checkout lacks the commit, for example in a
// source archive or a shallow clone, and fails it if the program cannot be built otherwise.
func Program(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(ProgramVariable); path != "" {
		return path
	}
	if text, err := exec.CommandContext(t.Context(), "git", "cat-file", "-e", Commit()+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("the checkout lacks the commit %s of the previous release (%s): run git fetch --unshallow", Commit(), strings.TrimSpace(string(text)))
	}
	path := filepath.Join(t.TempDir(), "syncd-previous")
	build(t, "scripts/previous-release", "build", path)
	return path
}

// CurrentProgram builds syncd of this checkout and returns its path. The file exists until the end
// of the test. CurrentProgram fails the test if the program cannot be built.
func CurrentProgram(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "syncd")
	build(t, "go", "build", "-trimpath", "-o", path, "./syncd")
	return path
}

// build runs a command in the directory of the checkout, with the versions of the product's own go.mod.
func build(t testing.TB, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build syncd: %v\n%s", err, text)
	}
}

// root returns the directory of the checkout: that of the product's module, also for a test of the module
// bench.
func root(t testing.TB) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "mapsync")
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("find the checkout to build syncd: %v; set %s to a syncd of the previous release\n%s", err, ProgramVariable, problem.Bytes())
	}
	return strings.TrimSpace(string(out))
}
