package table

// In a large table nearly each step of each change waits for memory: to find the
// key, to compare it, to copy the value. Waiting for one after the other is most of
// what a change costs. What this file does is to read ahead, so that the waits of
// many records overlap. It changes nothing.

// WarmKeys is how many keys Warm takes at a time: enough for the waits to overlap,
// and few enough for what they brought to be there still when it is used.
const WarmKeys = 64

const (
	// warmAhead is how many records a walk reads ahead.
	warmAhead = 32
	// warmBytes bounds what is read of a record.
	warmBytes = 512
	cacheLine = 64
)

// Warm reads what the table has of the given keys, WarmKeys at most, so that the
// changes of these keys that follow find it in the processor's cache. Keys of a
// wrong size do no harm.
func (tx *Tx) Warm(keys [][]byte) {
	t := tx.t
	var hashes, slots [WarmKeys]uint32
	keys = keys[:min(len(keys), WarmKeys)]
	var sum uint64
	for i, key := range keys {
		hashes[i] = t.hash(key)
		sum += uint64(t.index.first(hashes[i]).slot)
	}
	for i := range keys {
		slots[i] = t.index.guess(hashes[i])
		sum += t.meta(slots[i]).seq + t.warmRecord(slots[i])
	}
	for i := range keys {
		m := t.meta(slots[i]) // its neighbours close up when it moves to the tail
		sum += t.meta(m.prev).seq + t.meta(m.next).seq
	}
	t.warmth += sum
}

// first returns the entry where the search for a hash begins.
func (x *index) first(hash uint32) entry {
	g := x.segment(hash)
	return g.entries[hash&uint32(len(g.entries)-1)]
}

// guess returns the slot of the first key with a hash, 0 if there is none.
func (x *index) guess(hash uint32) uint32 {
	g := x.segment(hash)
	mask := uint32(len(g.entries) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if e := g.entries[i]; e.hash == hash || e.slot == 0 {
			return e.slot
		}
	}
}

// warmRecord reads key and value of a slot. What it returns means nothing, but has
// to be used, lest the compiler leave the reading out.
func (s *slab) warmRecord(slot uint32) (sum uint64) {
	at := int(slot&s.mask) * s.stride
	data := s.chunks[slot>>s.shift].data[at : at+min(s.stride, warmBytes)]
	for i := 0; i < len(data); i += cacheLine {
		sum += uint64(data[i])
	}
	return sum + uint64(data[len(data)-1])
}

// trail remembers by position which slots were put at the tail last. To walk the
// list is to wait at each record for the next one's place; the trail knows many
// places at once.
type trail struct {
	slots []uint32 // a power of two
}

const (
	minTrail = 1 << 8
	maxTrail = 1 << 16
)

// note remembers a slot that was given the position seq in a table of that many
// records.
func (r *trail) note(seq uint64, slot uint32, records int) {
	if len(r.slots) < maxTrail && records >= len(r.slots) {
		r.grow(seq)
	}
	r.slots[seq&uint64(len(r.slots)-1)] = slot
}

func (r *trail) grow(seq uint64) {
	old := r.slots
	r.slots = make([]uint32, max(minTrail, 4*len(old)))
	for p := seq - min(seq, uint64(len(old))); p < seq; p++ {
		r.slots[p&uint64(len(r.slots)-1)] = old[p&uint64(len(old)-1)]
	}
}

func (r *trail) bytes() uint64 { return uint64(len(r.slots)) * 4 }

// lookAhead reads the records that a cursor comes to next, if it is close enough
// to the tail, and of those that wanted picks also key and value.
func (c *Cursor) lookAhead(wanted func(*Table, *meta) bool) {
	t := c.t
	if c.pos < c.warm && c.warm-c.pos <= warmAhead {
		return
	}
	c.warm = min(c.pos+warmAhead, t.seq)
	size := uint64(len(t.trail.slots))
	if t.seq-c.pos >= size {
		return
	}
	near := t.trail.slots[c.warm&(size-1)] - t.trail.slots[(c.pos+1)&(size-1)]
	if uint64(near) == c.warm-c.pos-1 {
		return // new records lie side by side, and the processor sees that
	}
	var sum uint64
	for p := c.pos + 1; p <= c.warm; p++ {
		sum += t.meta(t.trail.slots[p&(size-1)]).seq
	}
	for p := c.pos + 1; p <= c.warm; p++ {
		slot := t.trail.slots[p&(size-1)]
		if m := t.meta(slot); m.seq == p && wanted(t, m) {
			sum += t.warmRecord(slot)
		}
	}
	t.warmth += sum
}

// streamed picks the records that this node may have to stream.
func streamed(t *Table, m *meta) bool {
	o := &t.owners.list[m.owner]
	return o.ours || o.gone
}

// unwritten picks the records that the kernel is to get.
func unwritten(_ *Table, m *meta) bool { return m.is(flagDirty) }
