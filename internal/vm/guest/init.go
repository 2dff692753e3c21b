package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// IsInit reports whether this process is the init process of a virtual machine that this module's
// runner started. An executable that also serves as the machine's init calls it first and then calls
// [Main].
func IsInit() bool {
	if os.Getpid() != 1 {
		return false
	}
	_, err := os.Stat(SpecPath)
	return err == nil
}

// Main runs the machine. It prepares the system, runs the program of the [Spec], reports the result,
// and switches the machine off. It does not return. Errors before the connection to the host appear on
// the console.
func Main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // the host runs QEMU with -no-reboot
	select {}
}

func run() error {
	b, err := os.ReadFile(SpecPath)
	if err != nil {
		return fmt.Errorf("read spec: %w", err)
	}
	var spec Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("parse spec: %w", err)
	}
	if err := prepare(&spec); err != nil {
		return err
	}
	port, err := openPort(PortName, 20*time.Second)
	if err != nil {
		return err
	}
	defer port.Close() //nolint:errcheck // the machine ends here
	conn := NewConn(port)
	if err := conn.WriteJSON(FrameHello, Hello{Release: kernelRelease()}); err != nil {
		return err
	}
	go func() {
		for conn.Write(FrameAlive, nil) == nil {
			time.Sleep(AliveInterval)
		}
	}()
	exit := runProgram(conn, &spec)
	for i, path := range spec.Outs {
		if err := sendTree(Stream{conn, FrameFile, []byte{byte(i)}}, path); err != nil {
			exit.Err = strings.TrimSpace(exit.Err + " " + err.Error())
		}
	}
	if err := conn.WriteJSON(FrameExit, exit); err != nil {
		return err
	}
	// The host stops the machine after it has read the frame. A reboot now would reset the device with
	// the frame still in its queue.
	time.Sleep(30 * time.Second)
	return errors.New("host did not end the machine")
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// openPort waits for the named virtio-serial port. The driver receives the port names from the device
// some time after it was loaded.
func openPort(name string, timeout time.Duration) (*os.File, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, path := range names {
			b, err := os.ReadFile(path)
			if err != nil || strings.TrimSpace(string(b)) != name {
				continue
			}
			// Use the runtime poller with a non-blocking file. A blocking write spins in the kernel
			// with interrupts off until the host reads the data.
			f, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
			if err == nil {
				return f, nil
			}
			if !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("open port: %w", err)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("find virtio port %q: not there after %v", name, timeout)
		}
	}
}

// runProgram runs the program until it exits and forwards its output and the host's signals. It then
// kills all remaining processes.
func runProgram(conn *Conn, spec *Spec) Exit {
	outputs, pumps, err := startPumps(conn, spec.Merge)
	if err != nil {
		return Exit{Code: 126, Err: err.Error()}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Exit{Code: 126, Err: err.Error()}
	}
	defer null.Close() //nolint:errcheck // only read
	proc, err := os.StartProcess(spec.Args[0], spec.Args, &os.ProcAttr{
		Dir: spec.Dir, Env: spec.Env, Files: append([]*os.File{null}, outputs...),
	})
	for _, f := range outputs {
		_ = f.Close() // both are the same file if merged
	}
	if err != nil {
		return Exit{Code: 127, Err: fmt.Sprintf("start program: %v", err)}
	}
	go forwardSignals(conn, proc.Pid)
	exit := waitProgram(proc.Pid)
	_ = unix.Kill(-1, unix.SIGKILL) // all processes except init; this also closes the pipes
	pumps.Wait()
	return exit
}

// startPumps returns the program's standard output and error. The returned group of copying goroutines
// ends when all processes have closed these files.
func startPumps(conn *Conn, merge bool) ([]*os.File, *sync.WaitGroup, error) {
	var pumps sync.WaitGroup
	pump := func(t FrameType) (*os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("create pipe: %w", err)
		}
		pumps.Go(func() {
			defer r.Close()                                //nolint:errcheck // only read
			_, _ = io.Copy(Stream{Conn: conn, Type: t}, r) // if the host disappears, the machine ends
		})
		return w, nil
	}
	stdout, err := pump(FrameStdout)
	if err != nil {
		return nil, nil, err
	}
	if merge {
		return []*os.File{stdout, stdout}, &pumps, nil
	}
	stderr, err := pump(FrameStderr)
	if err != nil {
		_ = stdout.Close()
		return nil, nil, err
	}
	return []*os.File{stdout, stderr}, &pumps, nil
}

// forwardSignals sends the host's signals to the program. It runs until the machine ends.
func forwardSignals(conn *Conn, pid int) {
	for {
		t, payload, err := conn.Read()
		if err != nil {
			return
		}
		if t == FrameSignal && len(payload) == 1 {
			_ = unix.Kill(pid, unix.Signal(payload[0]))
		}
	}
}

// waitProgram reaps child processes, including orphans, until the program exits.
func waitProgram(pid int) Exit {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return Exit{Code: 126, Err: fmt.Sprintf("wait for program: %v", err)}
		case got != pid:
		case status.Signaled(): //nolint:misspell // the name in package syscall
			return Exit{Code: 128 + int(status.Signal()), Signal: unix.SignalName(status.Signal())}
		case status.Exited():
			return Exit{Code: status.ExitStatus()}
		}
	}
}
