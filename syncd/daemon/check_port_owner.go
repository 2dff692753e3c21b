package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// daemonAt returns the process that answers at a control socket. running is false if none does. The process id is 0 if that
// process is in another PID namespace.
func daemonAt(socket string) (pid int32, running bool) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	return callerOf(conn).pid, true
}

// errUnknownOwner is the error of ownedBy if the process cannot be read.
var errUnknownOwner = errors.New("the sockets of the running syncd cannot be read")

// ownedBy reports whether a process has a socket on the port, at any address of the network namespace of this process.
func (p *port) ownedBy(pid int32) (bool, error) {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		return false, errUnknownOwner
	}
	_, number, err := net.SplitHostPort(p.addr)
	if err != nil {
		return false, err
	}
	inodes, err := socketsOn(p.network, number)
	if err != nil {
		return false, err
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if errors.Is(err, os.ErrPermission) {
			return false, errUnknownOwner
		}
		if slices.Contains(inodes, strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")) {
			return true, nil
		}
	}
	return false, nil
}

// socketsOn returns the inodes of the sockets of a network, tcp or udp, with a local port. Those of TCP listen.
func socketsOn(network, number string) (inodes []string, err error) {
	const address, state, inode, listens = 1, 3, 9, "0A" // columns of /proc/net/tcp, and the state of a TCP socket that listens
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return nil, err
	}
	for _, file := range []string{network, network + "6"} {
		table, err := os.ReadFile("/proc/self/net/" + file)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6 has no second file
			return nil, err
		}
		for line := range strings.Lines(string(table)) {
			columns := strings.Fields(line)
			if len(columns) > inode && strings.HasSuffix(columns[address], fmt.Sprintf(":%04X", n)) && (network == "udp" || columns[state] == listens) {
				inodes = append(inodes, columns[inode])
			}
		}
	}
	return inodes, nil
}
