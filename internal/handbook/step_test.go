package handbook

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/google/go-cmp/cmp"
)

const stepsPage = "# One\n\n```sh\na=1\n```\n\nOutput:\n\n```text\nsome\n```\n\n```yaml\nkey: value\n```\n\n" +
	"```sh skip\nnever\n```\n\n```text\nnothing\n```\n\n## Two\n\n```sh retry exit=3\nb\n```\n\n```console\n$ c\nx\ny\n$ d\n```\n"

func TestSteps(t *testing.T) {
	steps, err := parse(stepsPage).Steps()
	want := []Step{
		{Section: "one", Line: 3, Commands: "a=1\n", Output: "some\n", Shown: true},
		{Section: "two", Line: 27, Commands: "b\n", Retry: true, Exit: 3},
		{Section: "two", Line: 31, Commands: "c\n", Output: "x\ny\n", Shown: true},
		{Section: "two", Line: 31, Commands: "d\n", Shown: true},
	}
	if err != nil || !cmp.Equal(steps, want) {
		t.Errorf("steps: got error %v, want none (-want +got):\n%s", err, cmp.Diff(want, steps))
	}
}

func TestStepsRefusesPages(t *testing.T) {
	for what, text := range map[string]string{
		"no block sh before it":  "```text\nx\n```\n",
		"line 9: block text":     "```sh\na\n```\n\n```text\nx\n```\n\n```text\ny\n```\n",
		"line 7: block text":     "```sh\na\n```\n\n## Next\n\n```text\nx\n```\n",
		`unknown attribute "re"`: "```sh re\na\n```\n",
		"invalid syntax":         "```sh exit=x\na\n```\n",
		"does not begin with":    "```console\nx\n```\n",
	} {
		if _, err := parse(text).Steps(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: got error %v, want %q", text, err, what)
		}
	}
}

func TestCompareShape(t *testing.T) {
	for _, c := range []struct {
		page, output string
		equal        bool
	}{
		{"lb2  10.0.0.2:7947  300/300\n", "lb2  127.0.0.12:7947  7/1024\n", true},
		{"lb2  10.0.0.2:7947\n", "lb2  -\n", false},
		{"after 2.3s, 41 entries of\n    ct (3)\n", "after 1m2s, 5 entries of ct (40)\n", true},
		{"NAME  SIZE\nct    8\n", "NAME  SIZES\nct    8\n", false},
		{"ct  8\n", "ct  8\nct  9\n", false},
		{"a1 -5\n", "a1 +7.5\n", true},
		{"a1\n", "a2\n", false},
	} {
		if err := CompareShape(c.page, c.output); (err == nil) != c.equal {
			t.Errorf("compare %q with %q: got error %v, want equal %v", c.page, c.output, err, c.equal)
		}
	}
}

func TestCompareOutput(t *testing.T) {
	for _, c := range []struct {
		page, output string
		equal        bool
	}{
		{"a\nb\n", "a\nb\n", true},
		{"a\nb\n", "a\nb\nc\n", false},
		{"a  b\n", "a b\n\n", true},
		{"a\n...\nd\n", "a\nb\nc\nd\n", true},
		{"a\n...\nd\n", "a\nd\n", true},
		{"a\n...\nd\n", "a\nb\nc\n", false},
		{"...\nb\n", "a\nb\nb\n", true},
		{"a\n...\n", "b\na\n", false},
		{"...\nb\n...\nc\n", "a\nb\nc\n", true},
		{"changed=2026-11-22T15:30:47.996993477Z\n", "changed=2027-01-02T03:04:05+01:00\n", true},
		{"changed=2026-11-22T15:30:47Z\n", "changed=unknown\n", false},
		{"owner=lb1 changed=2026-11-22T15:30:47Z pending\n", "owner=lb1 changed=2026-11-22T15:30:48Z\n", true},
		{"changed=2026-11-22T15:30:47Z pending\n", "changed=2026-11-22T15:30:48Z late\n", false},
		{"up 3 s, version 1.4.0, incarnation 17953\n", "up 2 h 3 min, version devel, incarnation 2\n", true},
		{"lb1 lost 14 s ago\n", "lb1 lost 1 min ago\n", true},
		{"ends 2027-03-01\n", "ends 2027-11-22\n", true},
		{"capture by fexit, ring buffer: 8 events, 0 lost\n", "capture by none, ring buffer: 0 events, 0 lost\n", true},
		{"lb2 1 0 0s 1ms 2/1024\n", "lb2 1 0 1m2.5s 250µs 2/1024\n", true},
		{"lb2 1 0 0s 2/1024\n", "lb2 1 0 0s 3/1024\n", false},
		{"198.51.100.7:40001 owner=lb1\n", "198.51.100.7:40001 owner=lb2\n", false},
		{"a\n", "[1] 4711\nstep3: line 2:  4711 Killed     syncd run\na\n[1]+  Done   sleep\n", true},
		{"a\n", "Killed\na\n", false},
	} {
		if err := Compare(c.page, c.output); (err == nil) != c.equal {
			t.Errorf("page %q, output %q: got error %v, want equal %v", c.page, c.output, err, c.equal)
		}
	}
}

