package table

// index finds the slot of a key by its hash. It is a directory of small
// open-addressing segments that are split one at a time (extendible hashing),
// so that no single insert ever rehashes more than one segment.
//
// An entry keeps 32 bits of the hash: the upper ones choose the segment, the
// lower ones the place in it, and all of them spare most key comparisons.
type index struct {
	dir     []*segment
	shift   uint // 32 - bits of the directory
	count   int
	bytes   uint64
	scratch []entry
}

type entry struct {
	hash uint32
	slot uint32 // 0 = empty
}

type segment struct {
	entries []entry
	used    int
	depth   uint // upper hash bits that its entries share
}

const (
	firstSegment = 16
	fullSegment  = 1024
	// maxDepth bounds the directory. A segment that cannot be split any more
	// grows instead: slow, but right, whatever the hash does.
	maxDepth = 16

	entryBytes   = 8
	segmentBytes = 48
)

func (x *index) init() {
	x.shift = 32
	x.dir = []*segment{x.newSegment(firstSegment, 0)}
	x.bytes += 8
}

func (x *index) newSegment(n int, depth uint) *segment {
	x.bytes += uint64(n)*entryBytes + segmentBytes
	return &segment{entries: make([]entry, n), depth: depth}
}

func (x *index) segment(hash uint32) *segment {
	return x.dir[hash>>x.shift]
}

// insert adds a slot whose key the index does not hold.
func (x *index) insert(hash, slot uint32) {
	g := x.segment(hash)
	for g.used >= len(g.entries)/4*3 {
		x.grow(g, hash)
		g = x.segment(hash)
	}
	g.insert(entry{hash, slot})
	x.count++
}

func (g *segment) insert(e entry) {
	mask := uint32(len(g.entries) - 1)
	i := e.hash & mask
	for g.entries[i].slot != 0 {
		i = (i + 1) & mask
	}
	g.entries[i] = e
	g.used++
}

// remove takes a slot out and closes the gap, so that deletes leave no marks
// behind that would have to be cleaned up.
func (x *index) remove(hash, slot uint32) {
	g := x.segment(hash)
	mask := uint32(len(g.entries) - 1)
	i := hash & mask
	for g.entries[i].slot != slot {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; g.entries[j].slot != 0; j = (j + 1) & mask {
		home := g.entries[j].hash & mask
		// An entry may fill the gap unless its home lies behind the gap.
		if (j-home)&mask >= (j-i)&mask {
			g.entries[i] = g.entries[j]
			i = j
		}
	}
	g.entries[i] = entry{}
	g.used--
	x.count--
}

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

func (g *segment) refill(from []entry) {
	g.used = 0
	for _, e := range from {
		if e.slot != 0 {
			g.insert(e)
		}
	}
}

// split moves the entries of g whose next hash bit is set to a segment of their
// own. hash is one that leads to g.
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

func (x *index) double() {
	dir := make([]*segment, 2*len(x.dir))
	for i, g := range x.dir {
		dir[2*i], dir[2*i+1] = g, g
	}
	x.bytes += uint64(len(x.dir)) * 8
	x.dir = dir
	x.shift--
}
