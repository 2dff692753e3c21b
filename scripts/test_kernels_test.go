package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// stubTests takes the place of the go tool for scripts/test-kernels. The first test of syncd/kmap prints $FIRST and fails.
// All others pass.
const stubTests = `#!/bin/sh
while [ $# -gt 0 ] && [ "$1" != -C ] && [ "$1" != build ] && [ "$1" != test ]; do shift; done
package=$2
case "$*" in *" build "*) exit 0 ;; esac
if [ "$package" = ./syncd/kmap ] && [ ! -e failed-once ]; then
	touch failed-once
	printf '%s\n' "$FIRST"
	exit 1
fi
for method in kprobe fexit; do
	printf '    --- PASS: Test/%s/ring\n    --- PASS: Test/%s/perf\n' $method $method
done
echo "ok	mapsync/$package	1s"
`

// TestKernelsRetryEmulatorFailures: only failures of the emulator are retried: a crash of the kernel, a stall, and a call of
// bpf(2) that has not returned when the time of a package ends. A test that waits for anything else fails.
func TestKernelsRetryEmulatorFailures(t *testing.T) {
	script, err := os.ReadFile("test-kernels")
	if err != nil {
		t.Fatal(err)
	}
	late := "panic: test timed out after 20m0s\n\ngoroutine 5 [syscall, 19 minutes]:\nos/signal.signal_recv()\n\n"
	for _, c := range []struct {
		name, first string
		retried     bool
	}{
		{"crash", "[  1.2] Oops: int3: 0000 [#1]", true},
		{"stall", "vmrun: the machine stalled: no frame for 2m0s", true},
		{"call", late + "goroutine 7 [syscall, 18 minutes, locked to thread]:\ngithub.com/cilium/ebpf/internal/sys.BPF(0x18)", true},
		{"short call", late + "goroutine 7 [syscall]:\ngithub.com/cilium/ebpf/internal/sys.BPF(0x18)", false},
		{"lock", late + "goroutine 7 [sync.Mutex.Lock, 19 minutes]:\nsync.(*Mutex).Lock()", false},
		{"call without end of time", "goroutine 7 [syscall, 18 minutes]:\ngithub.com/cilium/ebpf/internal/sys.BPF(0x18)", false},
		{"failure", "--- FAIL: TestX (0.1s)", false},
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
			cmd := exec.Command(filepath.Join(root, "scripts", "test-kernels"), "6.1")
			cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "FIRST="+c.first, "MACHINES=20")
			out, err := cmd.CombinedOutput()
			if passed := err == nil; passed != c.retried {
				t.Errorf("result: got passed %t, want %t; output %s", passed, c.retried, out)
			}
			retrying := strings.Contains(string(out), "retrying: ./syncd/kmap")
			if again := strings.Contains(string(out), "ok\tmapsync/./syncd/kmap"); retrying != c.retried || again != c.retried {
				t.Errorf("another try: got message %t and result %t, want both %t; output %s", retrying, again, c.retried, out)
			}
		})
	}
}
