package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/bench/process"
)

// usage is the resource use of a daemon's process.
type usage struct {
	Goroutines  int
	Descriptors int
	RSS         uint64 // resident memory, bytes
}

// runSyncd runs the daemon if this process was started as one. It answers each line with its usage.
func runSyncd() (asked bool, err error) {
	return process.RunSyncd(func(string) any { return ownUsage() })
}

func ownUsage() usage {
	u := usage{Goroutines: runtime.NumGoroutine()}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.Descriptors = len(files)
	}
	u.RSS, _ = residentMemory(os.Getpid()) // 0 if it cannot be read: then the check fails
	return u
}

// residentMemory returns the resident memory of a process in bytes.
func residentMemory(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory of process: %w", err)
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, fmt.Errorf("parse memory of process: %w", err)
	}
	return resident * uint64(os.Getpagesize()), nil
}

// syncd is a daemon in a separate process.
type syncd struct{ *process.Syncd }

// startSyncd starts daemon number 1 or 2 for a map. The caller closes it, also after an error.
func startSyncd(number int, m *ebpf.Map) (*syncd, error) {
	p, err := process.NewSyncd(number, "ct", m)
	s := &syncd{p}
	if err == nil {
		p.Config.Join = []string{process.Address(1) + ":7946", process.Address(2) + ":7946"}
		err = p.Start((*exec.Cmd).Start)
	}
	if err != nil {
		return s, fmt.Errorf("start syncd %d: %w", number, err)
	}
	return s, nil
}

// usage requests the resource use of the daemon's process.
func (s *syncd) usage() (u usage, err error) {
	err = s.Ask("usage", &u)
	return u, err
}

// awaitReady returns once the daemon is ready and has a peer.
func (s *syncd) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		status, err := s.Client.Status(ctx)
		if err == nil && status.Ready && len(status.Peers) == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for syncd %s: %w, not ready: %q\n%s", s.Config.NodeName, ctx.Err(), status.NotReady, s.Log.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
