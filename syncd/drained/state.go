package drained

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
)

// state is struct drain_state of bpf/drain.bpf.c in shared memory.
type state struct {
	memory []byte
	*bpf.DrainDrainState
}

func mapState(m *ebpf.Map) (*state, error) {
	memory, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the state of a drained map into memory: %w", err)
	}
	return &state{memory, (*bpf.DrainDrainState)(unsafe.Pointer(&memory[0]))}, nil
}

// close ends the sharing of the memory. The last content stays.
func (s *state) close() error {
	last := *s.DrainDrainState
	memory := s.memory
	s.memory, s.DrainDrainState = nil, &last
	if memory == nil {
		return nil
	}
	return unix.Munmap(memory)
}

// Stats are counters since the sums began. A restart of syncd keeps them.
type Stats struct {
	Entries uint64 // drained entries that are in the sums
	// Unread counts drained entries that are missing in the sums, because they could not be read from the collector's
	// memory, and calls of which it is unknown whether they have drained entries.
	Unread uint64
	Full   uint64 // drained entries that are missing in the sums, because these had no room
	// Missed counts calls whose entries are missing in the sums, because the kernel did not run the program at their
	// end. It skips a return probe while more calls are in progress than it provides for, and a program that already
	// runs on that processor.
	Missed uint64
}

// Stats returns the counters.
func (s *Sums) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls()
	return Stats{
		Missed:  s.stuck.missing,
		Entries: atomic.LoadUint64(&s.state.Entries),
		Unread:  atomic.LoadUint64(&s.state.Unread),
		Full:    atomic.LoadUint64(&s.state.Full),
	}
}

// Calls returns the number of calls that have begun, and whether all of them have ended: no entry is on its way from the
// drained map to the sums.
func (s *Sums) Calls() (begun uint64, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls()
}

// calls is Calls for callers that hold the lock.
func (s *Sums) calls() (begun uint64, ended bool) {
	left := atomic.LoadUint64(&s.state.Left)
	begun = atomic.LoadUint64(&s.state.Entered)
	return begun, s.ended(begun, left)
}
