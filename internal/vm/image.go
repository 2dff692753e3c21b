package vm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"mapsync/internal/vm/guest"
)

// transport lists the modules of the virtio-serial port. The cloud kernels build virtio as modules.
var transport = []string{"virtio_pci", "virtio_console"}

// buildImage writes the initramfs to an unlinked temporary file. The caller closes it. The initramfs
// is not compressed, because decompression is slow under emulation.
func buildImage(cfg *Config) (*os.File, error) {
	f, err := os.CreateTemp("", "mapsync-initramfs-*")
	if err != nil {
		return nil, fmt.Errorf("create initramfs: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("unlink initramfs: %w", err)
	}
	out := bufio.NewWriterSize(f, 1<<20)
	b := &imageBuilder{w: cpio.Newc.Writer(out), seen: map[string]bool{"/": true}}
	if err := b.fill(cfg); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("build initramfs: %w", err)
	}
	if err := out.Flush(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write initramfs: %w", err)
	}
	return f, nil
}

// imageBuilder writes each path once, after its parent directories.
type imageBuilder struct {
	w    cpio.RecordWriter
	seen map[string]bool
}

func (b *imageBuilder) fill(cfg *Config) error {
	spec := guest.Spec{
		Args: cfg.Args, Env: cfg.Env, Dir: cfg.Dir,
		Merge: cfg.Stdout == cfg.Stderr,
	}
	for _, out := range cfg.Outs {
		spec.Outs = append(spec.Outs, out.Guest)
		spec.Dirs = append(spec.Dirs, filepath.Dir(out.Guest))
	}
	// The kernel opens the console for init before devtmpfs is mounted.
	console := cpio.CharDev("/dev/console", 0o600, 5, 1)
	if err := b.record(console); err != nil {
		return err
	}
	if err := b.modules(cfg, &spec); err != nil {
		return err
	}
	files := []File{{cfg.Init, "/init"}, {cfg.Args[0], cfg.Args[0]}}
	if testdata := filepath.Join(cfg.Dir, "testdata"); isDir(testdata) {
		files = append(files, File{testdata, testdata})
	}
	for _, f := range append(files, cfg.Files...) {
		if err := b.tree(f); err != nil {
			return err
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode spec: %w", err)
	}
	if err := b.record(cpio.StaticFile(guest.SpecPath, string(text), 0o644)); err != nil {
		return err
	}
	return cpio.WriteTrailer(b.w)
}

func (b *imageBuilder) modules(cfg *Config, spec *guest.Spec) error {
	modules, err := cfg.Kernel.Modules(append(append([]string(nil), transport...), cfg.Modules...)...)
	if err != nil {
		return err
	}
	for _, m := range modules {
		path := "/vm/modules/" + m.Name + ".ko"
		if err := b.record(cpio.StaticFile(path, string(m.Data), 0o644)); err != nil {
			return err
		}
		spec.Modules = append(spec.Modules, path)
	}
	return nil
}

// tree adds a directory, or a file with its shared libraries.
func (b *imageBuilder) tree(f File) error {
	info, err := os.Stat(f.Host)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return b.executable(f.Host, f.Guest)
	}
	return filepath.WalkDir(f.Host, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(f.Host, path)
		if err != nil {
			return err
		}
		to := filepath.Join(f.Guest, rel)
		switch {
		case d.IsDir():
			return b.dir(to)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return b.record(cpio.Symlink(to, target))
		case d.Type().IsRegular():
			return b.file(path, to)
		}
		return nil // sockets and devices have no content to copy
	})
}

// executable adds a file and the libraries that the dynamic loader needs.
func (b *imageBuilder) executable(host, to string) error {
	libraries, err := libraries(host)
	if err != nil {
		return err
	}
	for _, lib := range libraries {
		if err := b.file(lib, lib); err != nil {
			return err
		}
	}
	return b.file(host, to)
}

func (b *imageBuilder) file(host, to string) error {
	f, err := os.Open(host)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // the writer closes it too
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return b.record(cpio.Record{ReaderAt: f, Info: cpio.Info{
		Name: to, Mode: cpio.S_IFREG | uint64(info.Mode().Perm()),
		FileSize: uint64(info.Size()), MTime: uint64(max(0, info.ModTime().Unix())),
	}})
}

func (b *imageBuilder) dir(path string) error {
	if b.seen[path] {
		return nil
	}
	return b.record(cpio.Directory(path, 0o755))
}

// record adds one record with an absolute path, unless the path already exists.
func (b *imageBuilder) record(r cpio.Record) error {
	path := filepath.Clean("/" + r.Name)
	if b.seen[path] {
		return nil
	}
	if err := b.dir(filepath.Dir(path)); err != nil {
		return err
	}
	b.seen[path] = true
	r.Name = strings.TrimPrefix(path, "/")
	return b.w.WriteRecord(r)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
