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
	// grpcPending and grpcPendingPerAddr bound the connections that are in their
	// handshake.
	grpcPending, grpcPendingPerAddr = 128, 32
	// grpcPerCertificate is how many connections one certificate may have: a peer
	// has one, and two while it reconnects.
	grpcPerCertificate = 8
	// httpPending and httpPendingPerAddr bound the connections to metrics-listen.
	httpPending, httpPendingPerAddr = 64, 32
	// reservedFiles are descriptors for what is not a connection of a stranger:
	// maps, programs, rings, files, the control socket and own connections.
	reservedFiles = 512
	// filesPerMap are the descriptors that a map takes, its iterator and scan
	// included.
	filesPerMap = 16
)

// grpcLimits returns the bounds of the listener for peers. No address may take
// more than half of the connections.
func grpcLimits(total int) peers.Limits {
	return peers.Limits{
		Name: "grpc", Pending: grpcPending, PendingPerAddr: grpcPendingPerAddr,
		Total: total, PerAddr: max(total/2, 1), PerCertificate: grpcPerCertificate,
	}
}

// httpLimits returns the bounds of the listener for metrics, whose clients are
// never authenticated.
func httpLimits() peers.Limits {
	return peers.Limits{Name: "metrics", Pending: httpPending, PendingPerAddr: httpPendingPerAddr}
}

// raiseFiles raises the limit of open files as far as it goes, and returns how
// many authenticated connections it leaves room for, at most what is wanted.
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
		log.Warn("fewer connections are accepted than max-connections: the limit of open files is too low",
			"max_connections", c.MaxConnections, "accepted", room, "limit", limit.Cur, "hint", "raise LimitNOFILE")
	}
	return min(room, c.MaxConnections), nil
}

// connectionsFor returns how many authenticated connections a limit of open files
// leaves room for beside maps and connections in their handshake; at least 8.
func connectionsFor(files uint64, maps int) int {
	room := int64(min(files, math.MaxInt32)) - reservedFiles - int64(maps)*filesPerMap - grpcPending - httpPending - peers.MaxGossipConnections
	return int(max(room, 8))
}

// limitMemory has the Go runtime collect garbage so that memory stays below
// memory-limit, or below nine tenths of the cgroup's limit. GOMEMLIMIT in the
// environment wins over the latter.
func limitMemory(c *config.Config, log *slog.Logger) error {
	limit, err := c.MemoryLimitBytes()
	if err != nil {
		return fmt.Errorf("memory-limit: %w", err)
	}
	from := "memory-limit"
	if limit == 0 {
		if os.Getenv("GOMEMLIMIT") != "" {
			return nil // the runtime has read it
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

// cgroupMemory returns the lowest memory limit in bytes of the cgroups that the
// process is in, of version 2 or 1, or 0 if there is none. self is the process's
// list of cgroups, root where they are mounted.
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
		// Every parent limits, too. Inside a container the path is often "/".
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

// readLimit returns the limit in a cgroup's file, or 0 if it is none.
func readLimit(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n <= 0 || n >= 1<<60 { // "max", or version 1's way to say it
		return 0
	}
	return n
}
