package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/bench/process"
	"mapsync/docs/examples/bundling/trace"
)

// roleVariable is the environment variable with the role of a process of this program.
const roleVariable = "MAPSYNC_BENCH_BUNDLING_ROLE"

// The roles.
const (
	roleTrace = "trace" // the example's tracer
	roleSyncd = "syncd"
	roleLoad  = "load"
)

// runRole runs the role of this process, if it has one.
func runRole() (asked bool, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch os.Getenv(roleVariable) {
	case roleTrace:
		return true, trace.Run(ctx, os.Stdout, os.Args[1:])
	case roleSyncd:
		return true, runSyncd(ctx, os.Args[1])
	case roleLoad:
		return true, runLoad(os.Args[1])
	}
	return false, nil
}

// child is a process of this program in a role.
type child struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	log  process.Tail
}

// startChild starts a role with start, which selects the network namespace.
func startChild(role string, start func(*exec.Cmd) error, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return startCommand(role, start, cmd)
}

// startCommand starts a program with start.
func startCommand(role string, start func(*exec.Cmd) error, cmd *exec.Cmd) (*child, error) {
	c := &child{role: role, cmd: cmd}
	c.cmd.Stderr = &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := start(c.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	return c, nil
}

// prefer gives the process priority over the load, as on a machine with idle CPUs: otherwise a busy machine delays events, and
// the process receives many at once.
func (c *child) prefer() error {
	const highest = -20
	if err := unix.Setpriority(unix.PRIO_PGRP, c.cmd.Process.Pid, highest); err != nil {
		return fmt.Errorf("set the priority of %s: %w", c.role, err)
	}
	return nil
}

// line returns the next line of the output.
func (c *child) line() ([]byte, error) {
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read from %s: %w\n%s", c.role, err, c.log.String())
	}
	return line, nil
}

// receive reads the next line as JSON.
func (c *child) receive(to any) error {
	line, err := c.line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("read from %s: %w", c.role, err)
	}
	return nil
}

// ask sends a line and reads the answer.
func (c *child) ask(question string, answer any) error {
	if _, err := fmt.Fprintln(c.in, question); err != nil {
		return fmt.Errorf("send %s a line: %w\n%s", c.role, err, c.log.String())
	}
	return c.receive(answer)
}

// stopLimit is the time that a process has to end.
const stopLimit = 20 * time.Second

// stop ends the process with SIGTERM, and returns its remaining output. The receiver may be nil.
func (c *child) stop() (rest []byte, err error) {
	if c == nil {
		return nil, nil
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, fmt.Errorf("stop %s: %w\n%s", c.role, err, c.log.String())
	}
	defer time.AfterFunc(stopLimit, func() { _ = c.cmd.Process.Kill() }).Stop() // it fails only if the process has ended
	rest, err = io.ReadAll(c.out)
	if waitErr := c.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("stop %s: %w\n%s", c.role, waitErr, c.log.String()))
	}
	return rest, err
}

// kill ends the process with SIGKILL.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", c.role, err)
	}
	_ = c.cmd.Wait() // it reports the signal
	return nil
}
