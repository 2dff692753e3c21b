package drained

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
)

// state is struct drain_state of bpf/drain_sums.h in shared memory, and the calls in progress.
type state struct {
	memory []byte
	*bpf.DrainDrainState
	calls     *ebpf.Map
	nextCheck time.Time // of the calls in progress
}

// lostAfter is the time after which a call counts as ended whose end was not seen: the kernel has not run the program, and
// the thread has made no other call of that kind.
const lostAfter = 10 * time.Second

func mapState(m, calls *ebpf.Map) (*state, error) {
	memory, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the state of a drained map into memory: %w", err)
	}
	return &state{memory: memory, DrainDrainState: (*bpf.DrainDrainState)(unsafe.Pointer(&memory[0])), calls: calls}, nil
}

// close ends the sharing of the memory. The last content stays.
func (s *state) close() error {
	last := *s.DrainDrainState
	memory := s.memory
	s.memory, s.DrainDrainState = nil, &last
	if memory == nil {
		return nil
	}
	return errors.Join(unix.Munmap(memory), s.calls.Close())
}

// removeLost ends calls whose end was not seen.
func (s *state) removeLost(now time.Time) {
	if s.memory == nil || now.Before(s.nextCheck) {
		return
	}
	s.nextCheck = now.Add(time.Second)
	_, _ = s.callsBefore(clock()-lostAfter, true)
}

// awaitCalls waits for the end of each call that began before the next programs were attached: the kernel runs only former
// ones at its end. Without these, and after lostAfter, its entries count as missing.
func (s *state) awaitCalls(formerAreAttached bool) error {
	time.Sleep(programPause)
	attached := clock()
	for formerAreAttached && clock() < attached+lostAfter {
		if n, err := s.callsBefore(attached, false); n == 0 || err != nil {
			return err
		}
		time.Sleep(mergePause)
	}
	_, err := s.callsBefore(attached, true)
	return err
}

// callsBefore counts the calls in progress that began before a time of clock. With end, it ends them as missed.
func (s *state) callsBefore(limit time.Duration, end bool) (n int, err error) {
	var thread uint64
	var call bpf.DrainDrainCall
	calls := s.calls.Iterate()
	for calls.Next(&thread, &call) {
		if time.Duration(call.Began) >= limit {
			continue
		}
		n++
		if end && s.calls.Delete(thread) == nil {
			atomic.AddUint64(&s.Missed, 1)
			atomic.AddUint64(&s.Left, 1)
		}
	}
	// The collector's calls change the map meanwhile.
	if err = calls.Err(); errors.Is(err, ebpf.ErrIterationAborted) {
		return n + 1, nil
	}
	if err != nil {
		return n, fmt.Errorf("read the calls in progress: %w", err)
	}
	return n, nil
}

// clock returns the time of bpf_ktime_get_ns.
func clock() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// Stats are counters since the sums began. A restart of syncd keeps them.
type Stats struct {
	Entries uint64 // drained entries that are in the sums
	// Unread counts drained entries that are missing in the sums, because they could not be read from the collector's
	// memory, and calls of which it is unknown which entries they have drained.
	Unread uint64
	Full   uint64 // drained entries that are missing in the sums, because these had no room
	// Missed counts calls whose entries are missing in the sums, because the kernel did not run the program at their
	// end. It skips a return probe while more calls are in progress than it provides for, and a program that already
	// runs on that processor.
	Missed uint64
	// Unseen counts calls whose entries are in the sums, although the kernel did not run the program at their beginning. A
	// read meanwhile lacks these entries.
	Unseen uint64
}

// Stats returns the counters.
func (s *Sums) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Entries: atomic.LoadUint64(&s.state.Entries),
		Unread:  atomic.LoadUint64(&s.state.Unread),
		Full:    atomic.LoadUint64(&s.state.Full),
		Missed:  atomic.LoadUint64(&s.state.Missed),
		Unseen:  atomic.LoadUint64(&s.state.Unseen),
	}
}

// Calls returns the number of calls that have begun, and whether all of them have ended: no entry is on its way from the
// drained map to the sums.
func (s *Sums) Calls() (begun uint64, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := atomic.LoadUint64(&s.state.Left)
	begun = atomic.LoadUint64(&s.state.Entered)
	if begun != left {
		s.state.removeLost(time.Now())
	}
	return begun, begun == left
}
