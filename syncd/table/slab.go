package table

import "math/bits"

// flags of a record.
type flags uint32

const (
	flagTombstone flags = 1 << iota
	// flagUnversioned records are in the unversioned list, all others in the order.
	flagUnversioned
	flagDirty
	// flagFailed records are dirty, and the writer could not write them.
	flagFailed
	// flagRedo: changed since the writer took it, so what it writes is not enough.
	flagRedo
	// flagCursor: a cursor may rest here. It is not taken back when the cursor
	// goes on, but when the record moves: a hint that saves the search.
	flagCursor
	// flagRecheck: to be read again from the kernel.
	flagRecheck
	// flagWritten: written by the daemon since it was last taken for a recheck, so
	// what was read of it may be from before that write.
	flagWritten
	// flagEvicted: the kernel threw the key out, which is not a delete. Of a failed
	// record: the writer did. See Displace.
	flagEvicted
	// flagDoubt: a recheck was asked for and has not brought its answer yet, so
	// what the kernel holds is not known.
	flagDoubt
	// flagFree: the slot holds no record.
	flagFree

	// The slot is in the queue of that name, or in that of retries. The first two outlive
	// the record, because a queue cannot give up what is in its middle.
	flagInRechecks
	flagInFailures
	flagInTombs

	// flagUntold: the value has changed since it was last told, in what is no
	// difference by itself. Of a tombstone: see raced.
	flagUntold

	// flagExpired: a tombstone of a record that expired after an eviction. See evict.go.
	flagExpired
	// flagReleased: an expired tombstone whose entry the kernel map may hold. The slot keeps
	// the value of that entry.
	flagReleased
	// flagInEvicted: the slot is in the queue of evicted records.
	flagInEvicted
	// flagInReleased: the slot is in the queue of released entries.
	flagInReleased
	// flagLoaded: the local map had the value when it was loaded.
	flagLoaded

	flagsOfSlot = flagInRechecks | flagInFailures | flagInEvicted | flagInReleased
)

// cpuNone is the CPU of a record that no event has touched, or that several
// CPUs have at about the same moment.
const cpuNone = 1<<16 - 1

// meta is what a record needs besides its bytes: 40 bytes, no pointers.
type meta struct {
	version Version
	seq     uint64
	// seen is the wall time in nanoseconds of the newest evidence for the record:
	// of its last event, reread or receipt, also of one that changed nothing.
	seen       int64
	prev, next uint32
	flags      flags
	owner      OwnerID
	cpu        uint16
}

const metaSize = 40

func (m *meta) is(f flags) bool { return m.flags&f != 0 }
func (m *meta) live() bool      { return m.flags&flagTombstone == 0 }

// The first two slots are the ends of the two lists: next is a list's first
// record, prev its last.
const (
	order       uint32 = 0
	unversioned uint32 = 1
	firstSlot   uint32 = 2
)

// slab stores the records in chunks, so that growing moves nothing and big
// storage holds no pointers for the garbage collector to follow.
type slab struct {
	chunks    []chunk
	shift     uint
	mask      uint32
	keySize   int
	stride    int
	allocated uint32 // slots handed out once, the sentinels included
	free      uint32 // first of the free slots, linked by next; 0 = none
	used      int
}

type chunk struct {
	meta []meta
	data []byte
}

const (
	chunkTarget  = 256 << 10
	minChunkBits = 6
	maxChunkBits = 12
)

func (s *slab) initSlab(keySize, valueSize int) {
	s.keySize, s.stride = keySize, keySize+valueSize
	n := bits.Len(uint(chunkTarget/s.stride)) - 1
	s.shift = uint(min(max(n, minChunkBits), maxChunkBits))
	s.mask = 1<<s.shift - 1
	s.grow()
	s.allocated = firstSlot
	*s.meta(unversioned) = meta{prev: unversioned, next: unversioned}
}

func (s *slab) grow() {
	n := 1 << s.shift
	s.chunks = append(s.chunks, chunk{meta: make([]meta, n), data: make([]byte, n*s.stride)})
}

func (s *slab) meta(slot uint32) *meta {
	return &s.chunks[slot>>s.shift].meta[slot&s.mask]
}

func (s *slab) key(slot uint32) []byte {
	at := int(slot&s.mask) * s.stride
	return s.chunks[slot>>s.shift].data[at : at+s.keySize : at+s.keySize]
}

func (s *slab) value(slot uint32) []byte {
	at := int(slot&s.mask) * s.stride
	return s.chunks[slot>>s.shift].data[at+s.keySize : at+s.stride : at+s.stride]
}

// alloc returns a slot that is in no list.
func (s *slab) alloc() uint32 {
	s.used++
	if slot := s.free; slot != 0 {
		m := s.meta(slot)
		s.free = m.next
		*m = meta{flags: m.flags & flagsOfSlot, cpu: cpuNone}
		return slot
	}
	slot := s.allocated
	if int(slot>>s.shift) == len(s.chunks) {
		s.grow()
	}
	s.allocated++
	s.meta(slot).cpu = cpuNone
	return slot
}

// release gives a slot back. It must be in no list.
func (s *slab) release(slot uint32) {
	m := s.meta(slot)
	*m = meta{flags: m.flags&flagsOfSlot | flagFree, next: s.free}
	s.free = slot
	s.used--
}

func (s *slab) slabBytes() uint64 {
	n := uint64(len(s.chunks)) << s.shift
	return n*uint64(s.stride+metaSize) + uint64(cap(s.chunks))*48
}

// link puts a slot at the tail of a list.
func (s *slab) link(list, slot uint32) {
	end, m := s.meta(list), s.meta(slot)
	m.prev, m.next = end.prev, list
	s.meta(end.prev).next = slot
	end.prev = slot
}

// cut takes a slot out of its list.
func (s *slab) cut(slot uint32) {
	m := s.meta(slot)
	s.meta(m.prev).next = m.next
	s.meta(m.next).prev = m.prev
}
