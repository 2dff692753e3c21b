package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// fetch downloads and unpacks the newest version of a release. It prepares all files in a temporary
// directory beside the final one.
func (s *Store) fetch(ctx context.Context, r release, host osRelease) (_ *Kernel, err error) {
	work, err := os.MkdirTemp(s.dir, "."+r.file()+"-*")
	if err != nil {
		return nil, fmt.Errorf("create work directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	s.log.Info("fetching a kernel", "release", r.name, "suite", r.suite)
	a, err := newApt(work, r, host)
	if err != nil {
		return nil, err
	}
	tree := filepath.Join(work, "tree")
	k, err := s.fetchNewest(ctx, a, r, tree)
	if err != nil {
		return nil, err
	}
	if err := normalizeTree(tree); err != nil {
		return nil, err
	}
	_, packageVersion, _ := strings.Cut(k.Packages[0], "=")
	k.Dir = filepath.Join(s.dir, k.Version+"_"+packageVersion)
	if err := os.RemoveAll(k.Dir); err != nil { // an earlier attempt without a record
		return nil, fmt.Errorf("remove unfinished kernel: %w", err)
	}
	if err := os.Rename(tree, k.Dir); err != nil {
		return nil, fmt.Errorf("keep kernel: %w", err)
	}
	if _, err := os.Stat(k.Image()); err != nil {
		return nil, fmt.Errorf("find kernel image in %s: %w", strings.Join(k.Packages, " "), err)
	}
	s.log.Info("fetched a kernel", "release", r.name, "version", k.Version, "packages", strings.Join(k.Packages, " "))
	return k, nil
}

// fetchNewest unpacks the newest version that can be downloaded. An unmaintained archive may list
// files that it no longer contains.
func (s *Store) fetchNewest(ctx context.Context, a *apt, r release, tree string) (*Kernel, error) {
	versions, err := a.versions(ctx, r)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, version := range versions {
		k := &Kernel{Release: r.name, Version: version, Fetched: time.Now().UTC().Truncate(time.Second)}
		packages, err := a.packagesOf(ctx, r, version)
		if err == nil {
			err = a.download(ctx, packages, tree, k)
		}
		if err == nil {
			return k, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		s.log.Warn("kernel version cannot be downloaded", "release", r.name, "version", version, "error", err)
		failures = append(failures, err)
	}
	return nil, fmt.Errorf("%w: %w%s", ErrUnavailable, errors.Join(failures...), a.updateError)
}

// normalizeTree moves modules to lib/modules. A package built for a merged /usr has them below usr/.
func normalizeTree(tree string) error {
	if err := os.Chmod(tree, 0o755); err != nil {
		return fmt.Errorf("open kernel directory: %w", err)
	}
	merged, plain := filepath.Join(tree, "usr", "lib", "modules"), filepath.Join(tree, "lib", "modules")
	if _, err := os.Stat(merged); err != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(plain), 0o755); err != nil {
		return fmt.Errorf("create module directory: %w", err)
	}
	if err := os.Rename(merged, plain); err != nil {
		return fmt.Errorf("move modules: %w", err)
	}
	return nil
}
