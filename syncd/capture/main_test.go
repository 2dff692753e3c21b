package capture_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// matrixEnv names the kernel of the matrix ("6.1", "6.1/preempt=full", "testing") that must
// run every test of the hooks: a test that cannot run there fails.
const matrixEnv = "MAPSYNC_KERNEL"

func TestMain(m *testing.M) {
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
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

// mustRun are the tests that every kernel of the matrix runs with each attach.
var mustRun = []string{
	"facts ring", "facts perf", "who wrote, under load", "blindness", "losses ring", "losses perf",
	"close", "cost", "per-CPU entries",
}

// haveRun is filled by the tests: ran.
var haveRun = make(map[string]bool)

func ran(t *testing.T, test string, h *hooked) {
	if !t.Failed() {
		haveRun[test+" "+string(h.attach)] = true
	}
}

// checkMatrix says which tests of the hooks did not run, on a kernel where all must.
func checkMatrix(name string) error {
	series, parameter, _ := strings.Cut(name, "/")
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
	return errors.Join(errs...)
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		panic(err)
	}
	return unix.ByteSliceToString(name.Release[:])
}

// kernelAtLeast is about what the kernel is expected to do, not about whether a
// test runs.
func kernelAtLeast(major, minor int) bool {
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(kernelRelease(), "%d.%d", &haveMajor, &haveMinor); err != nil {
		panic(err)
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// printKernel prints a table, each line with the kernel that it is about.
func printKernel(text string) {
	name := strings.SplitN(kernelRelease(), "-", 2)[0]
	if _, parameter, found := strings.Cut(os.Getenv(matrixEnv), "/"); found {
		name += "/" + parameter
	}
	for line := range strings.Lines(text) {
		fmt.Printf("kernel %-8s %s", name, line)
	}
}

// unable skips the test because of what this kernel lacks, unless it must not lack it.
func unable(t testing.TB, reason string) {
	t.Helper()
	if series := os.Getenv(matrixEnv); series != "" {
		t.Fatalf("cannot run on kernel %s of the matrix: %s", series, reason)
	}
	t.Skip(reason)
}

// needAttach skips the test where the simplest program cannot be attached so.
func needAttach(t testing.TB, attach capture.Attach) {
	t.Helper()
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
		unable(t, fmt.Sprintf("this kernel loads no %s program: %v", attach, err))
	}
	defer program.Close()
	var l link.Link
	if attach == capture.AttachFexit {
		l, err = link.AttachTracing(link.TracingOptions{Program: program})
	} else {
		l, err = link.Kprobe(symbol, program, nil)
	}
	if err != nil {
		unable(t, fmt.Sprintf("this kernel attaches no %s program: %v", attach, err))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
