package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// stubParts takes the place of the go tool for scripts/modules. It lists two packages, and notes the arguments of each
// run of tests. The run with $FAILS among its arguments fails.
const stubParts = `#!/bin/sh
case $1 in
list) printf 'mapsync/syncd/daemon\nmapsync/other\n' ;;
test)
	printf '%s\n' "$*" >>"$CALLS"
	case "$*" in *"$FAILS"*) exit 1 ;; esac
	;;
esac
`

// runModules runs scripts/modules test with a stub of the go tool. It returns the arguments of each run of tests.
func runModules(t *testing.T, fails string) (calls []string, err error) {
	t.Helper()
	root, programs := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("modules")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"scripts", "internal/vm", "bench", "docs/examples/turn"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path, list := filepath.Join(root, "scripts", "modules"), filepath.Join(root, "calls")
	for name, text := range map[string]string{path: string(script), filepath.Join(programs, "go"): stubParts} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), path, "test")
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "CALLS="+list, "FAILS="+fails)
	out, err := cmd.CombinedOutput()
	text, readErr := os.ReadFile(list)
	if readErr != nil {
		t.Fatalf("list of runs: %v; output %s", readErr, out)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), err
}

// part is the selection of tests of one run, as the go tool takes it: -run PATTERN -skip PATTERN.
type part struct{ run, skip *regexp.Regexp }

func (p part) has(name string) bool {
	return (p.run == nil || p.run.MatchString(name)) && (p.skip == nil || !p.skip.MatchString(name))
}

// daemonParts returns the parts in which scripts/modules runs the tests of the daemon.
func daemonParts(t *testing.T) (parts []part) {
	t.Helper()
	calls, err := runModules(t, "no failure")
	if err != nil {
		t.Fatalf("scripts/modules test: got error %v, want none", err)
	}
	for _, call := range calls {
		fields := strings.Fields(call)
		if slices.Contains(fields, "-c") || fields[len(fields)-1] != "mapsync/syncd/daemon" {
			continue
		}
		var p part
		for i, field := range fields {
			switch field {
			case "-run":
				p.run = regexp.MustCompile(fields[i+1])
			case "-skip":
				p.skip = regexp.MustCompile(fields[i+1])
			}
		}
		parts = append(parts, p)
	}
	if want := 1 + 3 + 4; len(parts) != 3 || len(calls) != want {
		t.Fatalf("runs: got %q, want a build and three parts of the daemon's tests, and a run for each of 4 modules", calls)
	}
	return parts
}

// daemonTests returns the names of the functions that go test runs in syncd/daemon.
func daemonTests(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("../syncd/daemon/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("files of tests: got %d, error %v, want some", len(files), err)
	}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range function.FindAllStringSubmatch(string(text), -1) {
			if match[1] != "TestMain" {
				names = append(names, match[1])
			}
		}
	}
	return names
}

// TestEachTestOfDaemonIsInOnePart: no test of syncd/daemon is missed or runs twice, and no part is without tests.
func TestEachTestOfDaemonIsInOnePart(t *testing.T) {
	parts, sizes := daemonParts(t), map[int]int{}
	for _, name := range append(daemonTests(t), "FuzzX", "ExampleX", "Test_x", "Test1") {
		var in []int
		for i, p := range parts {
			if p.has(name) {
				in, sizes[i] = append(in, i), sizes[i]+1
			}
		}
		if len(in) != 1 {
			t.Errorf("parts with %s: got %v, want one", name, in)
		}
	}
	for i, p := range parts {
		if sizes[i] < 20 {
			t.Errorf("tests in part %d: got %d, want at least 20", i, sizes[i])
		}
		for _, pattern := range []*regexp.Regexp{p.run, p.skip} {
			if pattern != nil && strings.Contains(pattern.String(), "/") {
				t.Errorf("pattern of part %d: got %s, want one without subtests", i, pattern)
			}
		}
	}
}

// TestFailureOfEachRunCounts: scripts/modules fails if any part or any other run of tests fails, and makes all other runs.
func TestFailureOfEachRunCounts(t *testing.T) {
	all, err := runModules(t, "no failure")
	if err != nil {
		t.Fatalf("scripts/modules test: got error %v, want none", err)
	}
	for _, fails := range all {
		if strings.Contains(fails, " -c ") {
			continue
		}
		if calls, err := runModules(t, fails); err == nil || len(calls) != len(all) {
			t.Errorf("failure of go %s: got error %v after %d runs, want one after %d", fails, err, len(calls), len(all))
		}
	}
}
