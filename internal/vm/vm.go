// Package vm runs one program in a virtual machine with a kernel of one's
// choice: tests of kernel hooks run on a machine whose own kernel has none.
//
// The machine is QEMU with an initramfs made for the run: a small init, the
// program, what it needs, and a few modules. Output, exit status and files
// come back over a virtio-serial port; the serial console carries only the
// kernel's words and is shown when something went wrong. Nothing is left
// behind: the images are unlinked files, and the machine ends with the
// process that started it.
package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"mapsync/internal/vm/guest"
	"mapsync/internal/vm/kernel"
)

// ErrNoQEMU is returned when the emulator is not installed.
var ErrNoQEMU = errors.New("qemu-system-x86_64 is not installed: run scripts/install-deps")

// ErrTimeout is wrapped when the program took longer than Config.Timeout.
var ErrTimeout = errors.New("timed out")

// MachineError says that the machine failed, not the program in it.
type MachineError struct {
	// Reason is what went wrong, in one line.
	Reason string
	// Console is the end of what the kernel and the emulator printed.
	Console string
}

// Error returns the reason with the console's end.
func (e *MachineError) Error() string {
	if e.Console == "" {
		return "virtual machine: " + e.Reason + "; the console is empty: the kernel ended before it could print, is the memory enough?"
	}
	return "virtual machine: " + e.Reason + "; end of the console:\n" + e.Console
}

// File is a host file or directory that the guest gets a copy of. Libraries
// that a program is linked with come along.
type File struct{ Host, Guest string }

// Out is a guest file or directory that is copied to the host at the end.
type Out struct {
	Guest, Host string
	// Optional outs may be missing without a word.
	Optional bool
}

// Config describes one run.
type Config struct {
	// Kernel to boot.
	Kernel *kernel.Kernel
	// Args is the program, a path on the host, and its arguments. It has the
	// same path in the guest.
	Args []string
	// Env is the program's environment; PATH, HOME and TMPDIR have defaults.
	Env []string
	// Dir is the program's working directory in the guest; by default this
	// process's. Its testdata, if there is one on the host, is copied.
	Dir string
	// Files are copied into the guest, Outs out of it.
	Files []File
	Outs  []Out
	// Modules to load before the program starts, with their dependencies.
	Modules []string
	// Memory as QEMU writes it, and the number of CPUs: "2G" and 2 by default.
	Memory string
	CPUs   int
	// Accel is the accelerator, "tcg" by default: a /dev/kvm that is there
	// need not work.
	Accel string
	// Timeout of the whole run, start of the machine included; 0: none. The
	// program gets a SIGQUIT first, so that a Go program tells where it is.
	Timeout time.Duration
	// Stdout and Stderr get the program's output as it comes. If they are
	// equal, the order between the two is kept.
	Stdout, Stderr io.Writer
	// Signals are forwarded to the program. May be nil.
	Signals <-chan os.Signal
	// Init is an executable that calls [guest.Main] when [guest.IsInit]; by
	// default this process's own.
	Init string
	// Log gets the course of events, at debug level what is usual.
	Log *slog.Logger
	// Standstill is after what silence of the machine it is given up; 2 min by default. It
	// says that it runs each [guest.AliveInterval].
	Standstill time.Duration
}

const (
	bootTimeout = 3 * time.Minute
	lastWords   = 5 * time.Second
	// standstill is long for a machine that says each few seconds that it runs. An emulated
	// processor may go on running a breakpoint that the kernel, patching a function's entry, has
	// taken back: with the exception handled again and again, and interrupts off, for ever.
	standstill  = 2 * time.Minute
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Result is how the program ended.
type Result struct {
	// Code is its exit status; 128 + the signal that ended it.
	Code int
	// Signal names the signal that ended it, if one did.
	Signal string
	// Console is what the kernel had to say after its boot: warnings and worse.
	Console string
}

// Run boots the machine, runs the program and returns how it ended. An error
// is a [MachineError], [ErrTimeout], [ErrNoQEMU], the end of ctx, or about
// the files; of these only one about Outs leaves a Result.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.fill(); err != nil {
		return Result{}, err
	}
	image, err := buildImage(&cfg)
	if err != nil {
		return Result{}, err
	}
	defer image.Close() //nolint:errcheck // an unlinked file that was only read
	m, err := startMachine(&cfg, image)
	if err != nil {
		return Result{}, err
	}
	return m.serve(ctx)
}

