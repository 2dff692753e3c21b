package kmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"mapsync/printable"
)

// Process is a process that holds a map open.
type Process struct {
	PID  int
	Name string // printable; the kernel reports at most 15 bytes
}

// MapLives reports whether a map exists. If this process may not open maps by id, the map counts as one that exists.
func MapLives(id uint32) bool {
	m, err := ebpf.NewMapFromID(ebpf.MapID(id))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	release(m)
	return true
}

// ProcessesOfMaps returns the other processes that hold each of these maps open, in the order of their names in /proc. It leaves
// out processes whose descriptors this process may not read, and those that end meanwhile.
func ProcessesOfMaps(ctx context.Context, maps []uint32) (map[uint32][]Process, error) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	held := make(map[uint32][]Process)
	for _, entry := range processes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		open := openMapsOf(filepath.Join("/proc", entry.Name()))
		for _, id := range maps {
			if open[id] {
				name, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm")) // it may have ended
				held[id] = append(held[id], Process{pid, printable.Text(strings.TrimSpace(string(name)))})
			}
		}
	}
	return held, nil
}

// openMapsOf returns the ids of the maps that a process holds open.
func openMapsOf(process string) map[uint32]bool {
	open := make(map[uint32]bool)
	descriptors, _ := os.ReadDir(process + "/fd") // without the privilege: none
	for _, fd := range descriptors {
		if to, err := os.Readlink(process + "/fd/" + fd.Name()); err != nil || !strings.Contains(to, "bpf-map") {
			continue
		}
		info, _ := os.ReadFile(process + "/fdinfo/" + fd.Name()) // it may have been closed
		for line := range strings.Lines(string(info)) {
			if text, found := strings.CutPrefix(line, "map_id:"); found {
				if id, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32); err == nil {
					open[uint32(id)] = true
				}
			}
		}
	}
	return open
}
