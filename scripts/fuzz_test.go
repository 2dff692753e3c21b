package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// stubBuild takes the place of the go tool for scripts/fuzz. It "compiles" the stub in $PROGRAM, and notes its arguments.
const stubBuild = `#!/bin/sh
case "$*" in
"env GOCACHE") echo cache ;;
*)
	printf '%s\n' "$*" >>"$CALLS"
	while [ "$1" != -o ]; do shift; done
	cp "$PROGRAM" "$2"
	;;
esac
`

// stubTargets takes the place of a program with fuzz targets. FuzzLate ends late once.
const stubTargets = `#!/bin/sh
case "$*" in
*-test.list*) printf 'FuzzMany\nFuzzFew\nFuzzCrash\nFuzzLate\nFuzzPlain\n'; exit ;;
esac
printf '%s\n' "$*" >>"$CALLS"
count() { printf 'fuzz: elapsed: 3s, execs: 3 (1/sec), new interesting: 1 (total: 2)\nfuzz: elapsed: 10s, execs: %s (9/sec), new interesting: 7 (total: 8)\nPASS\n' "$1"; }
case "$*" in
*FuzzMany*) count 1666 ;;
*FuzzFew*) count 1665 ;;
*FuzzCrash*) count 5000; echo "    Failing input written to testdata/fuzz/FuzzCrash/1"; exit 1 ;;
*FuzzPlain*) echo "warning: starting fuzzing without coverage instrumentation"; count 9000 ;;
*FuzzLate*)
	[ -e late ] && { count 12345678; exit; }
	touch late
	printf '    context deadline exceeded\n'
	exit 1
	;;
esac
`

// runFuzz runs scripts/fuzz with stubs for a time. It returns the table by target, the calls of the stubs, and whether it passed.
func runFuzz(t *testing.T, length string) (table map[string]string, calls string, passed bool) {
	t.Helper()
	root, programs := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("fuzz")
	if err != nil {
		t.Fatal(err)
	}
	targets, list := filepath.Join(programs, "targets"), filepath.Join(programs, "calls")
	for path, text := range map[string]string{
		filepath.Join(root, "scripts", "fuzz"):               string(script),
		filepath.Join(root, "syncd", "wire", "some_test.go"): "func FuzzMany(f *testing.F) {}\n",
		filepath.Join(programs, "go"):                        stubBuild,
		targets:                                              stubTargets,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(root, "scripts", "fuzz"), length)
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "PROGRAM="+targets, "CALLS="+list)
	out, err := cmd.CombinedOutput()
	_, printed, found := strings.Cut(string(out), "\nPACKAGE ")
	if !found {
		t.Fatalf("fuzz for %s: got no table, error %v, want one\n%s", length, err, out)
	}
	table = make(map[string]string)
	for line := range strings.Lines(printed) {
		if words := strings.Fields(line); strings.HasPrefix(line, "syncd/wire ") {
			table[words[1]] = strings.Join(words[2:], " ")
		}
		if len(line) > 101 {
			t.Errorf("fuzz for %s: got a line of %d columns, want at most 100: %s", length, len(line)-1, line)
		}
	}
	called, readErr := os.ReadFile(list)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return table, string(called), err == nil
}

// TestFuzzNeedsExecutions: the minimum number of executions is 10,000 in 60 s, and one in less than 10 s. A target that ends late
// runs again.
func TestFuzzNeedsExecutions(t *testing.T) {
	for length, want := range map[string]map[string]string{
		"10s": {
			"FuzzMany": "1666 1666 7 ok", "FuzzFew": "1665 1666 7 TOO FEW", "FuzzCrash": "5000 1666 7 FAILED",
			"FuzzPlain": "9000 1666 7 NOT INSTRUMENTED", "FuzzLate": "12345678 1666 7 ok",
		},
		"1m30s": {"FuzzMany": "1666 15000 7 TOO FEW", "FuzzLate": "12345678 15000 7 ok"},
		"1s":    {"FuzzFew": "1665 1 7 ok"},
		"100x":  {"FuzzFew": "1665 1 7 ok"},
	} {
		table, calls, passed := runFuzz(t, length)
		if passed {
			t.Errorf("fuzz for %s with targets that fail: got exit code 0, want a failure", length)
		}
		for target, line := range want {
			if table[target] != line {
				t.Errorf("fuzz for %s: %s: got %q, want %q", length, target, table[target], line)
			}
		}
		for _, pattern := range []string{`-gcflags=mapsync/\.\.\.=-d=libfuzzer`, `-test\.fuzz \^FuzzMany\$ -test\.fuzztime ` + length, `-test\.fuzzminimizetime \d+x`} {
			if !regexp.MustCompile(pattern).MatchString(calls) {
				t.Errorf("fuzz for %s: got calls without %s, want it\n%s", length, pattern, calls)
			}
		}
	}
}
