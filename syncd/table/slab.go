package table

import "math/bits"

// flags is the set of flags of a record or of a slot.
type flags uint32

const (
	// flagTombstone: the record is a tombstone. Otherwise it is live.
	flagTombstone flags = 1 << iota
	// flagUnversioned: the record is in the list of unversioned records. All other records are in the
	// order.
	flagUnversioned
	// flagDirty: the writer has yet to write the record to the kernel map. Stats.Dirty counts these
	// records.
	flagDirty
	// flagFailed: the writer could not write the record and skips it until RequeueFailed. The record also has
	// flagDirty. Stats.Failed counts it.
	flagFailed
	// flagNotHeld: the last write of the live record failed, so the kernel map does not hold its content. The
	// record also has flagDirty. It keeps the flag while the writer tries again, except while Displace has made
	// room for it. Table.notHeld counts these records.
	flagNotHeld
	// flagRedo: the dirty record was marked dirty again after the writer took it, so the current write is not
	// sufficient. Of a record whose delete waits: see flagLateWrite.
	flagRedo
	// flagCursor: a cursor may be at this record. It is a hint that avoids a search of all cursors. The
	// table clears it when the record moves, not when the cursor advances.
	flagCursor
	// flagReread: a reread of the key is requested. Stats.PendingRereads counts these records.
	flagReread
	// flagWritten: syncd has written the record since it was last taken for a reread. A value that was read
	// may therefore be older than that write.
	flagWritten
	// flagEntry: syncd has written the live record, or a load has found its entry without a timer. Nothing has
	// removed the entry since, no later write has failed, and no later read has shown a timer. Dirty records with
	// this flag have an older entry in the kernel map. See inKernelMap and takenOver.
	flagEntry
	// flagEvicted: the kernel evicted the key, which is not a delete. For a failed record: the writer
	// removed the entry. See Displace.
	flagEvicted
	// flagUncertain: a reread was requested and its result has not arrived. The content of the kernel is
	// uncertain until then.
	flagUncertain
	// flagFree: the slot holds no record.
	flagFree

	// flagInRereads: the slot is in the queue rereads. The flags of queues may stay when the record is
	// released, because a slot in the middle of a queue cannot be removed. See flagsOfSlot.
	flagInRereads
	// flagInFailures: the slot is in one of the queues failures and retries.
	flagInFailures
	// flagInTombs: the slot is in the queue tombs. release clears the flag.
	flagInTombs

	// flagUnsent: the value has changed since it was last sent, but not significantly. Of a tombstone: see
	// raced.
	flagUnsent

	// flagExpired: the tombstone is of a record that expired after an eviction. See evict.go.
	flagExpired
	// flagInferred: no node has sent the tombstone. The sweep of a peer's answer has concluded it. See Sweep.
	flagInferred
	// flagReleased: the kernel map may hold the entry of this expired tombstone. The slot keeps the value
	// of that entry. Stats.Released counts these records.
	flagReleased
	// flagInEvicted: the slot is in the queue of evicted records.
	flagInEvicted
	// flagInReleased: the slot is in the queue of released entries.
	flagInReleased
	// flagLoaded: the value was in the local map when the map was loaded.
	flagLoaded
	// flagNamed: peers have only named the owner of this entry of the local map, and this node has merged no record of the
	// key. See NoteOwner.
	flagNamed
	// flagUncounted: the map may hold a value of a peer that syncd wrote after the record's last change. Counter does
	// not see the next change.
	flagUncounted
	// flagDeleteSeen: hooks have reported a delete of the key, without its order with other changes, and no reread has
	// decided since. See mayBeEvicted.
	flagDeleteSeen
	// flagPacketDelete: the data plane made such a delete, or the one of this tombstone. If the reread does not find the key,
	// the delete does not wait.
	flagPacketDelete
	// flagHeld: the entry was deleted by bpf(2), and SettleDeletes has yet to decide whether the delete is entered. The live
	// record is not dirty. clears.held counts these records, except for absent ones.
	flagHeld
	// flagDoubted: a change that may be later has shown the entry of a record with flagHeld, or the data plane may have deleted
	// it, and no reread has decided since.
	flagDoubted
	// flagUnfit: the owner's map could not hold the record when the owner lacked it in an answer. See Absence.Unfit.
	flagUnfit
	// flagCleared: SettleDeletes has restored the entry after a clear, and the record has not changed since.
	flagCleared
	// flagSuperseded: a live peer has a newer record of the key that this node has filtered. See NoteSuperseded.
	flagSuperseded

	// flagLateWrite: a write by syncd may have brought the entry of a record with flagHeld back. Such a record is not dirty.
	flagLateWrite = flagRedo

	// flagsOfSlot are the flags that stay when a slot is released and used again.
	flagsOfSlot = flagInRereads | flagInFailures | flagInEvicted | flagInReleased
)

// cpuNone is the CPU of a record that no event has changed, or that events of several CPUs changed at about
// the same time.
const cpuNone = 1<<16 - 1

// meta is the state of a record or of a free slot besides key and value: 40 bytes without pointers. The
// lock of the table protects it.
type meta struct {
	// version is the version of the record, 0 for an unversioned record.
	version Version
	// seq is the position of the record in the order, unique and above 0. It is 0 for an unversioned
	// record, for a new slot and for the head of a list. An expanded tombstone keeps its position, although
	// its slot is in no list.
	seq uint64
	// seen is the wall clock in nanoseconds of the newest evidence for the record: its last event, reread
	// or receipt, including those that modified nothing.
	seen int64
	// prev and next are the neighbours in the record's list. In a free slot next is the next free slot, or
	// 0.
	prev, next uint32
	// flags are the flags of the record and of the slot.
	flags flags
	// owner is the id of the owner, selfID for an unversioned record.
	owner OwnerID
	// cpuOrPeer is the CPU of the newest evidence, or cpuNone. With flagSuperseded, it is the OwnerID of the peer: see lastCPU.
	cpuOrPeer uint16
}

