package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bench/process"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
)

// The questions that a daemon's process answers on its standard input, one per line.
const (
	askCPU  = "cpu"  // returns processor time, ns
	askHeap = "heap" // returns live Go memory, bytes; collects garbage
	askCall = "call" // returns the duration of the longest call that read or wrote a map, ns
)

// runSyncd runs the daemon if this process was started as one.
func runSyncd() (asked bool, err error) {
	return process.RunSyncd(func(question string) any {
		switch question {
		case askHeap:
			return heap()
		case askCall:
			return longestCall()
		}
		return uint64(cpuTime(unix.RUSAGE_SELF))
	})
}

// syncd is a daemon in a separate process, with default settings except for its addresses and
// files.
type syncd struct {
	*process.Syncd
	began time.Time // time of its start
}

// startSyncd starts daemon number n (1, 2, ...) with a map. change may change its settings. It
// returns after the daemon has begun to receive the changes that an injector reports.
func startSyncd(number int, m *ebpf.Map, change func(*config.Config)) (*syncd, error) {
	return startSyncdOn((*exec.Cmd).Start, number, m, change)
}

// startSyncdOn is startSyncd with another way to start the process.
func startSyncdOn(start func(*exec.Cmd) error, number int, m *ebpf.Map, change func(*config.Config)) (*syncd, error) {
	p, err := process.NewSyncd(number, mapName, m)
	if err != nil {
		return nil, fmt.Errorf("start syncd: %w", err)
	}
	if change != nil {
		change(&p.Config)
	}
	s := &syncd{p, time.Now()}
	if err := p.Start(start); err != nil {
		return nil, errors.Join(fmt.Errorf("start syncd: %w", err), s.close())
	}
	return s, nil
}

// cpu returns the processor time that the daemon has used.
func (s *syncd) cpu() (time.Duration, error) {
	var n time.Duration
	err := s.Ask(askCPU, &n)
	return n, err
}

// heap returns the daemon's live Go memory in bytes.
func (s *syncd) heap() (n uint64, err error) {
	err = s.Ask(askHeap, &n)
	return n, err
}

// longestCall returns the duration of this process's longest call that read or wrote a map.
func longestCall() (longest time.Duration) {
	for _, c := range kmap.Calls() {
		if c.Kind != kmap.CallCreateBuffer && c.Kind != kmap.CallCreateSums {
			longest = max(longest, c.Longest)
		}
	}
	return longest
}

// longestCall returns the duration of the daemon's longest call that read or wrote a map.
func (s *syncd) longestCall() (longest time.Duration, err error) {
	err = s.Ask(askCall, &longest)
	return longest, err
}

// awaitReady returns once the daemon reports that it is ready, with the given number of peers.
func (s *syncd) awaitReady(ctx context.Context, peers int) error {
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r, err := s.Client.Ready(ctx)
		if err == nil && r.Ready {
			if peers == 0 {
				return nil
			}
			if status, err := s.Client.Status(ctx); err == nil && len(status.Peers) == peers && caughtUp(&status) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for syncd %s: %w, missing: %q\n%s", s.Config.NodeName, ctx.Err(), r.Missing, s.Log.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// caughtUp reports whether every peer has sent all its records.
func caughtUp(s *daemon.Status) bool {
	for _, p := range s.Peers {
		for _, m := range p.Maps {
			if !m.CaughtUp {
				return false
			}
		}
	}
	return true
}

// checkNoLosses fails if events were lost on their way into the daemon.
func (s *syncd) checkNoLosses(ctx context.Context) error {
	status, err := s.Client.Status(ctx)
	if err != nil {
		return err
	}
	c := status.Capture
	lost := c.Lost - c.Skipped // see capture.Stats.Skipped: with kprobe, these are all writes by bpf(2)
	if lost > 0 || c.Gaps > 0 || c.Malformed > 0 {
		return fmt.Errorf("check %s for losses: %d events lost, %d gaps, %d malformed", s.Config.NodeName, lost, c.Gaps, c.Malformed)
	}
	return nil
}

// close ends the daemon and waits for its exit. The receiver may be nil.
func (s *syncd) close() error {
	if s == nil {
		return nil
	}
	return s.Close()
}
