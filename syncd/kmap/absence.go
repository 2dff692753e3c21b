package kmap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Absence returns why no map matches a reference, as text for operators. It reports what it finds now: the map may have appeared
// meanwhile.
func (r Ref) Absence() string {
	switch {
	case r.PinPath == "" && r.Name != "":
		return fmt.Sprintf("no map has the name %q (`syncd maps` lists those of this host)", r.Name)
	case r.PinPath == "":
		return fmt.Sprintf("there is no map with id %d", r.ID)
	case r.InnerKey != "":
		if _, err := os.Lstat(r.PinPath); err == nil {
			return fmt.Sprintf("%s has no inner map with key %s", r.PinPath, r.InnerKey)
		}
	}
	dir := filepath.Dir(r.PinPath)
	var stat unix.Statfs_t
	switch err := unix.Statfs(dir, &stat); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("%s does not exist: the load balancer pins its maps there, or no BPF file system is mounted", dir)
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", dir, err)
	case stat.Type != unix.BPF_FS_MAGIC:
		return fmt.Sprintf("%s is not in a BPF file system: mount -t bpf bpf /sys/fs/bpf, in a container with mountPropagation: HostToContainer", dir)
	}
	return fmt.Sprintf("no map is pinned at %s", r.PinPath)
}
