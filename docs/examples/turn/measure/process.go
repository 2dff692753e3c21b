package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/internal/netns"
)

// process is a program in a namespace. It ends when this process ends.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has exited

	mu  sync.Mutex
	log []string // lines of its standard error, at most logLines
}

const (
	logLines  = 1000
	pollEvery = 5 * time.Millisecond
)

func startProcess(ns *netns.NS, name, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = ns.Start(p.cmd)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.readLog(stderr)
		_ = p.cmd.Wait() // the log has the reason
		close(p.done)
	}()
	return p, nil
}

func (p *process) readLog(from io.Reader) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		p.mu.Lock()
		p.log = append(p.log, lines.Text())
		p.log = p.log[max(0, len(p.log)-logLines):]
		p.mu.Unlock()
	}
}

// logged returns the last line with that text.
func (p *process) logged(text string) (line string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range slices.Backward(p.log) {
		if strings.Contains(line, text) {
			return line, true
		}
	}
	return "", false
}

// errorLines returns the lines of errors, for a report.
func (p *process) errorLines() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for _, line := range p.log {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") || !strings.Contains(line, "level=") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// awaitLog waits for a line with that text.
func (p *process) awaitLog(ctx context.Context, text string) (line string, err error) {
	err = await(ctx, fmt.Sprintf("%s logs %q", p.name, text), func() (bool, error) {
		var ok bool
		if line, ok = p.logged(text); ok {
			return true, nil
		}
		select {
		case <-p.done:
			return false, fmt.Errorf("%s has exited: %s", p.name, p.errorLines())
		default:
			return false, nil
		}
	})
	return line, err
}

// signal sends a signal.
func (p *process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// end ends the program with a signal and waits for its exit. It kills a program that does not exit. The
// receiver may be nil.
func (p *process) end(s os.Signal) error {
	if p == nil {
		return nil
	}
	const patience = 20 * time.Second
	err := p.signal(s)
	select {
	case <-p.done:
		return err
	case <-time.After(patience):
		return errors.Join(err, fmt.Errorf("%s did not exit within %s", p.name, patience), p.end(syscall.SIGKILL))
	}
}

// cpu returns the processor time that the program has used.
func (p *process) cpu() (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^p.cmd.Process.Pid<<3 | 2) // CPUCLOCK_SCHED of all threads
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read processor time of %s: %w", p.name, err)
	}
	return time.Duration(ts.Nano()), nil
}

// await waits until ok returns true or an error, for at most a minute. what states the condition.
func await(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
}
