package scripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// stubTests takes the place of the go tool for scripts/test-kernels. The first $FAILURES tests of syncd/kmap print $FIRST
// and fail. All others pass.
const stubTests = `#!/bin/sh
while [ $# -gt 0 ] && [ "$1" != -C ] && [ "$1" != build ] && [ "$1" != test ]; do shift; done
package=$2
case "$*" in *" build "*) exit 0 ;; esac
if [ "$package" = ./syncd/kmap ] && [ "$(cat failures 2>/dev/null | wc -c)" -lt "$FAILURES" ]; then
	printf x >>failures
	printf '%s\n' "$FIRST"
	exit 1
fi
for method in kprobe fexit; do
	printf '    --- PASS: Test/%s/ring\n    --- PASS: Test/%s/perf\n' $method $method
done
echo "ok	mapsync/$package	1s"
`

// TestKernelsRetryEmulatorFailures: only failures of the emulator are retried: a crash of the kernel, a stall, and, once, a
// call of bpf(2) that has not returned when the time of a package ends. A test that waits for anything else fails.
func TestKernelsRetryEmulatorFailures(t *testing.T) {
	script, err := os.ReadFile("test-kernels")
	if err != nil {
		t.Fatal(err)
	}
	late := "panic: test timed out after 20m0s\n\ngoroutine 5 [syscall, 19 minutes]:\nos/signal.signal_recv()\n\n"
	call := "goroutine 7 [syscall, 18 minutes, locked to thread]:\ngithub.com/cilium/ebpf/internal/sys.BPF(0x18)"
	for _, c := range []struct {
		name, kernel, first string
		failures            int
		retried, passes     bool
	}{
		{"crash", "6.1", "[  1.2] Oops: int3: 0000 [#1]", 1, true, true},
		{"crash twice", "6.1", "[  1.2] Oops: int3: 0000 [#1]", 2, true, true},
		{"crash without end", "6.1", "[  1.2] Oops: int3: 0000 [#1]", 3, true, false},
		{"stall", "6.1", "vmrun: the machine stalled: no frame for 2m0s", 1, true, true},
		{"call", "6.1", late + call, 1, true, true},
		{"call twice", "6.1", late + call, 2, true, false},
		{"call natively", "native", late + call, 1, false, false},
		{"call of a failed test", "6.1", call, 1, false, false},
		{"short call", "6.1", late + strings.Replace(call, ", 18 minutes", "", 1), 1, false, false},
		{"lock", "6.1", late + "goroutine 7 [sync.Mutex.Lock, 19 minutes]:\nsync.(*Mutex).Lock()", 1, false, false},
		{"failure", "6.1", "--- FAIL: TestX (0.1s)", 1, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, programs := t.TempDir(), t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "scripts"), 0o755); err != nil {
				t.Fatal(err)
			}
			for path, text := range map[string]string{
				filepath.Join(root, "scripts", "test-kernels"):     string(script),
				filepath.Join(root, "scripts", "previous-release"): "#!/bin/sh\n",
				filepath.Join(programs, "go"):                      stubTests,
			} {
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "test-kernels"), c.kernel)
			cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "FIRST="+c.first, fmt.Sprint("FAILURES=", c.failures), "MACHINES=20", "BUSY=", "DRILLS=")
			out, err := cmd.CombinedOutput()
			if passed := err == nil; passed != c.passes {
				t.Errorf("result: got passed %t, want %t; output %s", passed, c.passes, out)
			}
			retrying := strings.Contains(string(out), "retrying: ./syncd/kmap")
			if again := strings.Contains(string(out), "ok\tmapsync/./syncd/kmap"); retrying != c.retried || again != c.passes {
				t.Errorf("another try: got message %t and result %t, want %t and %t; output %s", retrying, again, c.retried, c.passes, out)
			}
		})
	}
}
