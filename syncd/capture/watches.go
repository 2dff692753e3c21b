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

// watchPlaces is WATCHES in bpf/event.h.
const watchPlaces = 4096

// watches tells the hooks which maps to report, in memory that they read.
type watches struct {
	memory []byte
}

func mapWatches(m *ebpf.Map) (*watches, error) {
	size := watchPlaces * int(unsafe.Sizeof(bpf.CaptureWatch{}))
	memory, err := unix.Mmap(m.FD(), 0, (size+os.Getpagesize()-1)&^(os.Getpagesize()-1),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the watches into memory: %w", err)
	}
	return &watches{memory}, nil
}

func (w *watches) at(place uint32) *bpf.CaptureWatch {
	size := unsafe.Sizeof(bpf.CaptureWatch{})
	return (*bpf.CaptureWatch)(unsafe.Pointer(&w.memory[uintptr(place%watchPlaces)*size]))
}

// add enters a map. There are fewer watched maps than places to look, so one is free.
func (w *watches) add(id uint32, keySize, valueSize int) {
	for i := range uint32(MaxMaps) {
		p := w.at(id + i)
		if p.Id != 0 {
			// Never taken back: to look once more costs little, to stop too early an event.
			atomic.StoreUint32(&p.More, 1)
			continue
		}
		p.KeySize, p.ValueSize = uint32(keySize), uint32(valueSize)
		atomic.StoreUint32(&p.Id, id) // from here on the hooks find it
		return
	}
}

// remove takes a map out.
func (w *watches) remove(id uint32) {
	for i := range uint32(MaxMaps) {
		if p := w.at(id + i); p.Id == id {
			atomic.StoreUint32(&p.Id, 0)
			return
		}
	}
}

func (w *watches) close() error { return unix.Munmap(w.memory) }
