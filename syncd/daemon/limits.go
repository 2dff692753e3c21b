package daemon

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"mapsync/peers"
	"mapsync/syncd/config"

	"golang.org/x/sys/unix"
)

const (
	// grpcPending and grpcPendingPerAddr are the maximum numbers of connections in their
	// handshake: in total and per address.
	grpcPending, grpcPendingPerAddr = 128, 32
	// grpcPerCertificate is the maximum number of connections per certificate. A peer has one
	// connection, and two while it reconnects.
	grpcPerCertificate = 8
	// httpPending and httpPendingPerAddr are the maximum numbers of connections to
	// metrics-listen: in total and per address.
	httpPending, httpPendingPerAddr = 64, 32
	// reservedFiles is the number of file descriptors for everything but incoming connections:
	// maps, programs, rings, files, the control socket and outgoing connections.
	reservedFiles = 512
	// filesPerMap is the number of file descriptors that a map uses, including its iterator and
	// scan.
	filesPerMap = 16
)

// grpcLimits returns the limits of the listener for peers. One address may use at most half of
// the connections.
func grpcLimits(total int) peers.Limits {
	return peers.Limits{
		Name: "grpc", Pending: grpcPending, PendingPerAddr: grpcPendingPerAddr,
		Total: total, PerAddr: max(total/2, 1), PerCertificate: grpcPerCertificate,
	}
}

// httpLimits returns the limits of the listener for metrics, whose clients are never
// authenticated.
func httpLimits() peers.Limits {
	return peers.Limits{Name: "metrics", Pending: httpPending, PendingPerAddr: httpPendingPerAddr}
}

// raiseFiles raises the limit of open files to the hard limit. It returns the number of
// authenticated connections that the limit allows, at most max-connections.
func raiseFiles(c *config.Config, log *slog.Logger) (connections int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < limit.Max {
		raised := unix.Rlimit{Cur: limit.Max, Max: limit.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err == nil {
			limit = raised
		}
	}
	room := connectionsFor(limit.Cur, len(c.Maps))
	if room < c.MaxConnections {
		log.Warn("limit of open files is too low for max-connections",
			"max_connections", c.MaxConnections, "accepted", room, "limit", limit.Cur, "hint", "raise LimitNOFILE")
	}
	return min(room, c.MaxConnections), nil
}

// connectionsFor returns the number of authenticated connections that a limit of open files
// allows, besides maps and connections in their handshake. It returns at least 8.
func connectionsFor(files uint64, maps int) int {
	room := int64(min(files, math.MaxInt32)) - reservedFiles - int64(maps)*filesPerMap - grpcPending - httpPending - peers.MaxGossipConnections
	return int(max(room, 8))
}

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
