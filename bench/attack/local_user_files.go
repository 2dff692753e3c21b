package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// tryFiles opens, changes and removes each file below the directory of the daemons, the pins included, and adds files to each
// directory. Certificates are public.
func (u *localUser) tryFiles() {
	_ = filepath.WalkDir(u.orders.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			u.report.Tries["directories"]++ // not readable, as expected
			return nil
		}
		if entry.IsDir() {
			u.tryDirectory(path)
			return nil
		}
		u.tryFile(path)
		if strings.HasPrefix(path, filepath.Join(u.orders.Dir, pinFolder)) {
			u.tryPin(path)
		}
		return nil
	})
}

func (u *localUser) tryDirectory(path string) {
	created := filepath.Join(path, "local-user")
	err := os.WriteFile(created, []byte("a"), 0o600)
	u.try("directories", err == nil, "create "+created)
	err = os.Mkdir(created+".dir", 0o700)
	u.try("directories", err == nil, "create "+created+".dir")
	err = os.Rename(path, path+".moved")
	u.try("directories", err == nil, "move "+path)
}

// public reports whether every user may read a file: certificates and the program.
func public(path string) bool {
	return strings.HasSuffix(path, ".pem") && !strings.Contains(path, "key")
}

func (u *localUser) tryFile(path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		_ = f.Close()
	}
	u.try("files", err == nil && !public(path), "read "+path)
	f, err = os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		_ = f.Close()
	}
	u.try("files", err == nil, "write "+path)
	u.try("files", os.Chmod(path, 0o666) == nil, "change the mode of "+path)
	u.try("files", os.Remove(path) == nil, "remove "+path)
}

func (u *localUser) tryPin(path string) {
	for _, o := range []ebpf.LoadPinOptions{{ReadOnly: true}, {WriteOnly: true}, {}} {
		m, err := ebpf.LoadPinnedMap(path, &o)
		if err == nil {
			_ = m.Close()
		}
		u.try("pins", err == nil, "open the map pinned at "+path)
	}
}

// tryMapIDs opens maps by their ids.
func (u *localUser) tryMapIDs() {
	for id := u.orders.MaxMapID - min(u.orders.MaxMapID-1, 10); id <= u.orders.MaxMapID; id++ {
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err == nil {
			_ = m.Close()
		}
		u.try("map ids", err == nil, fmt.Sprintf("open the map with the id %d", id))
	}
}

// tryProcess reads the memory and the descriptors of a daemon, and sends signals to it.
func (u *localUser) tryProcess(n *localTarget) {
	proc := filepath.Join("/proc", fmt.Sprint(n.PID))
	for _, name := range []string{"mem", "environ", "maps"} {
		f, err := os.Open(filepath.Join(proc, name))
		if err == nil {
			_, err = f.Read(make([]byte, 1))
			_ = f.Close()
		}
		u.try("process", err == nil, "read "+name+" of the process of "+n.Name)
	}
	_, err := os.ReadDir(filepath.Join(proc, "fd"))
	u.try("process", err == nil, "list the descriptors of "+n.Name)
	u.try("process", unix.Kill(n.PID, unix.SIGHUP) == nil, "send a signal to "+n.Name)
	u.try("process", unix.PtraceAttach(n.PID) == nil, "trace "+n.Name)
}
