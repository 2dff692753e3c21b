package kernel

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Module is a loadable module, decompressed.
type Module struct {
	// Name is the module's name, with underscores.
	Name string
	// Data is the ELF file.
	Data []byte
}

// Modules returns the named modules and all their dependencies, each once, in load order. It omits
// modules that are built into the kernel. An unknown module is an error.
func (k *Kernel) Modules(names ...string) ([]Module, error) {
	index, err := k.moduleIndex()
	if err != nil {
		return nil, err
	}
	var order []Module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = moduleName(name)
		if done[name] {
			return nil
		}
		done[name] = true
		path, ok := index[name]
		if !ok {
			return fmt.Errorf("find module %s: kernel %s does not have it", name, k.Version)
		}
		if path == builtin {
			return nil
		}
		data, err := readModule(path)
		if err != nil {
			return fmt.Errorf("read module %s: %w", name, err)
		}
		depends, err := moduleDepends(data)
		if err != nil {
			return fmt.Errorf("read dependencies of module %s: %w", name, err)
		}
		for _, dep := range depends {
			if err := add(dep); err != nil {
				return err
			}
		}
		order = append(order, Module{name, data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

const builtin = "built in"

// moduleName returns the name of a module or of its file. modules.builtin and files use dashes where
// the kernel uses underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// moduleIndex maps module names to files. The packages do not contain modules.dep, because depmod
// creates it at installation.
func (k *Kernel) moduleIndex() (map[string]string, error) {
	root := filepath.Join(k.Dir, "lib", "modules", k.Version)
	index := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(d.Name(), ".ko") {
			index[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list modules: %w", err)
	}
	f, err := os.Open(filepath.Join(root, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("list built-in modules: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		index[moduleName(lines.Text())] = builtin
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list built-in modules: %w", err)
	}
	return index, nil
}

func readModule(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	var r io.Reader = f
	switch filepath.Ext(path) {
	case ".xz":
		r, err = xz.NewReader(bufio.NewReader(f))
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(f); err == nil {
			defer d.Close()
		}
		r = d
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// moduleDepends returns the modules in the "depends=a,b" entry of the module's .modinfo section. The
// section is a list of zero-terminated strings.
func moduleDepends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(entry), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
