package vm

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/vm/kernel"
)

func TestMissingEmulatorIsNamed(t *testing.T) {
	cfg := testConfig(t, "work")
	t.Setenv("PATH", "")
	if _, err := Run(t.Context(), cfg); !errors.Is(err, ErrNoQEMU) {
		t.Errorf("Run without QEMU: got %v, want an error with ErrNoQEMU", err)
	}
}

func TestMissingFilesAreNamed(t *testing.T) {
	cfg := testConfig(t, "work")
	cfg.Modules = []string{"no_such_module"}
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "no_such_module") {
		t.Errorf("missing module: got %v, want an error with \"no_such_module\"", err)
	}
	cfg = testConfig(t, "work")
	cfg.Args = []string{"/no/such/program"}
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("missing program: got %v, want an error with \"/no/such/program\"", err)
	}
}

// TestModulesInLoadOrder covers both formats in which kernels contain modules: uncompressed (6.1) and
// compressed (6.12).
func TestModulesInLoadOrder(t *testing.T) {
	dir, err := kernel.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"6.1", "6.12"} {
		k, err := kernel.NewStore(dir, slog.Default()).Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		modules, err := k.Modules("vmw-vsock-virtio-transport", "veth", "veth", "8250_pci")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range modules {
			names = append(names, m.Name)
			if !bytes.HasPrefix(m.Data, []byte("\x7fELF")) {
				t.Errorf("%s: module %s is not an ELF file", name, m.Name)
			}
		}
		if slices.Index(names, "vsock") < 0 || slices.Index(names, "vsock") > slices.Index(names, "vmw_vsock_virtio_transport") ||
			names[len(names)-1] != "veth" || slices.Contains(names, "8250_pci") {
			t.Errorf("%s: load order: got %v, want vsock before vmw_vsock_virtio_transport, veth last, and no 8250_pci", name, names)
		}
	}
}

func TestLibraries(t *testing.T) {
	static, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if found, err := libraries(static); err != nil || len(found) > 0 {
		t.Errorf("libraries of a static program: got %v, error %v, want none and nil", found, err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if found, err := libraries(script); err != nil || len(found) > 0 {
		t.Errorf("libraries of a script: got %v, error %v, want none and nil", found, err)
	}
	found, err := libraries("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Join(found, " ")
	if !strings.Contains(names, "ld-linux") || !strings.Contains(names, "libc.so") {
		t.Errorf("libraries of a dynamic program: got %v, want ld-linux and libc.so among them", found)
	}
}

// archive creates a tar stream of entries. Names that end in a slash are directories.
func archive(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		h := &tar.Header{Name: strings.TrimSuffix(name, "/"), Mode: 0o755, Typeflag: tar.TypeDir}
		if h.Name == name {
			h.Typeflag, h.Size = tar.TypeReg, 4
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("data")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestUntarStaysInside(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "to")
	for _, name := range []string{"../escaped", "/escaped"} {
		if err := untar(archive(t, "./", name), to); err == nil {
			t.Errorf("entry %q: got nil, want an error", name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "escaped")); err == nil {
		t.Error("untar wrote a file outside its directory")
	}
	if err := untar(archive(t, "first"), to); err == nil {
		t.Error("entry without its directory: got nil, want an error")
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	c := &tail{limit: 8}
	for _, s := range []string{"0123456789", "abc\r\n", "def\r\n"} {
		if _, err := io.WriteString(c, s); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.String(); got != "c\ndef" {
		t.Errorf("tail: got %q, want %q", got, "c\ndef")
	}
	c.markBooted()
	if got := c.sinceBoot(); got != "" {
		t.Errorf("sinceBoot: got %q, want none", got)
	}
	_, _ = io.WriteString(c, "x")
	if got := c.sinceBoot(); got != "x" {
		t.Errorf("sinceBoot: got %q, want \"x\"", got)
	}
}
