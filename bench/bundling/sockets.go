package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The states of sockets in /proc/net/tcp that can stay after a load.
const (
	stateTimeWait = "06"
	stateListen   = "0A"
)

// awaitEnds waits until the kernel has ended the connections of the service: a close returns before, and a busy kernel ends
// the connection later, in a soft interrupt. The tracer has then counted all of them.
func awaitEnds() error {
	const limit = 2 * time.Minute
	for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile("/proc/self/net/tcp")
		if err != nil {
			return fmt.Errorf("list sockets: %w", err)
		}
		open := connections(string(text))
		if open == 0 {
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d connections have not ended after %s", open, limit)
		}
	}
	// A socket leaves the list before the tracepoint of its end. This call waits until all CPUs have left the soft interrupt.
	const global = 1
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		return fmt.Errorf("wait for all CPUs: %w", errno)
	}
	return nil
}

// connections returns the number of connections of the service in the text of /proc/net/tcp.
func connections(text string) (n int) {
	port := fmt.Sprintf(":%04X", servicePort)
	for line := range strings.Lines(text) {
		f := strings.Fields(line) // number, local and remote address, state
		if len(f) > 3 && (strings.HasSuffix(f[1], port) || strings.HasSuffix(f[2], port)) && f[3] != stateListen && f[3] != stateTimeWait {
			n++
		}
	}
	return n
}
