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

// Constants of bpf/event.h.
const (
	watchBits    = 12 // WATCH_BITS
	watchBuckets = 1 << watchBits
	watchProbes  = 64 // WATCH_PROBES
)

// watches is the memory in which the hooks look up the watched maps.
type watches struct {
	memory  []byte
	lookups uint32 // the last value of a field Lookups
	// beyond is, for each bucket, the number of maps that were added in a later bucket because this one
	// was occupied. ProbeNext of the bucket is 1 while it is positive.
	beyond [watchBuckets]uint16
}

func mapWatches(m *ebpf.Map) (*watches, error) {
	size := watchBuckets * int(unsafe.Sizeof(bpf.CaptureWatch{}))
	memory, err := unix.Mmap(m.FD(), 0, (size+os.Getpagesize()-1)&^(os.Getpagesize()-1),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the watches into memory: %w", err)
	}
	return &watches{memory: memory}, nil
}

// watchBucket returns the bucket of a map's watch, if no other map occupies it: WATCH_BUCKET.
func watchBucket(id uint32) uint32 { return id * 0x9e3779b1 >> (32 - watchBits) }

// probe returns the bucket of a map after the given number of probes, as watch_of in bpf/event.h.
func (w *watches) probe(id uint32, probes int) *bpf.CaptureWatch {
	size := unsafe.Sizeof(bpf.CaptureWatch{})
	return (*bpf.CaptureWatch)(unsafe.Pointer(&w.memory[uintptr(w.bucket(id, probes))*size]))
}

func (w *watches) bucket(id uint32, probes int) uint32 {
	return (watchBucket(id) + uint32(probes)) % watchBuckets
}

// add adds a map. It returns false if all buckets within the hooks' probes have other maps.
func (w *watches) add(id uint32, keySize, valueSize int) bool {
	probes := 0
	for w.probe(id, probes).Id != 0 {
		if probes++; probes == watchProbes {
			return false
		}
	}
	for i := range probes {
		w.beyond[w.bucket(id, i)]++
		atomic.StoreUint32(&w.probe(id, i).ProbeNext, 1)
	}
	p := w.probe(id, probes)
	p.KeySize, p.ValueSize, p.Lookups, p.Uses = uint32(keySize), uint32(valueSize), 0, 0
	atomic.StoreUint32(&p.Id, id) // the hooks find the map from here on
	return true
}

// probesOf returns the number of buckets that the hooks probe before that of a map, watchProbes if it has none.
func (w *watches) probesOf(id uint32) int {
	for i := range watchProbes {
		if w.probe(id, i).Id == id {
			return i
		}
	}
	return watchProbes
}

// find returns the watch of a map, nil if it has none.
func (w *watches) find(id uint32) *bpf.CaptureWatch {
	if i := w.probesOf(id); i < watchProbes {
		return w.probe(id, i)
	}
	return nil
}

// remove removes a map, and the probes that only its watch needed: every write to a map that is not watched
// makes them.
func (w *watches) remove(id uint32) {
	probes := w.probesOf(id)
	if probes == watchProbes {
		return
	}
	atomic.StoreUint32(&w.probe(id, probes).Id, 0)
	for i := range probes {
		bucket := w.bucket(id, i)
		if w.beyond[bucket]--; w.beyond[bucket] == 0 {
			atomic.StoreUint32(&w.probe(id, i).ProbeNext, 0)
		}
	}
}

// reportLookups makes the hooks report lookups in a map. Pauses of former calls do not count any more.
func (w *watches) reportLookups(id uint32) {
	w.lookups = max(1, w.lookups+1)
	atomic.StoreUint32(&w.find(id).Lookups, w.lookups)
}

// noteUses makes the hooks note the uses of a map. secret is not 0.
func (w *watches) noteUses(id, secret uint32) { atomic.StoreUint32(&w.find(id).Uses, secret) }

func (w *watches) close() error { return unix.Munmap(w.memory) }
