package kmap

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// maxPins bounds the walk through bpf file systems.
const maxPins = 100_000

// pins returns the paths of all pinned maps that can be seen, by the map's id.
func pins() (map[uint32][]string, error) {
	mounts, err := bpfMounts("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find bpf file systems: %w", err)
	}
	found := map[uint32][]string{}
	for _, dir := range mounts {
		left := maxPins
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if left--; left < 0 {
				return fs.SkipAll
			}
			if err != nil || !d.Type().IsRegular() {
				return nil // what may not be read is not ours to replicate
			}
			if id, ok := pinnedMap(path); ok {
				found[id] = append(found[id], path)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("walk %s: %w", dir, err)
		}
	}
	return found, nil
}

// pinnedMap returns the id of the map pinned at path, false for anything else.
func pinnedMap(path string) (uint32, bool) {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, false
	}
	defer release(m)
	info, err := infoOf(m.FD())
	if err != nil {
		return 0, false
	}
	return info.id, true
}

// unescape undoes what the kernel does to blanks in a mount's path.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// bpfMounts returns where bpf file systems are mounted, from a file like
// /proc/self/mountinfo: the path is the fifth field, the type follows a lone dash.
func bpfMounts(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer release(f)
	var dirs []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		head, tail, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(head)
		if ok && len(fields) > 4 && strings.HasPrefix(tail, "bpf ") {
			dirs = append(dirs, unescape.Replace(fields[4]))
		}
	}
	return dirs, lines.Err()
}
