package table

// In a large table, most steps of a change wait for memory: the lookup of the key, the comparison of the
// key, and the copy of the value. The sum of these waits is the largest part of the cost of a change. The
// functions of this file read records ahead, so that the waits of many records overlap. They change no
// record.

// PrefetchBatch is the number of keys that Prefetch reads at a time. It is large enough for the waits to
// overlap, and small enough for the data to stay in the processor's cache until its use.
const PrefetchBatch = 64

const (
	// prefetchAhead is the number of records that a cursor reads ahead.
	prefetchAhead = 32
	// prefetchBytes limits the number of bytes that are read of a record.
	prefetchBytes = 512
	// cacheLine is the size of a cache line in bytes.
	cacheLine = 64
)

// Prefetch reads the records of the given keys, at most PrefetchBatch of them. Changes of these keys that
// follow find the records in the processor's cache. Keys of a wrong size are harmless.
func (tx *Tx) Prefetch(keys [][]byte) {
	t := tx.t
	var hashes, slots [PrefetchBatch]uint32
	keys = keys[:min(len(keys), PrefetchBatch)]
	var sum uint64
	for i, key := range keys {
		hashes[i] = t.hash(key)
		sum += uint64(t.index.homeEntry(hashes[i]).slot)
	}
	for i := range keys {
		slots[i] = t.index.candidate(hashes[i])
		sum += t.meta(slots[i]).seq + t.prefetchRecord(slots[i])
	}
	for i := range keys {
		m := t.meta(slots[i]) // a move to the tail also modifies its neighbours
		sum += t.meta(m.prev).seq + t.meta(m.next).seq
	}
	t.prefetchSink += sum
}

// homeEntry returns the index entry at which the search for a hash starts.
func (x *index) homeEntry(hash uint32) entry {
	g := x.segment(hash)
	return g.entries[hash&uint32(len(g.entries)-1)]
}

// candidate returns the slot of the first key with a hash, or 0 if there is none.
func (x *index) candidate(hash uint32) uint32 {
	g := x.segment(hash)
	mask := uint32(len(g.entries) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if e := g.entries[i]; e.hash == hash || e.slot == 0 {
			return e.slot
		}
	}
}

// prefetchRecord reads the key and the value of a slot. The result has no meaning. The caller uses it so
// that the compiler does not remove the reads.
func (s *slab) prefetchRecord(slot uint32) (sum uint64) {
	at := int(slot&s.mask) * s.stride
	data := s.chunks[slot>>s.shift].data[at : at+min(s.stride, prefetchBytes)]
	for i := 0; i < len(data); i += cacheLine {
		sum += uint64(data[i])
	}
	return sum + uint64(data[len(data)-1])
}

// recentSlots has the slots of the latest positions. A reader of the linked list waits for each record to
// find the next one. With recentSlots it finds the places of many records at once. The lock of the table
// protects it.
type recentSlots struct {
	// slots has the slot that got position p at index p modulo len(slots). The length is a power of two
	// between minRecent and maxRecent, or 0.
	slots []uint32
}

const (
	// minRecent and maxRecent are the limits of len(recentSlots.slots).
	minRecent = 1 << 8
	maxRecent = 1 << 16
)

// note stores the slot that got position seq. records is the number of records in slots of the table.
func (r *recentSlots) note(seq uint64, slot uint32, records int) {
	if len(r.slots) < maxRecent && records >= len(r.slots) {
		r.grow(seq)
	}
	r.slots[seq&uint64(len(r.slots)-1)] = slot
}

// grow quadruples the buffer and keeps its content.
func (r *recentSlots) grow(seq uint64) {
	old := r.slots
	r.slots = make([]uint32, max(minRecent, 4*len(old)))
	for p := seq - min(seq, uint64(len(old))); p < seq; p++ {
		r.slots[p&uint64(len(r.slots)-1)] = old[p&uint64(len(old)-1)]
	}
}

// bytes returns the memory of the buffer in bytes.
func (r *recentSlots) bytes() uint64 { return uint64(len(r.slots)) * 4 }

// prefetch reads the next records of a cursor if it is close enough to the tail. It also reads the keys and
// values of the records that wanted selects.
func (c *Cursor) prefetch(wanted func(*Table, *meta) bool) {
	t := c.t
	if c.pos < c.prefetched && c.prefetched-c.pos <= prefetchAhead {
		return
	}
	c.prefetched = min(c.pos+prefetchAhead, t.seq)
	size := uint64(len(t.recent.slots))
	if t.seq-c.pos >= size {
		return
	}
	near := t.recent.slots[c.prefetched&(size-1)] - t.recent.slots[(c.pos+1)&(size-1)]
	if uint64(near) == c.prefetched-c.pos-1 {
		return // new records are adjacent, and the processor prefetches them itself
	}
	var sum uint64
	for p := c.pos + 1; p <= c.prefetched; p++ {
		sum += t.meta(t.recent.slots[p&(size-1)]).seq
	}
	for p := c.pos + 1; p <= c.prefetched; p++ {
		slot := t.recent.slots[p&(size-1)]
		if m := t.meta(slot); m.seq == p && wanted(t, m) {
			sum += t.prefetchRecord(slot)
		}
	}
	t.prefetchSink += sum
}

// streamed selects the records that this node may have to send.
func streamed(t *Table, m *meta) bool {
	o := &t.owners.list[m.owner]
	return o.ours || o.gone
}

// unwritten selects the records that the writer has yet to write.
func unwritten(_ *Table, m *meta) bool { return m.is(flagDirty) }
