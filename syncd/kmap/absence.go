package kmap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Absence returns why no map matches a reference, as text for operators. It reports what it finds now, and returns an empty text if
// the map has appeared meanwhile, unless it would have to search all maps.
func (r Ref) Absence() string {
	switch {
	case r.PinPath == "" && r.Name != "":
		return fmt.Sprintf("no map has the name %q (`syncd maps` lists those of this host)", r.Name)
	case r.PinPath == "":
		m, err := ebpf.NewMapFromID(ebpf.MapID(r.ID))
		if err != nil {
			return fmt.Sprintf("there is no map with id %d", r.ID)
		}
		if _ = m.Close(); r.InnerKey != "" {
			return fmt.Sprintf("the map with id %d has no inner map with key %s", r.ID, r.InnerKey)
		}
		return ""
	case r.InnerKey != "":
		if _, err := os.Lstat(r.PinPath); err == nil {
			return fmt.Sprintf("%s has no inner map with key %s", r.PinPath, r.InnerKey)
		}
	}
	if text := r.MissingFileSystem(); text != "" {
		return text
	}
	dir := filepath.Dir(r.PinPath)
	var stat unix.Statfs_t
	switch err := unix.Statfs(dir, &stat); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("%s does not exist: the load balancer pins its maps there", dir)
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", dir, err)
	}
	if _, err := os.Stat(r.PinPath); err == nil {
		return ""
	}
	return fmt.Sprintf("no map is pinned at %s", r.PinPath)
}

// MissingFileSystem returns why the pin of a reference cannot exist, as text for operators: its path is not in a BPF file system.
// It returns an empty text if the path is in one, or if the reference has no pin.
func (r Ref) MissingFileSystem() string {
	if r.PinPath == "" {
		return ""
	}
	for dir := filepath.Dir(r.PinPath); ; dir = filepath.Dir(dir) {
		var stat unix.Statfs_t
		err := unix.Statfs(dir, &stat)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue // the load balancer may create the directory
		}
		if err != nil || stat.Type == unix.BPF_FS_MAGIC {
			return ""
		}
		return fmt.Sprintf("no map can be pinned at %s, because %s is not in a BPF file system", r.PinPath, dir)
	}
}
