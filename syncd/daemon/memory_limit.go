package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"mapsync/syncd/config"
)

// limitMemory sets the memory limit of the Go runtime to memory-limit, or else to 90 % of the
// cgroup's limit. GOMEMLIMIT in the environment overrides the cgroup's limit.
func limitMemory(c *config.Config, log *slog.Logger) error {
	limit, err := c.MemoryLimitBytes()
	if err != nil {
		return fmt.Errorf("memory-limit: %w", err)
	}
	from := "memory-limit"
	if limit == 0 {
		if os.Getenv("GOMEMLIMIT") != "" {
			return nil // the runtime has applied it
		}
		from = "cgroup"
		limit = cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup") / 10 * 9
	}
	if limit == 0 {
		log.Info("no memory limit", "hint", "set memory-limit, or run syncd in a cgroup with one")
		return nil
	}
	debug.SetMemoryLimit(limit)
	log.Info("memory limit set", "from", from, "bytes", limit)
	return nil
}

// cgroupMemory returns the lowest memory limit in bytes of the cgroups of the process, of version
// 2 or 1, or 0 if none has a limit. self is the file with the process's cgroups. root is the
// directory where cgroups are mounted.
func cgroupMemory(self, root string) int64 {
	data, err := os.ReadFile(self)
	if err != nil {
		return 0
	}
	lowest := int64(0)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := root, "memory.max"
		switch {
		case parts[1] == "": // version 2
		case strings.Contains(","+parts[1]+",", ",memory,"):
			base, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		default:
			continue
		}
		// Every parent cgroup limits the process, too. Inside a container the path is often "/".
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			if n := readLimit(filepath.Join(base, dir, file)); n > 0 && (lowest == 0 || n < lowest) {
				lowest = n
			}
			if dir == "/" {
				break
			}
		}
	}
	return lowest
}

// readLimit returns the limit in bytes in a cgroup file, or 0 if it has none.
func readLimit(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n <= 0 || n >= 1<<60 { // "max", or the same in version 1
		return 0
	}
	return n
}
