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

// slotsPerCPU is SLOTS in bpf/event.h. slotStride is the distance between slots in the mapped
// array, in bytes.
const (
	slotsPerCPU = 75
	slotStride  = int(unsafe.Sizeof(bpf.CaptureSlot{}))
)

// slots reads the counters of the BPF programs in place, in the mapped array. It therefore needs no
// bpf(2) call, during which hooks would miss events.
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
	seen, failed, own, lost, nested, unreported uint64
}

func (s *slots) sum() counters {
	var c counters
	for i := range s.n {
		slot := (*bpf.CaptureSlot)(unsafe.Pointer(&s.memory[i*slotStride]))
		c.seen += atomic.LoadUint64(&slot.Seen)
		c.failed += atomic.LoadUint64(&slot.Failed)
		c.own += atomic.LoadUint64(&slot.Own)
		c.lost += atomic.LoadUint64(&slot.Lost)
		c.unreported += atomic.LoadUint64(&slot.Unreported)
		c.nested += atomic.LoadUint64(&slot.Nested)
	}
	return c
}

func (s *slots) close() error { return unix.Munmap(s.memory) }
