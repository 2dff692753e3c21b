package drained_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"mapsync/syncd/drained"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mountBPF mounts a BPF filesystem until the end of the test.
func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func closeSums(t *testing.T, s *drained.Sums) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSumsContinueWithoutSyncd drains entries before, during and after the absence of syncd.
func TestSumsContinueWithoutSyncd(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "mapsync", "flows"))
		o.Methods = []drained.Method{method}
		m, id := newMap(t, ebpf.Hash)
		open := func() *drained.Sums {
			s, err := drained.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			s.Follow(id)
			return s
		}
		s := open()
		origin := s.Origin()
		put(t, m, 1, value(1, 1, 1))
		drain(t, m, 100)
		closeSums(t, s)
		pinned := method != drained.ByKprobe || kprobesArePinned(t, o.Folder)
		put(t, m, 1, value(1, 2, 10))
		drain(t, m, 100)
		s = open()
		put(t, m, 1, value(1, 3, 100))
		drain(t, m, 100)
		want := "packets 3, flags 3, bytes 111"
		if !pinned {
			want = "packets 2, flags 3, bytes 101"
		}
		if got := sum(t, s, 1); got != want || s.Origin() != origin {
			t.Errorf("sum after a restart: got %s, origin %x, want %s, origin %x", got, s.Origin(), want, origin)
		}
		closeSums(t, s)
		if err := drained.Remove(o.Folder); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(o.Folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder after Remove: got %v, want none", err)
		}
		if err := drained.Remove(o.Folder); err != nil {
			t.Errorf("second Remove: got %v, want nil", err)
		}
	})
}

// kprobesArePinned reports whether the folder has a pinned link. Kernels before 5.15 cannot pin a kprobe.
func kprobesArePinned(t *testing.T, folder string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(folder, "link-0"))
	return err == nil
}

func TestSumsBeginAgainWithAnotherLayout(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		o.ValueSize += 8
		if other := openSums(t, o); other.Origin() == s.Origin() || other.Map().ValueSize() != uint32(o.ValueSize) {
			t.Errorf("sums of another layout: got origin %x and values of %d bytes, want another origin than %x and %d",
				other.Origin(), other.Map().ValueSize(), s.Origin(), o.ValueSize)
		}
	})
}

// TestFolderOfOthersIsRefused: another user could choose the sums.
func TestFolderOfOthersIsRefused(t *testing.T) {
	dir := mountBPF(t)
	folder := filepath.Join(dir, "flows")
	if err := os.Mkdir(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if s, err := drained.Open(options(folder)); err == nil {
		closeSums(t, s)
		t.Error("folder to which others can write: got nil, want an error")
	}
}
