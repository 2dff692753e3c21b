package drained

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Names of the pins in the folder.
const (
	pinSums  = "sums"
	pinState = "state"
	pinNext  = "next"  // the kernel empties this map when no process has it and it is not pinned
	pinLink  = "link-" // and a number
)

// openMaps opens the pinned maps if they have the layout of the options. Otherwise it creates and pins others.
func (s *Sums) openMaps() (stateMap *ebpf.Map, err error) {
	if s.options.Folder != "" {
		if err := prepareFolder(s.options.Folder); err != nil {
			return nil, err
		}
		if stateMap, err = s.openPinned(); err == nil {
			return stateMap, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.options.Logger.Warn("sums of drained entries begin again", "folder", s.options.Folder, "reason", err)
		}
		if err := removePins(s.options.Folder); err != nil {
			return nil, err
		}
	}
	return s.createMaps()
}

func (s *Sums) openPinned() (stateMap *ebpf.Map, err error) {
	stateMap, err = ebpf.LoadPinnedMap(filepath.Join(s.options.Folder, pinState), nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned state: %w", err)
	}
	st, err := mapState(stateMap)
	if err != nil {
		return nil, errors.Join(err, stateMap.Close())
	}
	sums, err := ebpf.LoadPinnedMap(filepath.Join(s.options.Folder, pinSums), nil)
	if err == nil && atomic.LoadUint64(&st.Layout) != s.options.layout() {
		err = errors.Join(errors.New("the map has another layout, or the settings have changed"), sums.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open pinned sums: %w", err), st.close(), stateMap.Close())
	}
	s.sums, s.state = sums, st
	return stateMap, nil
}

func (s *Sums) createMaps() (stateMap *ebpf.Map, err error) {
	spec, err := s.options.spec()
	if err != nil {
		return nil, err
	}
	if s.sums, err = ebpf.NewMap(spec.Maps[sumsMap]); err != nil {
		return nil, fmt.Errorf("create the map of sums: %w", err)
	}
	if stateMap, err = ebpf.NewMap(spec.Maps[stateMapName]); err != nil {
		return nil, fmt.Errorf("create the state of the sums: %w", err)
	}
	if s.state, err = mapState(stateMap); err != nil {
		return nil, errors.Join(err, stateMap.Close())
	}
	atomic.StoreUint64(&s.state.Origin, newOrigin())
	atomic.StoreUint64(&s.state.Layout, s.options.layout())
	s.pin(s.sums.Pin, pinSums)
	s.pin(stateMap.Pin, pinState)
	return stateMap, nil
}

// pin pins an object. Without the pin the sums end with syncd.
func (s *Sums) pin(pin func(path string) error, name string) {
	if s.options.Folder == "" {
		return
	}
	if err := pin(filepath.Join(s.options.Folder, name)); err != nil {
		s.options.Logger.Warn("failed to pin an object: the sums will lack what is drained without syncd",
			"pin", name, "folder", s.options.Folder, "error", err,
			"hint", "mount a BPF filesystem there; kernels before 5.15 pin no kprobe")
	}
}

// pinPrograms pins what the programs need to continue without syncd.
func (s *Sums) pinPrograms() {
	s.pin(s.objects.Maps[nextMap].Pin, pinNext)
	for i, l := range s.links {
		s.pin(l.Pin, fmt.Sprint(pinLink, i))
	}
}

// openLinks opens the pinned links. It fails unless there are n.
func (s *Sums) openLinks(n int) error {
	if s.options.Folder == "" {
		return fs.ErrNotExist
	}
	for i := range n {
		l, err := link.LoadPinnedLink(filepath.Join(s.options.Folder, fmt.Sprint(pinLink, i)), nil)
		if err != nil {
			return errors.Join(fmt.Errorf("open pinned link: %w", err), s.closeLinks())
		}
		s.links = append(s.links, l)
	}
	return nil
}

// removePrograms detaches the programs of an earlier syncd.
func (s *Sums) removePrograms() error {
	if s.options.Folder == "" {
		return nil
	}
	return removeFiles(s.options.Folder, isProgramPin)
}

func isProgramPin(name string) bool { return name == pinNext || strings.HasPrefix(name, pinLink) }

// Remove ends the sums of a folder: it detaches their programs and removes their pins. It succeeds if there are none.
func Remove(folder string) error {
	err := prepareFolder(folder)
	if err == nil {
		err = removePins(folder)
	}
	if err == nil {
		err = os.Remove(folder)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removePins(folder string) error {
	return removeFiles(folder, func(name string) bool {
		return name == pinSums || name == pinState || isProgramPin(name)
	})
}

func removeFiles(folder string, match func(name string) bool) error {
	list, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	for _, e := range list {
		if match(e.Name()) {
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil {
				return fmt.Errorf("remove pin: %w", err)
			}
		}
	}
	return nil
}

// prepareFolder creates a folder to which only this user has access. An existing one must be such a folder: another
// user could otherwise choose the sums.
func prepareFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("create folder of pins (is a BPF filesystem mounted?): %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(folder, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: folder, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Mode&0o022 != 0 || stat.Uid != 0 && stat.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("folder of pins %s: other users can write to it: remove it", folder)
	}
	return nil
}