// fill sets defaults and makes paths absolute: they are the same in the guest.
func (cfg *Config) fill() error {
	if len(cfg.Args) == 0 {
		return errors.New("run virtual machine: no program given")
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find working directory: %w", err)
	}
	if cfg.Dir == "" {
		cfg.Dir = cwd
	}
	if cfg.Init == "" {
		cfg.Init = "/proc/self/exe"
	}
	if cfg.Memory == "" {
		cfg.Memory = "2G"
	}
	cfg.CPUs = max(cfg.CPUs, 0)
	if cfg.CPUs == 0 {
		cfg.CPUs = 2
	}
	if cfg.Accel == "" {
		cfg.Accel = "tcg"
	}
	if cfg.Standstill == 0 {
		cfg.Standstill = standstill
	}
	args := append([]string(nil), cfg.Args...)
	if args[0], err = filepath.Abs(args[0]); err != nil {
		return fmt.Errorf("find program: %w", err)
	}
	cfg.Args = args
	cfg.Env = append([]string{"PATH=" + defaultPath, "HOME=/root", "TMPDIR=/tmp"}, cfg.Env...)
	if len(cfg.Outs) > 255 {
		return fmt.Errorf("run virtual machine: %d outs, at most 255", len(cfg.Outs))
	}
	return nil
}

// serve reads the guest's frames until it has said how the program ended.
// Then the machine is gone, and nothing writes to cfg's writers any more.
func (m *machine) serve(ctx context.Context) (Result, error) {
	type outcome struct {
		exit guest.Exit
		err  error
	}
	done := make(chan outcome, 1)
	booted := make(chan struct{})
	var receiver sync.WaitGroup
	receiver.Go(func() {
		exit, err := m.receive(booted)
		done <- outcome{exit, err}
	})
	defer func() {
		m.stop()
		receiver.Wait()
	}()
	var timeout <-chan time.Time
	if m.cfg.Timeout > 0 {
		timeout = time.After(m.cfg.Timeout)
	}
	boot := time.After(bootTimeout)
	var late error
	for {
		select {
		case out := <-done:
			if late != nil {
				return Result{}, late
			}
			return m.conclude(out.exit, out.err)
		case <-booted:
			boot, booted = nil, nil
		case <-boot:
			return Result{}, m.failure(fmt.Sprintf("kernel did not boot within %v", bootTimeout))
		case <-m.silence.C:
			return Result{}, m.failure(fmt.Sprintf("the machine has stood still for %v", m.cfg.Standstill))
		case sig := <-m.cfg.Signals:
			m.signal(sig)
		case <-timeout:
			if late != nil {
				return Result{}, late
			}
			late = fmt.Errorf("program in virtual machine: %w after %v", ErrTimeout, m.cfg.Timeout)
			m.signal(syscall.SIGQUIT)
			timeout = time.After(lastWords)
		case <-ctx.Done():
			return Result{}, fmt.Errorf("run virtual machine: %w", context.Cause(ctx))
		}
	}
}

// conclude turns the guest's last message into Run's result.
func (m *machine) conclude(exit guest.Exit, err error) (Result, error) {
	if exit.Err != "" {
		return Result{}, m.failure(exit.Err)
	}
	return Result{Code: exit.Code, Signal: exit.Signal, Console: m.console.sinceMark()}, err
}

// receive handles frames until the exit frame, in the order of their coming.
func (m *machine) receive(booted chan<- struct{}) (guest.Exit, error) {
	outs := newOutputs(m.cfg.Outs)
	defer outs.abort()
	for {
		t, payload, err := m.conn.Read()
		if err != nil {
			return guest.Exit{}, m.lost(err)
		}
		m.silence.Reset(m.cfg.Standstill)
		switch t {
		case guest.FrameHello:
			var hello guest.Hello
			if err := json.Unmarshal(payload, &hello); err != nil {
				return guest.Exit{}, fmt.Errorf("parse guest's hello: %w", err)
			}
			m.cfg.Log.Debug("kernel is up", "version", hello.Release, "after", time.Since(m.started).Round(time.Millisecond))
			m.console.setMark()
			close(booted)
		case guest.FrameStdout:
			_, err = m.cfg.Stdout.Write(payload)
		case guest.FrameStderr:
			_, err = m.cfg.Stderr.Write(payload)
		case guest.FrameFile:
			err = outs.write(payload)
		case guest.FrameExit:
			var exit guest.Exit
			if err := json.Unmarshal(payload, &exit); err != nil {
				return guest.Exit{}, fmt.Errorf("parse guest's exit: %w", err)
			}
			return exit, outs.finish()
		}
		if err != nil {
			return guest.Exit{}, fmt.Errorf("pass on guest's output: %w", err)
		}
	}
}

// lost explains why the connection to the guest ended: the emulator is gone,
// so its console is complete.
func (m *machine) lost(err error) error {
	<-m.exited
	console := m.console.String()
	for line := range strings.Lines(console) {
		if _, what, ok := strings.Cut(line, "Kernel panic"); ok {
			return m.failure("kernel panic" + strings.TrimRight(what, "\n"))
		}
		if _, what, ok := strings.Cut(line, "init: "); ok {
			return m.failure("init: " + strings.TrimRight(what, "\n"))
		}
	}
	reason := "ended before the program did"
	if m.waitErr != nil {
		reason += fmt.Sprintf(" (%v)", m.waitErr)
	}
	if !errors.Is(err, io.EOF) {
		reason += ": " + err.Error()
	}
	return m.failure(reason)
}

func (m *machine) failure(reason string) error {
	return &MachineError{Reason: reason, Console: m.console.String()}
}
