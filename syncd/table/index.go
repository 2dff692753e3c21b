package table

// index finds the slot of a key by its hash. It is a directory of small open-addressing segments, and one
// insert splits at most one segment (extendible hashing). An insert therefore never rehashes more than one
// segment.
//
// An entry has 32 bits of the hash. The upper bits select the segment, and the lower bits select the place
// in the segment. Comparing all 32 bits avoids most comparisons of keys. The lock of the table protects the
// index.
type index struct {
	// dir has 2^(32-shift) elements. A segment of depth d fills 2^(32-shift-d) neighbouring elements.
	dir []*segment
	// shift is 32 minus the number of hash bits that select an element of dir.
	shift uint
	// count is the number of entries, one for each record in a slot. The slot of an expanded tombstone has
	// none.
	count int
	// bytes is the memory of the directory and all segments in bytes.
	bytes uint64
	// scratch is the buffer that split uses for the old entries.
	scratch []entry
}

// entry is one place of a segment.
type entry struct {
	// hash is the index hash of the slot's key.
	hash uint32
	// slot is the slot of the record. 0: the place is empty.
	slot uint32
}

// segment is an open-addressing hash table with linear probing. No place between an entry and the home of
// its hash is empty.
type segment struct {
	// entries has a power of two elements, of which at least a quarter is empty.
	entries []entry
	// used is the number of entries that are not empty.
	used int
	// depth is the number of upper hash bits that all its entries share.
	depth uint
}

const (
	// firstSegment is the number of places of the first segment.
	firstSegment = 16
	// fullSegment is the number of places from which on a segment is split instead of enlarged.
	fullSegment = 1024
	// maxDepth limits the size of the directory. A segment at this depth grows instead of being split. It
	// is slower then, but correct for every hash.
	maxDepth = 16

	// entryBytes is the size of an entry in bytes, segmentBytes that of a segment without its entries.
	entryBytes   = 8
	segmentBytes = 48
)

// init sets up an index without entries.
func (x *index) init() {
	x.shift = 32
	x.dir = []*segment{x.newSegment(firstSegment, 0)}
	x.bytes += 8
}

// newSegment returns a segment with n places and counts its memory.
func (x *index) newSegment(n int, depth uint) *segment {
	x.bytes += uint64(n)*entryBytes + segmentBytes
	return &segment{entries: make([]entry, n), depth: depth}
}

// segment returns the segment of a hash.
func (x *index) segment(hash uint32) *segment {
	return x.dir[hash>>x.shift]
}

// insert adds a slot. The index must not have an entry of the same key.
func (x *index) insert(hash, slot uint32) {
	g := x.segment(hash)
	for g.used >= len(g.entries)/4*3 {
		x.grow(g, hash)
		g = x.segment(hash)
	}
	g.insert(entry{hash, slot})
	x.count++
}

// insert adds an entry. The segment must have an empty place.
func (g *segment) insert(e entry) {
	mask := uint32(len(g.entries) - 1)
	i := e.hash & mask
	for g.entries[i].slot != 0 {
		i = (i + 1) & mask
	}
	g.entries[i] = e
	g.used++
}

// remove removes the entry of a slot and closes the gap, so that deletes leave no markers that need a
// cleanup. The index must have the entry.
func (x *index) remove(hash, slot uint32) {
	g := x.segment(hash)
	mask := uint32(len(g.entries) - 1)
	i := hash & mask
	for g.entries[i].slot != slot {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; g.entries[j].slot != 0; j = (j + 1) & mask {
		home := g.entries[j].hash & mask
		// An entry may fill the gap unless its home is behind the gap.
		if (j-home)&mask >= (j-i)&mask {
			g.entries[i] = g.entries[j]
			i = j
		}
	}
	g.entries[i] = entry{}
	g.used--
	x.count--
}

// grow splits or enlarges a full segment. hash is one that leads to g.
func (x *index) grow(g *segment, hash uint32) {
	if len(g.entries) >= fullSegment && g.depth < maxDepth {
		x.split(g, hash)
		return
	}
	old := g.entries
	g.entries = make([]entry, 2*len(old))
	x.bytes += uint64(len(old)) * entryBytes
	g.refill(old)
}

// refill inserts all entries of from that are not empty. The segment must be empty.
func (g *segment) refill(from []entry) {
	g.used = 0
	for _, e := range from {
		if e.slot != 0 {
			g.insert(e)
		}
	}
}

// split moves the entries of g whose next hash bit is set to a new segment. hash is one that leads to g.
func (x *index) split(g *segment, hash uint32) {
	if g.depth == 32-x.shift {
		x.double()
	}
	bit := uint32(1) << (31 - g.depth)
	first := hash &^ (bit | (bit - 1)) // lowest hash of g
	g.depth++
	n := x.newSegment(len(g.entries), g.depth)
	x.scratch = append(x.scratch[:0], g.entries...)
	clear(g.entries)
	g.used = 0
	for _, e := range x.scratch {
		switch {
		case e.slot == 0:
		case e.hash&bit != 0:
			n.insert(e)
		default:
			g.insert(e)
		}
	}
	for i := (first | bit) >> x.shift; i <= (first|bit|(bit-1))>>x.shift; i++ {
		x.dir[i] = n
	}
}

// double doubles the directory.
func (x *index) double() {
	dir := make([]*segment, 2*len(x.dir))
	for i, g := range x.dir {
		dir[2*i], dir[2*i+1] = g, g
	}
	x.bytes += uint64(len(x.dir)) * 8
	x.dir = dir
	x.shift--
}
