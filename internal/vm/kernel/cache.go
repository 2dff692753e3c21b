package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Store is a cache of kernels in a directory. Multiple processes may use one directory at the same
// time.
type Store struct {
	dir string
	log *slog.Logger
}

// DefaultDir returns the cache directory: $MAPSYNC_CACHE/kernels, or mapsync/kernels in the user's
// cache directory.
func DefaultDir() (string, error) {
	if dir := os.Getenv("MAPSYNC_CACHE"); dir != "" {
		return filepath.Join(dir, "kernels"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w; set MAPSYNC_CACHE", err)
	}
	return filepath.Join(dir, "mapsync", "kernels"), nil
}

// NewStore returns the cache in dir. The directory is created on demand.
func NewStore(dir string, log *slog.Logger) *Store { return &Store{dir: dir, log: log} }

// Cached returns the kernel if it is in the cache, else an error that wraps fs.ErrNotExist. The name
// is one of [Releases] or [HostRelease]. A slash and a kernel parameter may follow it:
// "6.1/preempt=full".
func (s *Store) Cached(name string) (*Kernel, error) {
	return withParameter(name, func(release string) (*Kernel, error) {
		r, _, err := findHostRelease(release)
		if err != nil {
			return nil, err
		}
		return s.load(r)
	})
}

// Get returns the kernel from the cache, or fetches it. It does not use the network for a cached
// kernel.
func (s *Store) Get(ctx context.Context, name string) (*Kernel, error) {
	return withParameter(name, func(release string) (*Kernel, error) { return s.get(ctx, release, false) })
}

// Refresh fetches the newest version of the release, even if the cache has an older one.
func (s *Store) Refresh(ctx context.Context, name string) (*Kernel, error) {
	return withParameter(name, func(release string) (*Kernel, error) { return s.get(ctx, release, true) })
}

// withParameter returns the kernel of the release in name, with the parameter in name.
func withParameter(name string, get func(release string) (*Kernel, error)) (*Kernel, error) {
	release, parameter, err := splitName(name)
	if err != nil {
		return nil, err
	}
	k, err := get(release)
	if k != nil {
		k.Parameter = parameter
	}
	return k, err
}

func (s *Store) get(ctx context.Context, name string, refresh bool) (*Kernel, error) {
	r, host, err := findHostRelease(name)
	if err != nil {
		return nil, err
	}
	if k, err := s.load(r); !refresh && !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	unlock, err := s.lock(ctx, r)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := s.load(r)
	if !refresh && !errors.Is(err, fs.ErrNotExist) {
		return old, err // another process has fetched it
	}
	k, err := s.fetch(ctx, r, host)
	if err != nil {
		return nil, err
	}
	if err := s.save(k); err != nil {
		return nil, err
	}
	if old != nil && old.Dir != k.Dir {
		_ = os.RemoveAll(old.Dir) // a failure wastes only disk space
	}
	return k, nil
}

func findHostRelease(name string) (release, osRelease, error) {
	if runtime.GOARCH != "amd64" {
		return release{}, osRelease{}, fmt.Errorf("%w: virtual machines run on amd64 only, this is %s",
			ErrUnavailable, runtime.GOARCH)
	}
	host, err := readOSRelease("/etc/os-release")
	if err != nil {
		return release{}, host, err
	}
	r, err := findRelease(name, host)
	return r, host, err
}

func (s *Store) recordPath(r release) string { return filepath.Join(s.dir, r.file()+".json") }

// load reads the record of a kernel and checks that its image exists.
func (s *Store) load(r release) (*Kernel, error) {
	b, err := os.ReadFile(s.recordPath(r))
	if err != nil {
		return nil, fmt.Errorf("read kernel record: %w", err)
	}
	k := new(Kernel)
	if err := json.Unmarshal(b, k); err != nil {
		return nil, fmt.Errorf("parse kernel record %s: %w", s.recordPath(r), err)
	}
	if _, err := os.Stat(k.Image()); err != nil {
		return nil, fmt.Errorf("find kernel image: %w", err)
	}
	return k, nil
}

// save atomically writes the record last. Therefore a record exists only for a complete kernel.
func (s *Store) save(k *Kernel) error {
	b, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return fmt.Errorf("encode kernel record: %w", err)
	}
	path := filepath.Join(s.dir, fileName(k.Release)+".json")
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write kernel record: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write kernel record: %w", err)
	}
	return nil
}

// lock prevents other processes from fetching the same release. The kernel releases the lock when the
// process exits.
func (s *Store) lock(ctx context.Context, r release) (func(), error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create kernel cache: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, r.file()+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open kernel cache lock: %w", err)
	}
	for waited := false; ; waited = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock kernel cache: %w", err), f.Close())
		}
		if !waited {
			s.log.Info("waiting for another process that fetches the kernel", "release", r.name)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock kernel cache: %w", ctx.Err()), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
