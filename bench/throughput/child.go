package main

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

// child is this program again, in another role. It answers questions, one a line of its
// standard input, each by one JSON value, and ends with its input.
type child struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	log  tail
}

// startChild starts a child whose role an environment variable tells; start starts the command.
// It is the caller's to close, also after an error.
func startChild(name, variable, value string, start func(*exec.Cmd) error) (*child, error) {
	c := &child{name: name}
	self, err := os.Executable()
	if err != nil {
		return c, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+value)
	cmd.Stderr = &c.log
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

// tell sends a line to which no answer comes.
func (c *child) tell(line string) error {
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		return fmt.Errorf("tell %s %q: %w\n%s", c.name, line, err, c.log.String())
	}
	return nil
}

// hear waits for the next answer.
func (c *child) hear(answer any) error {
	if err := c.out.Decode(answer); err != nil {
		return fmt.Errorf("hear from %s: %w\n%s", c.name, err, c.log.String())
	}
	return nil
}

func (c *child) ask(question string, answer any) error {
	if err := c.tell(question); err != nil {
		return err
	}
	return c.hear(answer)
}

// close ends the child and waits for its end.
func (c *child) close() error {
	if c == nil || c.cmd == nil {
		return nil
	}
	err := c.in.Close()
	if waitErr := c.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("end %s: %w\n%s", c.name, waitErr, c.log.String()))
	}
	return err
}

// tail keeps the last of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
