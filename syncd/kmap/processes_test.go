package kmap

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// holdsMap is set in the process that TestProcessNamesArePrintable starts.
const holdsMap = "KMAP_TEST_HOLDS_MAP"

// TestProcessNamesArePrintable starts a process with a hostile name that holds a map open: this program again, because a
// machine of the kernel tests has no other.
func TestProcessNamesArePrintable(t *testing.T) {
	if os.Getenv(holdsMap) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		return
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info, err := Describe(m)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	held := os.NewFile(uintptr(fd), "map")
	defer held.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "é\x1b[2J\nforged")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^"+t.Name()+"$")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), holdsMap+"=1"), []*os.File{held}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	want := Process{cmd.Process.Pid, `é\u001b[2J\u000aforged`}
	var got []Process
	poll.Eventually(t, "the process is listed with a printable name", func() bool {
		all, err := ProcessesOfMaps(t.Context(), []uint32{info.ID})
		if err != nil {
			t.Fatal(err)
		}
		got = all[info.ID]
		return slices.Contains(got, want)
	}, func() any { return got })
}
