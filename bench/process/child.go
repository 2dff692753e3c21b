// Package process starts this program again in another role: as a daemon that is driven by an
// injector, or as a part of a load. Such a process has separate processor time, memory, goroutines
// and descriptors, which can be measured.
package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// Child is this program in another role. It reads questions from its standard input, one per line,
// and answers each with one JSON value. It exits at the end of its input.
type Child struct {
	// Log is the end of the child's standard error.
	Log Tail

	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
}

// StartChild starts a child with an environment variable that selects its role. start starts the
// command. The caller closes the child, also after an error.
func StartChild(name, variable, value string, start func(*exec.Cmd) error) (*Child, error) {
	c := &Child{name: name}
	self, err := os.Executable()
	if err != nil {
		return c, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+value)
	cmd.Stderr = &c.Log
	in, err := cmd.StdinPipe()
	if err != nil {
		return c, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return c, err
	}
	if err := start(cmd); err != nil {
		return c, fmt.Errorf("start %s: %w", name, err)
	}
	c.cmd, c.in, c.out = cmd, in, json.NewDecoder(out)
	return c, nil
}

// Pid returns the id of the child's process.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Send sends a line that has no answer.
func (c *Child) Send(line string) error {
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		return fmt.Errorf("send %s %q: %w\n%s", c.name, line, err, c.Log.String())
	}
	return nil
}

// Receive waits for the next answer.
func (c *Child) Receive(answer any) error {
	if err := c.out.Decode(answer); err != nil {
		return fmt.Errorf("receive from %s: %w\n%s", c.name, err, c.Log.String())
	}
	return nil
}

// Ask sends a line and waits for the answer.
func (c *Child) Ask(question string, answer any) error {
	if err := c.Send(question); err != nil {
		return err
	}
	return c.Receive(answer)
}

// Close ends the child and waits for its exit. The receiver may be nil.
func (c *Child) Close() error {
	if c == nil || c.cmd == nil {
		return nil
	}
	err := c.in.Close()
	if waitErr := c.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("end %s: %w\n%s", c.name, waitErr, c.Log.String()))
	}
	return err
}

// Tail keeps the last 8 KiB that were written to it.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 8 << 10

// Write implements io.Writer. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String returns the kept text without surrounding white space.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
