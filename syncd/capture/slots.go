package capture

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"mapsync/bpf"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Slots of one CPU, SLOTS in bpf/event.h, and the stride of one in the mapped array.
const (
	slotsPerCPU = 24
	slotStride  = int(unsafe.Sizeof(bpf.CaptureSlot{}))
)

// slots reads the counters of the BPF programs where they stand: in the mapped
// array, so that no bpf(2) call of ours ever blinds a hook for them.
type slots struct {
	memory []byte
	n      int
}

func mapSlots(m *ebpf.Map) (*slots, error) {
	n := int(m.MaxEntries())
	size := (n*slotStride + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	memory, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the event slots into memory: %w", err)
	}
	return &slots{memory: memory, n: n}, nil
}

// counters are the sums over all CPUs and slots.
type counters struct {
	seen, failed, own, lost, nested uint64
}

func (s *slots) sum() counters {
	var c counters
	for i := range s.n {
		slot := (*bpf.CaptureSlot)(unsafe.Pointer(&s.memory[i*slotStride]))
		c.seen += atomic.LoadUint64(&slot.Seen)
		c.failed += atomic.LoadUint64(&slot.Failed)
		c.own += atomic.LoadUint64(&slot.Own)
		c.lost += atomic.LoadUint64(&slot.Lost)
		c.nested += atomic.LoadUint64(&slot.Nested)
	}
	return c
}

func (s *slots) close() error { return unix.Munmap(s.memory) }

// filter is the mapped bit set with which the hooks pass over other maps.
type filter struct {
	memory []byte
	users  map[uint32]int // watched maps by bit
}

// Bits of the filter, FILTER_BITS in bpf/event.h.
const filterBits = 4096

func mapFilter(m *ebpf.Map) (*filter, error) {
	memory, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the filter into memory: %w", err)
	}
	return &filter{memory: memory, users: make(map[uint32]int)}, nil
}

func (f *filter) set(id uint32, on bool) {
	bit := id % filterBits
	word := (*uint64)(unsafe.Pointer(&f.memory[bit/64*8]))
	if on {
		f.users[bit]++
		atomic.OrUint64(word, 1<<(bit%64))
		return
	}
	if f.users[bit]--; f.users[bit] == 0 {
		atomic.AndUint64(word, ^uint64(1<<(bit%64)))
	}
}

func (f *filter) close() error { return unix.Munmap(f.memory) }
