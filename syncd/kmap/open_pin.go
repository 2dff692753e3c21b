package kmap

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ErrPinRefused is returned, wrapped, for a pin that another user could have placed: a symbolic
// link, or a pin of a user that is not trusted.
var ErrPinRefused = errors.New("pin refused")

// AnyOwner is the pin owner that accepts the pins of all users.
const AnyOwner = math.MaxUint32

// openPin opens the map pinned at path. It checks and opens the pin's inode through one descriptor,
// so a pin that is replaced in between is not opened in place of the checked one.
func openPin(path string, owners []uint32) (*ebpf.Map, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := checkPin(fd, owners); err != nil {
		return nil, err
	}
	m, err := ebpf.LoadPinnedMap(fmt.Sprintf("/proc/self/fd/%d", fd), nil)
	if err != nil {
		return nil, fmt.Errorf("open pinned map: %w", err)
	}
	return m, nil
}

// pinIdentity identifies a pin, and changes with the map that is pinned at its path and with its owner.
type pinIdentity struct {
	device, inode uint64
	user, mode    uint32 // the time of change is only as exact as the kernel's tick
	changed       unix.Timespec
}

// identityOf returns the identity of the pin at path, or false if there is none.
func identityOf(path string) (id pinIdentity, ok bool) {
	var stat unix.Stat_t
	if unix.Lstat(path, &stat) != nil {
		return id, false
	}
	return pinIdentity{stat.Dev, stat.Ino, stat.Uid, stat.Mode, stat.Ctim}, true
}

func checkPin(fd int, owners []uint32) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("examine pin: %w", err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return fmt.Errorf("%w: it is a symbolic link: configure the path that it leads to", ErrPinRefused)
	}
	trusted := stat.Uid == 0 || stat.Uid == uint32(os.Geteuid()) ||
		slices.Contains(owners, stat.Uid) || slices.Contains(owners, AnyOwner)
	if !trusted {
		return fmt.Errorf("%w: it belongs to user %d: add that user to pin-owner if the load balancer runs as that user", ErrPinRefused, stat.Uid)
	}
	return nil
}
