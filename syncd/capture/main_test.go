package capture_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// matrixEnv is the environment variable with a kernel of the matrix ("6.1", "6.1/preempt=full",
// "testing"). With it, all tests of the hooks must run: a test that cannot run there fails.
const matrixEnv = "MAPSYNC_KERNEL"

// noFexit is a kernel of the matrix without direct calls of ftrace, which fexit needs.
const noFexit = "6.1/arm64"

func TestMain(m *testing.M) {
	if os.Getenv(matrixEnv) == noFexit {
		attaches = []capture.Attach{capture.AttachKprobe}
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	if os.Getenv(childEnv) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if series := os.Getenv(matrixEnv); series != "" && code == 0 {
		if err := checkMatrix(series); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// mustRun are the tests that every kernel of the matrix runs with each attach method.
var mustRun = []string{
	"hook events ring", "hook events perf", "write context under load", "missed writes", "losses ring", "losses perf",
	"close", "cost", "per-CPU entries",
}

// mustRunFexit are the tests that every kernel of the matrix with fexit runs with it.
var mustRunFexit = []string{"lookups", "in place", "cost of lookups"}

// haveRun contains the tests that ran without failure. markRan fills it.
var haveRun = make(map[string]bool)

func markRan(t *testing.T, test string, h *hookedCapture) {
	if !t.Failed() {
		haveRun[test+" "+string(h.attach)] = true
	}
}

// checkMatrix returns an error with the tests of the hooks that did not run on a kernel of the
// matrix.
func checkMatrix(name string) error {
	series, parameter, _ := strings.Cut(name, "/")
	if arch, rest, _ := strings.Cut(parameter, "/"); arch == "arm64" {
		if runtime.GOARCH != arch {
			return fmt.Errorf("%s is %s, and this program is for %s", matrixEnv, name, runtime.GOARCH)
		}
		parameter = rest
	}
	if series != "testing" && !strings.HasPrefix(kernelRelease(), series+".") {
		return fmt.Errorf("%s is %s, and this is kernel %s", matrixEnv, name, kernelRelease())
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil || parameter != "" && !slices.Contains(strings.Fields(string(cmdline)), parameter) {
		return fmt.Errorf("%s is %s, and this kernel was booted with %q, %w", matrixEnv, name, cmdline, err)
	}
	if flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" {
		return nil
	}
	var errs []error
	for _, test := range mustRun {
		for _, attach := range attaches {
			if !haveRun[test+" "+string(attach)] {
				errs = append(errs, fmt.Errorf("on kernel %s did not run: %s, %s", name, test, attach))
			}
		}
	}
	for _, test := range mustRunFexit {
		if name != noFexit && !haveRun[test+" "+string(capture.AttachFexit)] {
			errs = append(errs, fmt.Errorf("on kernel %s did not run: %s", name, test))
		}
	}
	return errors.Join(errs...)
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		panic(err)
	}
	return unix.ByteSliceToString(name.Release[:])
}

// kernelAtLeast returns true if the kernel release is major.minor or later. It decides on the
// expected behaviour of the kernel, not on whether a test runs.
func kernelAtLeast(major, minor int) bool {
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(kernelRelease(), "%d.%d", &haveMajor, &haveMinor); err != nil {
		panic(err)
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// printKernel prints a table, with the name of the running kernel on each line.
func printKernel(text string) {
	name := strings.SplitN(kernelRelease(), "-", 2)[0]
	if _, parameter, found := strings.Cut(os.Getenv(matrixEnv), "/"); found {
		name += "/" + parameter
	}
	for line := range strings.Lines(text) {
		fmt.Printf("kernel %-8s %s", name, line)
	}
}

// skipUnsupported skips the test on a kernel that lacks a feature. On a kernel of the matrix it
// fails the test.
func skipUnsupported(t testing.TB, reason string) {
	t.Helper()
	if series := os.Getenv(matrixEnv); series != "" {
		t.Fatalf("cannot run on kernel %s of the matrix: %s", series, reason)
	}
	t.Skip(reason)
}

// skipEmulated skips a test on the kernels of the matrix. The emulator often executes a breakpoint that
// the kernel has removed already while it patched the entry of all system calls, for a tracepoint there.
func skipEmulated(t testing.TB) {
	t.Helper()
	if os.Getenv(matrixEnv) != "" {
		t.Skip("the emulator crashes on tracepoints of system calls")
	}
}

// attachErrors returns for each method why even a minimal program cannot be attached, or nil. Emulated machines need seconds to find
// that out.
var attachErrors = map[capture.Attach]func() error{
	capture.AttachKprobe: sync.OnceValue(func() error { return attachMinimal(capture.AttachKprobe) }),
	capture.AttachFexit:  sync.OnceValue(func() error { return attachMinimal(capture.AttachFexit) }),
}

// needAttach skips the test if even a minimal program cannot be attached with this method.
func needAttach(t testing.TB, attach capture.Attach) {
	t.Helper()
	if attach == capture.AttachSyscall {
		return // each kernel with BTF has it
	}
	if attach == capture.AttachFexit && os.Getenv(matrixEnv) == noFexit {
		t.Skip("this kernel has no fexit")
	}
	if err := attachErrors[attach](); err != nil {
		skipUnsupported(t, err.Error())
	}
}

// attachMinimal attaches a program that does nothing, and removes it.
func attachMinimal(attach capture.Attach) error {
	const symbol = "htab_map_update_elem"
	spec := &ebpf.ProgramSpec{
		Type: ebpf.Kprobe, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	}
	if attach == capture.AttachFexit {
		spec.Type, spec.AttachType, spec.AttachTo = ebpf.Tracing, ebpf.AttachTraceFExit, symbol
	}
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		return fmt.Errorf("load %s program: %w", attach, err)
	}
	defer program.Close()
	var l link.Link
	if attach == capture.AttachFexit {
		l, err = link.AttachTracing(link.TracingOptions{Program: program})
	} else {
		l, err = link.Kprobe(symbol, program, nil)
	}
	if err != nil {
		return fmt.Errorf("attach %s program: %w", attach, err)
	}
	return l.Close()
}
