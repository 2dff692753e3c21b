package daemon

import (
	"fmt"
	"log/slog"
	"math"

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
	// filesPerMap is the maximum number of file descriptors that a map uses: its programs with their
	// maps and BTF, and its iterator, scan and watcher. A hash map uses up to 9.
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
