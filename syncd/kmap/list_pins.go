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

// maxPins bounds the number of files visited in each bpf file system.
const maxPins = 100_000

// listPins returns the paths of all visible pinned maps, by map ID.
func listPins() (map[uint32][]string, error) {
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
				return nil // syncd does not replicate maps that it may not read
			}
			id, err := pinnedMap(path)
			switch {
			case exhausted(err):
				return err // an incomplete list would look like a map without pins
			case err == nil:
				found[id] = append(found[id], path)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read directory %s: %w", dir, err)
		}
	}
	return found, nil
}

// pinnedMap returns the ID of the map pinned at path. It fails if no map is pinned there, or none that this
// process may read.
func pinnedMap(path string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer release(m)
	info, err := infoOf(m.FD())
	if err != nil {
		return 0, err
	}
	return info.id, nil
}

// unescape reverses the kernel's escapes of blanks in a mount path.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// bpfMounts returns the mount points of bpf file systems, from a file like /proc/self/mountinfo.
// The mount point is the fifth field, and the type follows a single dash.
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
