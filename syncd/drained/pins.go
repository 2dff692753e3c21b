package drained

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Names of the pins in the folder. The others end with the generation of their programs.
const (
	pinState = "state"
	pinCalls = "calls"
	pinSums  = "sums"
	pinNext  = "next" // the kernel empties this map when no process has it and it is not pinned
	pinLink  = "link" // and a number
)

// pinName matches the names of pins. The first group is the generation, if there is one.
var pinName = regexp.MustCompile(`^(?:state|calls|(?:sums|next|link)-([0-9]+)(?:-[0-9]+)?)$`)

func pinOf(name string, generation uint64) string { return fmt.Sprintf("%s-%d", name, generation) }

func pinOfLink(generation uint64, i int) string {
	return fmt.Sprintf("%s-%d", pinOf(pinLink, generation), i)
}

// pin pins an object. Without the pin the sums end with syncd.
func (s *Sums) pin(pin func(path string) error, name string) {
	if s.options.Folder == "" {
		return
	}
	if err := pin(filepath.Join(s.options.Folder, name)); err != nil {
		s.options.Logger.Warn("failed to pin an object: the sums will lack what is drained without syncd",
			"pin", name, "folder", s.options.Folder, "error", err, "hint", "kernels before 5.15 pin no kprobe")
	}
}

// loadPinned opens a pinned map. Without a folder, there is none.
func (s *Sums) loadPinned(name string) (*ebpf.Map, error) {
	if s.options.Folder == "" {
		return nil, fs.ErrNotExist
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.options.Folder, name), nil)
	if err != nil {
		return nil, fmt.Errorf("open pin %s: %w", name, err)
	}
	return m, nil
}

// formerGenerations returns the generations before the present one that have pins of sums.
func (s *Sums) formerGenerations(present uint64) (list []uint64, err error) {
	if s.options.Folder == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(s.options.Folder)
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), pinSums+"-")
		if n, err := strconv.ParseUint(digits, 10, 64); ok && err == nil && n < present {
			list = append(list, n)
		}
	}
	return list, nil
}

// removePins removes the pins for whose generation match is true. Those without one have generation 0.
func (s *Sums) removePins(match func(generation uint64) bool) error {
	if s.options.Folder == "" {
		return nil
	}
	return removePins(s.options.Folder, match)
}

func removePins(folder string, match func(generation uint64) bool) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	var errs []error
	for _, e := range entries {
		part := pinName.FindStringSubmatch(e.Name())
		if part == nil {
			continue
		}
		generation, _ := strconv.ParseUint(part[1], 10, 64) // 0: none
		if match(generation) {
			errs = append(errs, os.Remove(filepath.Join(folder, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func anyGeneration(uint64) bool { return true }

// Remove ends the sums of a folder: it detaches their programs and removes their pins. It succeeds if there are none.
func Remove(folder string) error {
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := checkFolder(folder); err != nil {
		return err
	}
	if err := removePins(folder, anyGeneration); err != nil {
		return err
	}
	return os.Remove(folder)
}

// ErrNotBPF is the error of a folder in another file system.
// ErrNotBPF is wrapped by the error of a folder of pins that is not in a BPF filesystem.
var ErrNotBPF = errors.New("it is not in a BPF filesystem")

// CheckFolder returns an error if the folder cannot have pins: see checkFolder. If it does not exist, the folders above it
// count.
func CheckFolder(folder string) error {
	for parent := folder; ; parent = filepath.Dir(parent) {
		err := checkFolder(parent)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// prepareFolder creates the folder and the ones above it.
func prepareFolder(folder string) error {
	if err := CheckFolder(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("create folder of pins: %w", err)
	}
	return checkFolder(folder)
}

// checkFolder returns an error for a folder that is not in a BPF filesystem, or that another user could have placed: the
// pins in it decide what a kernel map has.
func checkFolder(folder string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(folder, &stat); err != nil {
		return &fs.PathError{Op: "statfs", Path: folder, Err: err}
	}
	if stat.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("folder of pins %s: %w", folder, ErrNotBPF)
	}
	for path := folder; ; path = filepath.Dir(path) {
		if err := checkOwner(path); err != nil {
			return err
		}
		if path == filepath.Dir(path) {
			return nil
		}
	}
}

// checkOwner returns an error for a path that is not a directory of root or of this user, or in which others can replace
// files.
func checkOwner(path string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch sticky := stat.Mode&unix.S_ISVTX != 0; {
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("folder of pins: %s is not a directory", path)
	case stat.Uid != 0 && stat.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("folder of pins: %s belongs to user %d: if that is a former user of syncd, chown -R it, otherwise remove it", path, stat.Uid)
	case stat.Mode&0o022 != 0 && !sticky:
		return fmt.Errorf("folder of pins: other users can write to %s: chmod 700 it", path)
	}
	return nil
}
