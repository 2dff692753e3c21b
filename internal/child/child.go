// Package child runs a test binary as a second process, such as the control plane of a load balancer: syncd treats the
// writes of its own process as its own. The process executes lines of commands until the test ends.
package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// answer is what the process prints after each line.
const answer = "done\n"

// Process is the second process. It is not safe for concurrent use.
type Process struct {
	// ID is the ID of the process.
	ID   int
	in   *os.File
	out  *bufio.Reader
	line string // executed last
}

// Start starts this test binary again, with one more environment variable, until the end of t. files are its file
// descriptors from 3 on; the caller keeps its own ones. The TestMain of the binary calls Serve if it finds the variable.
func Start(t testing.TB, variable string, files ...*os.File) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, toChild, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable)
	cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = in, os.Stderr, files
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(toChild.Close(), cmd.Wait())
		if err != nil {
			t.Errorf("child process: %v", err)
		}
	})
	return &Process{ID: cmd.Process.Pid, in: toChild, out: bufio.NewReader(out)}
}

// Begin makes the process execute a line. It does not wait for the end.
func (p *Process) Begin(t testing.TB, line string) {
	t.Helper()
	p.line = line
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
}

// End waits until the process has executed the line of Begin.
func (p *Process) End(t testing.TB) {
	t.Helper()
	if got, err := p.out.ReadString('\n'); err != nil || got != answer {
		t.Fatalf("child process: %s: got %q, error %v, want done", p.line, got, err)
	}
}

// Serve executes the lines of the standard input with fn until its end. It is the main function of the second process.
func Serve(fn func(line string) error) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := fn(lines.Text()); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Print(answer)
	}
	return lines.Err()
}