// metaSize is the size of meta in bytes.
const metaSize = 40

// is reports whether the record has at least one of the flags.
func (m *meta) is(f flags) bool { return m.flags&f != 0 }

// live reports whether the record is not a tombstone.
func (m *meta) live() bool { return m.flags&flagTombstone == 0 }

// The first two slots are the heads of the two lists. next is the first record of the list, and prev is the
// last one.
const (
	order       uint32 = 0
	unversioned uint32 = 1
	firstSlot   uint32 = 2
)

// slab stores the records in chunks. Growth moves no record, and the storage has no pointers that the
// garbage collector would follow. The lock of the table protects it.
type slab struct {
	// chunks has all chunks. A chunk never moves and is never released.
	chunks []chunk
	// shift is the binary logarithm of the number of slots of a chunk. It never changes.
	shift uint
	// mask is 2^shift-1. It selects the index in the chunk from a slot number.
	mask uint32
	// keySize is the size of a key in bytes.
	keySize int
	// stride is the size of key and value in bytes.
	stride int
	// allocated is the number of slots that were ever used, the two list heads included. It never
	// decreases.
	allocated uint32
	// free is the first free slot. The free slots are linked by meta.next. 0: none.
	free uint32
	// used is the number of slots with a record, the slot of an expanded tombstone included. The list heads
	// do not count.
	used int
}

// chunk is the storage of 2^shift slots.
type chunk struct {
	// meta has the meta of each slot.
	meta []meta
	// data has the key and the value of each slot, stride bytes each.
	data []byte
}

const (
	// chunkTarget is the desired size in bytes of the keys and values of a chunk, unless fewer entries fit
	// into the kernel map. minChunkBits and maxChunkBits are the limits of slab.shift.
	chunkTarget  = 256 << 10
	minChunkBits = 6
	maxChunkBits = 12
)

// initSlab sets up a slab with the two list heads and without records. maxEntries is the capacity of the kernel
// map, 0 if it is unknown.
func (s *slab) initSlab(keySize, valueSize, maxEntries int) {
	s.keySize, s.stride = keySize, keySize+valueSize
	n := bits.Len(uint(chunkTarget/s.stride)) - 1
	if maxEntries > 0 {
		n = min(n, bits.Len(uint(maxEntries)))
	}
	s.shift = uint(min(max(n, minChunkBits), maxChunkBits))
	s.mask = 1<<s.shift - 1
	s.grow()
	s.allocated = firstSlot
	*s.meta(unversioned) = meta{prev: unversioned, next: unversioned}
}

// grow adds a chunk.
func (s *slab) grow() {
	n := 1 << s.shift
	s.chunks = append(s.chunks, chunk{meta: make([]meta, n), data: make([]byte, n*s.stride)})
}

// meta returns the meta of a slot. The pointer stays valid.
func (s *slab) meta(slot uint32) *meta {
	return &s.chunks[slot>>s.shift].meta[slot&s.mask]
}

// key returns the key of a slot. The bytes are borrowed from the slab.
func (s *slab) key(slot uint32) []byte {
	at := int(slot&s.mask) * s.stride
	return s.chunks[slot>>s.shift].data[at : at+s.keySize : at+s.keySize]
}

// value returns the value of a slot. The bytes are borrowed from the slab.
func (s *slab) value(slot uint32) []byte {
	at := int(slot&s.mask) * s.stride
	return s.chunks[slot>>s.shift].data[at+s.keySize : at+s.stride : at+s.stride]
}

// alloc returns a free slot. It is in no list, and its meta is zero except for the flags of the slot and
// cpuNone.
func (s *slab) alloc() uint32 {
	s.used++
	if slot := s.free; slot != 0 {
		m := s.meta(slot)
		s.free = m.next
		*m = meta{flags: m.flags & flagsOfSlot, cpuOrPeer: cpuNone}
		return slot
	}
	slot := s.allocated
	if int(slot>>s.shift) == len(s.chunks) {
		s.grow()
	}
	s.allocated++
	s.meta(slot).cpuOrPeer = cpuNone
	return slot
}

// release frees a slot. The slot must be in no list.
func (s *slab) release(slot uint32) {
	m := s.meta(slot)
	*m = meta{flags: m.flags&flagsOfSlot | flagFree, next: s.free}
	s.free = slot
	s.used--
}

// slabBytes returns the memory of all chunks in bytes.
func (s *slab) slabBytes() uint64 {
	n := uint64(len(s.chunks)) << s.shift
	return n*uint64(s.stride+metaSize) + uint64(cap(s.chunks))*48
}

// link adds a slot at the tail of a list.
func (s *slab) link(list, slot uint32) {
	end, m := s.meta(list), s.meta(slot)
	m.prev, m.next = end.prev, list
	s.meta(end.prev).next = slot
	end.prev = slot
}

// cut removes a slot from its list.
func (s *slab) cut(slot uint32) {
	m := s.meta(slot)
	s.meta(m.prev).next = m.next
	s.meta(m.next).prev = m.prev
}
