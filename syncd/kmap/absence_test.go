package kmap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestAbsenceOfAMapThatIsThere: a map that is there, and has yet to be opened, is not reported as missing.
func TestAbsenceOfAMapThatIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bpf")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	pin := filepath.Join(dir, "ct")
	if got, want := (Ref{PinPath: pin}).Absence(), "no map is pinned at "+pin; got != want {
		t.Errorf("pin without a map: got %q, want %q", got, want)
	}
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	for _, r := range []Ref{{PinPath: pin}, {ID: uint32(id)}} {
		if got := r.Absence(); got != "" {
			t.Errorf("%s, which is there: got %q, want an empty text", r, got)
		}
		if r.InnerKey = "7"; !strings.Contains(r.Absence(), "has no inner map with key 7") {
			t.Errorf("%s: got %q, want that the inner map is missing", r, r.Absence())
		}
	}
}
