package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// libraryDirs are the default directories of the dynamic loader.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib",
}

// libraries returns the dynamic loader and the shared libraries that an executable needs, recursively.
// It returns none for a static executable or another file. It uses LD_LIBRARY_PATH and the file's own
// run path.
func libraries(path string) ([]string, error) {
	interp, _, err := dynamic(path)
	if err != nil || interp == "" {
		return nil, err
	}
	found := []string{interp}
	seen := map[string]bool{filepath.Base(interp): true}
	for queue := []string{path}; len(queue) > 0; queue = queue[1:] {
		_, needed, err := dynamic(queue[0])
		if err != nil {
			return nil, err
		}
		for _, name := range needed.names {
			if seen[name] {
				continue
			}
			seen[name] = true
			lib := findLibrary(name, needed.dirs)
			if lib == "" {
				return nil, fmt.Errorf("find library %s of %s: not in the library directories", name, path)
			}
			found = append(found, lib)
			queue = append(queue, lib)
		}
	}
	return found, nil
}

type dynamicLibraries struct{ names, dirs []string }

// dynamic returns the interpreter and libraries of a file. It returns neither libraries nor an error
// for a file that is not ELF.
func dynamic(path string) (interp string, n dynamicLibraries, err error) {
	f, err := elf.Open(path)
	var format *elf.FormatError
	if errors.As(err, &format) {
		return "", n, nil
	}
	if err != nil {
		if info, e := os.Stat(path); e == nil && info.Size() < 64 {
			return "", n, nil // too short for an ELF header
		}
		return "", n, fmt.Errorf("read executable: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	if section := f.Section(".interp"); section != nil {
		b, err := section.Data()
		if err != nil {
			return "", n, fmt.Errorf("read interpreter of %s: %w", path, err)
		}
		interp = strings.TrimRight(string(b), "\x00")
	}
	if n.names, err = f.ImportedLibraries(); err != nil {
		return "", n, fmt.Errorf("read libraries of %s: %w", path, err)
	}
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		values, err := f.DynString(tag)
		if err != nil {
			return "", n, fmt.Errorf("read library path of %s: %w", path, err)
		}
		for _, value := range values {
			value = strings.ReplaceAll(value, "$ORIGIN", filepath.Dir(path))
			n.dirs = append(n.dirs, filepath.SplitList(value)...)
		}
	}
	return interp, n, nil
}

func findLibrary(name string, dirs []string) string {
	dirs = append(dirs, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	for _, dir := range append(dirs, libraryDirs...) {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
