package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
)

// Constants of bpf/uses.h.
const (
	useBits   = 17 // USE_BITS
	useBlocks = 1 << useBits
	useWords  = 16 // USE_WORDS
	useFactor = 0x9e3779b97f4a7c15
	useChunk  = 64 // USE_CHUNK
)

const (
	// useTick is the unit of the times in the array: they last for 13 years.
	useTick = 100 * time.Millisecond
	// maxUseStep is the most by which the time of the array advances at once. A pause of the machine, or of this
	// process, therefore counts as this time without a use.
	maxUseStep = 2 * time.Second
)

// useArray is the array in which the hooks note uses. Its time counts only while syncd advances it: the difference
// between two of its times is at most the time for which this process has run between them.
type useArray struct {
	mu       sync.RWMutex
	memory   []byte    // nil after close
	present  uint32    // the time of the array, in useTick
	advanced time.Time // when present was advanced
}

func mapUses(m *ebpf.Map) (*useArray, error) {
	blockSize := int(unsafe.Sizeof(bpf.CaptureUseBlock{}))
	size := (int(m.MaxEntries())*blockSize + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	memory, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the uses into memory: %w", err)
	}
	u := &useArray{memory: memory, present: 1, advanced: time.Now()}
	atomic.StoreUint32(u.word(0, 0), u.present)
	return u, nil
}

func (u *useArray) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	memory := u.memory
	u.memory = nil
	return unix.Munmap(memory)
}

func (u *useArray) word(block, i uint32) *uint32 {
	return (*uint32)(unsafe.Pointer(&u.memory[4*(block*useWords+i)]))
}

// failed returns the number of uses that the hooks could not note.
func (u *useArray) failed() uint32 {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if u.memory == nil {
		return 0
	}
	return atomic.LoadUint32(u.word(0, 1))
}

// advance advances the time, and returns it.
func (u *useArray) advance(now time.Time) uint32 {
	u.mu.Lock()
	defer u.mu.Unlock()
	passed := now.Sub(u.advanced)
	if passed > maxUseStep {
		passed, u.advanced = maxUseStep, now.Add(-maxUseStep)
	}
	if steps := passed / useTick; steps > 0 && u.memory != nil {
		u.present += uint32(steps)
		u.advanced = u.advanced.Add(steps * useTick)
		atomic.StoreUint32(u.word(0, 0), u.present)
	}
	return u.present
}

// last returns the time of the last use of a key, or of a later use of keys that share its words, and the present time.
func (u *useArray) last(secret uint32, key []byte) (last, present uint32) {
	h := useHash(secret, key)
	block := 1 + uint32(h>>(64-useBits))
	u.mu.RLock()
	defer u.mu.RUnlock()
	if u.memory == nil {
		return u.present, u.present
	}
	last = min(atomic.LoadUint32(u.word(block, uint32(h)%useWords)), atomic.LoadUint32(u.word(block, uint32(h>>4)%useWords)))
	return last, u.present
}

// useHash is use_hash in bpf/uses.h.
func useHash(secret uint32, key []byte) uint64 {
	h := uint64(secret) * useFactor
	for len(key) > 0 {
		var chunk [useChunk]byte
		key = key[copy(chunk[:], key):]
		for i := 0; i < useChunk; i += 8 {
			h = (h ^ binary.NativeEndian.Uint64(chunk[i:])) * useFactor
			h ^= h >> 29
		}
	}
	return h
}

// Uses shows which entries of a map programs have used since [Capture.WatchUses]. Its methods may be called from any
// goroutine until the map is no longer watched.
type Uses struct {
	capture *Capture
	array   *useArray
	secret  uint32
	began   uint32        // the time of the array from which on uses are noted
	missed  atomic.Uint64 // uses of all maps that the hooks have missed, at the last call of Missed
}

// Advance advances the time of the uses. Without a call every 2 s, times without a use are shorter than they were.
func (u *Uses) Advance() { u.array.advance(time.Now()) }

// Missed reports whether the hooks may have missed a use of any map since its last call. The caller begins its observation
// anew if so.
func (u *Uses) Missed() bool {
	missed := u.capture.missedUses() + uint64(u.array.failed())
	return u.missed.Swap(missed) != missed
}

// Idle returns for how long a key was certainly not used, and whether a use precedes that time. Without one, it is at most
// the time since WatchUses. A use of another key may shorten the time, and none lengthens it.
func (u *Uses) Idle(key []byte) (idle time.Duration, used bool) {
	last, present := u.array.last(u.secret, key)
	// A use has the present time of that moment, which may have ended up to maxUseStep later.
	idle = time.Duration(int64(present)-int64(max(last, u.began)))*useTick - maxUseStep
	return max(0, idle), last >= u.began
}

// missedUses returns the number of hook runs for lookups and writes that the kernel has skipped, for all maps.
func (c *Capture) missedUses() uint64 {
	s := c.latestSkipped()
	return s.lookups + s.all
}

// SeesUses returns nil if [Capture.WatchUses] shows each use of entries of maps of a type by programs, or the reason.
func (c *Capture) SeesUses(typ ebpf.MapType) error {
	if c.lookupsErr != nil {
		return c.lookupsErr
	}
	return seesUses(typ)
}

// seesUses is SeesUses with a hook on lookups.
func seesUses(typ ebpf.MapType) error {
	switch typ {
	case ebpf.Hash, ebpf.LRUHash:
		return nil
	case ebpf.PerCPUHash, ebpf.LRUCPUHash:
		if kernelAtLeast(6, 12) {
			return nil
		}
		return fmt.Errorf("kernels before 6.12 hide some lookups in a %s from hooks", typ)
	}
	return fmt.Errorf("lookups in a map of type %s call no function of the kernel", typ)
}

// WatchUses makes the hooks note the uses of entries in a watched map: lookups and writes by programs. It fails like
// [Capture.WatchLookups], or if Options.Uses is false.
func (c *Capture) WatchUses(id uint32) (*Uses, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lookupsErr != nil:
		return nil, c.lookupsErr
	case !c.options.Uses:
		return nil, errors.New("watch uses: no array has been created for them")
	case c.watches == nil || c.targets[id] == nil:
		return nil, fmt.Errorf("watch uses: map %d is not watched", id)
	}
	u := &Uses{capture: c, array: c.uses, secret: 1 + rand.Uint32N(1<<32-1)}
	c.watches.noteUses(id, u.secret)
	u.began = u.array.advance(time.Now()) + 1 // the hooks may have missed a use at the present time
	return u, nil
}
