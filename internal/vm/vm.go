// Package vm runs one program in a virtual machine with a selected kernel. It allows tests of kernel
// hooks on a machine whose own kernel has no hooks.
//
// The machine is QEMU with an initramfs built for the run. It contains a small init, the program, its
// dependencies, and a few modules. Output, exit status and files return over a virtio-serial port. The
// serial console carries only kernel messages and is shown after a failure. The run leaves no files
// behind: the images are unlinked files. The machine ends with the process that started it.
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

// ErrNoQEMU means that the emulator is not installed.
var ErrNoQEMU = errors.New("QEMU is not installed: run scripts/install-deps, for arm64 scripts/install-deps arm64")

// ErrTimeout means that the program took longer than Config.Timeout.
var ErrTimeout = errors.New("timed out")

// MachineError means that the machine failed, not the program in it.
type MachineError struct {
	// Reason is a one-line description of the failure.
	Reason string
	// Console is the end of the output of the kernel and the emulator.
	Console string
}

// Error returns the reason with the end of the console output.
func (e *MachineError) Error() string {
	if e.Console == "" {
		return "virtual machine: " + e.Reason + "; the console is empty: the kernel ended before it printed anything; increase the memory"
	}
	return "virtual machine: " + e.Reason + "; end of the console:\n" + e.Console
}

// File is a host file or directory that is copied to the guest. The shared libraries of a program are
// copied too.
type File struct{ Host, Guest string }

// Out is a guest file or directory that is copied to the host at the end.
type Out struct {
	Guest, Host string
	// Optional suppresses the error for a missing file.
	Optional bool
}

// Config describes one run.
type Config struct {
	// Kernel is the kernel to boot.
	Kernel *kernel.Kernel
	// Args is the program, a path on the host, and its arguments. The program has the same path in the
	// guest.
	Args []string
	// Env is the program's environment. PATH, HOME and TMPDIR have defaults.
	Env []string
	// Dir is the program's working directory in the guest. The default is the working directory of
	// this process. Its testdata on the host is copied, if it exists.
	Dir string
	// Files are copied into the guest, Outs out of it.
	Files []File
	Outs  []Out
	// Modules are loaded with their dependencies before the program starts.
	Modules []string
	// Memory is the size in QEMU's notation. CPUs is the number of CPUs. The defaults are "2G" and 2.
	Memory string
	CPUs   int
	// PossibleCPUs is the number of CPUs that the kernel keeps data for, if it is above CPUs.
	PossibleCPUs int
	// Accel is the accelerator. The default is "tcg", because an existing /dev/kvm may not work.
	Accel string
	// Icount makes the guest's clock count instructions: one takes a nanosecond. Pauses of the emulator then take no time
	// in the guest, but neither do misses of a cache. The machine has one CPU then, and the accelerator is "tcg".
	Icount bool
	// Monitor is the path of a socket that the emulator makes for its monitor: see Pause. Empty: none.
	Monitor string
	// Link is an Ethernet link to another machine. Its guest interface is the first one besides loopback.
	Link Link
	// Timeout bounds the whole run, including the boot; 0 means no limit. The program first receives
	// SIGQUIT, so that a Go program prints its stacks.
	Timeout time.Duration
	// Stdout and Stderr receive the program's output as it arrives. If they are equal, the order
	// between the two is preserved.
	Stdout, Stderr io.Writer
	// Signals are forwarded to the program. It may be nil.
	Signals <-chan os.Signal
	// Init is an executable that calls [guest.Main] if [guest.IsInit] returns true. The default is the
	// executable of this process.
	Init string
	// Log receives events, routine ones at debug level.
	Log *slog.Logger
	// StallTimeout is the time without a frame after which the machine counts as stalled. The default
	// is 2 min, or 10 min with a monitor. The machine sends a frame each [guest.AliveInterval].
	StallTimeout time.Duration
}

