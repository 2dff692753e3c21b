package capture_test

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// detectedWrites are the numbers of detected writes, for docs/capture.md: a line for each kernel, attach method and
// writer, separated by tabs. scripts/detected-writes writes it. The kernel of the method syscall is that of the
// machine on which the script ran.
//
//go:embed testdata/detected_writes.txt
var detectedWrites string

// printDetectedEnv is the environment variable with which the tests print the lines of detectedWrites
// instead of comparing them.
const printDetectedEnv = "MAPSYNC_PRINT_DETECTED_WRITES"

// unsupportedWriter stands for a number of writes: the kernel has no such writer.
const unsupportedWriter = "unsupported"

// detected compares how many of the writes of a writer were detected with detectedWrites, on a kernel of the matrix.
func (h *hookedCapture) detected(t testing.TB, writer string, got, writes int) {
	t.Helper()
	h.compareDetected(t, writer, fmt.Sprintf("%d/%d", got, writes))
}

func (h *hookedCapture) compareDetected(t testing.TB, writer, cell string) {
	t.Helper()
	kernel, _, _ := strings.Cut(os.Getenv(matrixEnv), "/")
	if h.attach == capture.AttachSyscall {
		kernel = strings.Join(strings.Split(kernelRelease(), ".")[:2], ".")
	}
	begin := strings.Join([]string{kernel, string(h.attach), writer, ""}, "\t")
	line := func(cell string) string { return begin + cell + "\n" }
	switch {
	case kernel == "":
	case os.Getenv(printDetectedEnv) != "":
		if h.buffer == capture.BufferRing {
			fmt.Printf("detected\t%s", line(cell))
		}
	case h.attach == capture.AttachSyscall && (cell == unsupportedWriter || !strings.Contains("\n"+detectedWrites, "\n"+begin) ||
		strings.Contains(detectedWrites, line(unsupportedWriter))): // machines with one kernel release may be configured differently
	case !strings.Contains("\n"+detectedWrites, "\n"+line(cell)):
		t.Errorf("detected writes: got %q, want a line of testdata/detected_writes.txt, which scripts/detected-writes updates", line(cell))
	}
}

// hasWriter reports whether the kernel has the writer of a row. Otherwise it adds that to the reports.
func (f *hookCase) hasWriter(t *testing.T, h *hookedCapture) bool {
	t.Helper()
	if f.supported == nil || !errors.Is(f.supported(), ebpf.ErrNotSupported) {
		return true
	}
	report.add(f.name, h, unsupportedWriter)
	if f.writer != "" {
		h.compareDetected(t, f.writer, unsupportedWriter)
	}
	return false
}