func testShell(t *testing.T) *Shell {
	t.Helper()
	dir := t.TempDir()
	s, err := StartShell(dir, func(cmd *exec.Cmd) { cmd.Dir = dir }, (*exec.Cmd).Start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestShellKeepsState(t *testing.T) {
	s := testShell(t)
	steps, err := parse("```sh\nmkdir d && cd d\nx=1\nf() {\n\techo f \"$1\"\n}\nsleep 100 &\n```\n\n" +
		"```console\n$ f \"$x\"; basename \"$PWD\"\nf 1\nd\n$ cat\n```\n\n```sh exit=4\n(exit 4)\nfalse\n```\n\n" +
		"```sh\nif false; then :; fi\nfalse || true\n! true\ncat <<EOF\n$x\nEOF\n```\n\n```text\n1\n```\n").Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		if err := s.RunStep(t.Context(), step); err != nil {
			t.Error(err)
		}
	}
	if running, err := s.Running(); err != nil || len(running) != 1 || !strings.Contains(running[0], "sleep 100") {
		t.Errorf("running: got %q, error %v, want the sleep", running, err)
	}
}

func TestShellReportsDifferences(t *testing.T) {
	s := testShell(t)
	for commands, want := range map[string]string{
		"true; (exit 7); echo last": "exit code 7, want 0",
		"echo other":                "differs from that on the page",
		"g() { false; }; g":         "exit code 1, want 0: false",
		"no-such-command":           "exit code 127",
	} {
		err := s.RunStep(t.Context(), Step{Commands: commands + "\n", Output: "some\n", Shown: true})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", commands, err, want)
		}
	}
	if err := s.RunStep(t.Context(), Step{Commands: "true", Exit: 1}); err == nil {
		t.Error("success instead of exit code 1: got no error, want an error")
	}
}

// contextUntil returns a context that ends when a command has created the file, or after poll.Limit.
func contextUntil(t *testing.T, path string) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), poll.Lengthened(poll.Limit))
	t.Cleanup(cancel)
	go func() {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) { // poll cannot wait beside the test
			if _, err := os.Stat(path); err == nil {
				cancel()
			}
		}
	}()
	return ctx
}

func TestShellRepeatsSteps(t *testing.T) {
	s := testShell(t)
	step := Step{Commands: "n=$((n + 1)); [[ $n != 5 ]] || touch ran; echo $n\n", Output: "3\n", Shown: true, Retry: true}
	if err := s.RunStep(t.Context(), step); err != nil {
		t.Error(err)
	}
	if err := s.RunStep(contextUntil(t, filepath.Join(s.Dir(), "ran")), step); err == nil || !strings.Contains(err.Error(), "differs") {
		t.Errorf("repeated until the end of the context: got error %v, want the difference", err)
	}
}

func TestShellEnds(t *testing.T) {
	s := testShell(t)
	r, err := s.Run(contextUntil(t, filepath.Join(s.Dir(), "ran")), "echo before; touch ran; sleep 100")
	if err == nil || r.Output != "before\n" {
		t.Errorf("after the end of the context: got output %q, error %v, want the output so far", r.Output, err)
	}
	s = testShell(t)
	if _, err := s.Run(t.Context(), "exit 0"); err == nil || !strings.Contains(err.Error(), "shell has ended") {
		t.Errorf("exit: got error %v, want the end of the shell", err)
	}
}

// The end of the test process ends all processes of the shell: its standard input ends.
func TestShellEndsItsProcesses(t *testing.T) {
	s := testShell(t)
	stopped := filepath.Join(s.scratch, "pid")
	if _, err := s.Run(t.Context(), "sleep 100 & echo $! >"+stopped); err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(stopped)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.commands.Close(); err != nil {
		t.Fatal(err)
	}
	late := time.After(10 * time.Second)
	for path := filepath.Join("/proc", strings.TrimSpace(string(pid)), "exe"); ; {
		if _, err := os.Readlink(path); err != nil {
			return
		}
		select {
		case <-late:
			t.Fatal("the process still runs")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