// Link is one end of a link between two machines. Start the machine that listens first. If Socket is empty, the machine has no link.
type Link struct {
	// Socket is the path of the socket between the two emulators.
	Socket string
	// Listen is true for the machine that makes the socket.
	Listen bool
}

const (
	bootTimeout = 6 * time.Minute // under emulation, on a machine whose CPUs are busy
	quitTimeout = 5 * time.Second
	// defaultStallTimeout is long compared with [guest.AliveInterval]. An emulated processor can keep
	// executing a breakpoint that the kernel removed while it patched a function's entry. The
	// processor then handles the exception repeatedly, with interrupts off, without end.
	defaultStallTimeout = 2 * time.Minute
	// pausedStallTimeout is the default for a machine that Pause may pause.
	pausedStallTimeout = 10 * time.Minute
	defaultPath        = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Result describes how the program ended.
type Result struct {
	// Code is the exit status, or 128 + the signal that ended the program.
	Code int
	// Signal is the name of the signal that ended the program, or "".
	Signal string
	// Console contains the kernel's messages after its boot: warnings and more severe ones.
	Console string
}

// Run boots the machine, runs the program and returns how it ended. The error is a [MachineError],
// [ErrTimeout], [ErrNoQEMU], the cause of ctx, or an error about the files. Only an error about Outs
// comes with a Result.
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

// fill sets defaults and makes paths absolute, because the guest uses the same paths.
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
	if cfg.Icount {
		if cfg.Accel != "tcg" {
			return fmt.Errorf("run virtual machine: icount needs the accelerator tcg, not %s", cfg.Accel)
		}
		cfg.CPUs = 1 // the instructions of another CPU would take time of this one
	}
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = defaultStallTimeout
		if cfg.Monitor != "" {
			cfg.StallTimeout = pausedStallTimeout
		}
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

// serve reads the guest's frames until the exit frame. When it returns, the machine has ended, and
// cfg's writers receive no further data.
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
			return m.result(out.exit, out.err)
		case <-booted:
			boot, booted = nil, nil
		case <-boot:
			return Result{}, m.failure(fmt.Sprintf("kernel did not boot within %v", bootTimeout))
		case <-m.stallTimer.C:
			return Result{}, m.failure(fmt.Sprintf("the machine stalled: no frame for %v", m.cfg.StallTimeout))
		case sig := <-m.cfg.Signals:
			m.signal(sig)
		case <-timeout:
			if late != nil {
				return Result{}, late
			}
			late = fmt.Errorf("program in virtual machine: %w after %v", ErrTimeout, m.cfg.Timeout)
			m.signal(syscall.SIGQUIT)
			timeout = time.After(quitTimeout)
		case <-ctx.Done():
			return Result{}, fmt.Errorf("run virtual machine: %w", context.Cause(ctx))
		}
	}
}

// result converts the guest's last message into Run's result.
func (m *machine) result(exit guest.Exit, err error) (Result, error) {
	if exit.Err != "" {
		return Result{}, m.failure(exit.Err)
	}
	return Result{Code: exit.Code, Signal: exit.Signal, Console: m.console.sinceBoot()}, err
}

// receive processes frames in order of arrival until the exit frame.
func (m *machine) receive(booted chan<- struct{}) (guest.Exit, error) {
	outs := newOutputs(m.cfg.Outs)
	defer outs.abort()
	for {
		t, payload, err := m.conn.Read()
		if err != nil {
			return guest.Exit{}, m.connectionError(err)
		}
		m.stallTimer.Reset(m.cfg.StallTimeout)
		switch t {
		case guest.FrameHello:
			var hello guest.Hello
			if err := json.Unmarshal(payload, &hello); err != nil {
				return guest.Exit{}, fmt.Errorf("parse guest's hello: %w", err)
			}
			m.cfg.Log.Debug("kernel is up", "version", hello.Release, "after", time.Since(m.started).Round(time.Millisecond))
			m.console.markBooted()
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

// connectionError explains why the connection to the guest ended. It waits for the emulator to exit,
// so its console output is complete.
func (m *machine) connectionError(err error) error {
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
