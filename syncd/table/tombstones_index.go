package table

// tombIndex finds the number of a compact tombstone by the hash of its key. Like index it is a directory of
// open-addressing segments. An entry has 6 bytes. Segments grow in small steps, so that at least two thirds
// of the places are in use. The lock of the table protects the index.
//
// An entry has a tag, 16 bits of the hash. The tag selects the place in the segment. A split needs more
// bits of the hash and recomputes the hashes from the keys.
type tombIndex struct {
	// dir has 2^(32-shift) elements. A segment of depth d fills 2^(32-shift-d) neighbouring elements.
	dir []*tombSegment
	// shift is 32 minus the number of hash bits that select an element of dir.
	shift uint
	// bytes is the memory of the directory and all segments in bytes.
	bytes uint64
}

// tombSegment is an open-addressing hash table with linear probing. No place between an entry and the home
// of its tag is empty.
type tombSegment struct {
	// tags has the tag of each entry. 0: the place is empty.
	tags []uint16
	// numbers has the number in the log of each entry, without compactBit. It has the length of tags.
	numbers []uint32
	// used is the number of entries that are not empty, at most fullTombs(len(tags)).
	used int
	// depth is the number of upper hash bits that all its entries share.
	depth uint
}

const (
	// tombEntryBytes is the size of an entry in bytes, tombSegmentBytes that of a segment without its
	// entries.
	tombEntryBytes   = 6
	tombSegmentBytes = 64
)

// tombSegments are the sizes of segments in entries. Go's allocator has size classes for 2 and 4 times each
// of them.
var tombSegments = [...]int{16, 64, 128, 256, 512, 768, 1024, 1152, 1344, 1536, 1728, 2048}

// fullTombs returns the highest number of entries of a segment with size places.
func fullTombs(size int) int { return size / 5 * 4 }

// tombSegmentFor returns the size of a segment for a number of entries.
func tombSegmentFor(used int) int {
	for _, size := range tombSegments {
		if used <= fullTombs(size) {
			return size
		}
	}
	size := tombSegments[len(tombSegments)-1]
	for used > fullTombs(size) {
		size *= 2 // a segment at the maximum depth
	}
	return size
}

// tagOf returns the tag of a hash, which is never 0.
func tagOf(hash uint32) uint16 { return max(uint16(hash), 1) }

// init sets up an index without entries.
func (x *tombIndex) init() {
	x.shift = 32
	x.dir = []*tombSegment{{}}
	x.bytes = 8 + tombSegmentBytes
	x.resize(x.dir[0], 0)
}

// segment returns the segment of a hash.
func (x *tombIndex) segment(hash uint32) *tombSegment { return x.dir[hash>>x.shift] }

// home returns the place at which the search for a tag starts.
func (g *tombSegment) home(tag uint16) int { return int(uint32(tag) * uint32(len(g.tags)) >> 16) }

// after returns the place after i, with wrap-around.
func (g *tombSegment) after(i int) int {
	if i++; i == len(g.tags) {
		return 0
	}
	return i
}

// distance returns the number of places from i forward to j, with wrap-around.
func (g *tombSegment) distance(i, j int) int {
	if j < i {
		return j + len(g.tags) - i
	}
	return j - i
}

// resize gives a segment the size for a number of entries and inserts its entries again.
func (x *tombIndex) resize(g *tombSegment, used int) {
	size := tombSegmentFor(used)
	tags, numbers := g.tags, g.numbers
	g.tags, g.numbers, g.used = make([]uint16, size), make([]uint32, size), 0
	x.bytes += uint64(size)*tombEntryBytes - uint64(len(tags))*tombEntryBytes
	for i, tag := range tags {
		if tag != 0 {
			g.insert(tag, numbers[i])
		}
	}
}

// insert adds an entry. The segment must have an empty place.
func (g *tombSegment) insert(tag uint16, number uint32) {
	i := g.home(tag)
	for g.tags[i] != 0 {
		i = g.after(i)
	}
	g.tags[i], g.numbers[i] = tag, number
	g.used++
}

// insert adds a tombstone. The index must not have an entry of the same key.
func (l *tombLog) insert(hash, number uint32) {
	x := &l.index
	g := x.segment(hash)
	for g.used == fullTombs(len(g.tags)) {
		if len(g.tags) >= tombSegments[len(tombSegments)-1] && g.depth < maxDepth {
			l.split(g, hash)
			g = x.segment(hash)
		} else {
			x.resize(g, g.used+1)
		}
	}
	g.insert(tagOf(hash), number)
}

// place returns the place of a tombstone in its segment. The segment must have it. No place between the
// home of its tag and that place is empty.
func (g *tombSegment) place(hash, number uint32) int {
	i := g.home(tagOf(hash))
	for g.numbers[i] != number {
		i = g.after(i)
	}
	return i
}

// remove removes a tombstone and closes the gap. It shrinks a segment that is nearly empty.
func (x *tombIndex) remove(hash, number uint32) {
	g := x.segment(hash)
	i := g.place(hash, number)
	for j := g.after(i); g.tags[j] != 0; j = g.after(j) {
		// An entry may fill the gap unless its home is behind the gap.
		if g.distance(g.home(g.tags[j]), j) >= g.distance(i, j) {
			g.tags[i], g.numbers[i] = g.tags[j], g.numbers[j]
			i = j
		}
	}
	g.tags[i] = 0
	if g.used--; 4*g.used < len(g.tags) && 2*tombSegmentFor(2*g.used) <= len(g.tags) {
		x.resize(g, 2*g.used)
	}
}

// split moves the entries of g whose next hash bit is set to a new segment. hash is one that leads to g.
func (l *tombLog) split(g *tombSegment, hash uint32) {
	x := &l.index
	if g.depth == 32-x.shift {
		x.double()
	}
	bit := uint32(1) << (31 - g.depth)
	first := hash &^ (bit | (bit - 1)) // lowest hash of g
	tags, numbers := g.tags, g.numbers
	n := &tombSegment{depth: g.depth + 1}
	g.depth++
	x.bytes += tombSegmentBytes
	g.tags, g.numbers = nil, nil
	x.bytes -= uint64(len(tags)) * tombEntryBytes
	upper := 0
	for i, tag := range tags {
		if tag != 0 && l.hashOf(numbers[i])&bit != 0 {
			numbers[i] |= splitUpper
			upper++
		}
	}
	x.resize(n, upper)
	x.resize(g, g.used-upper)
	for i, tag := range tags {
		switch {
		case tag == 0:
		case numbers[i]&splitUpper != 0:
			n.insert(tag, numbers[i]&^splitUpper)
		default:
			g.insert(tag, numbers[i])
		}
	}
	for i := (first | bit) >> x.shift; i <= (first|bit|(bit-1))>>x.shift; i++ {
		x.dir[i] = n
	}
}

// splitUpper marks entries during a split. It is free because numbers in the index lack compactBit.
const splitUpper = compactBit

// double doubles the directory.
func (x *tombIndex) double() {
	dir := make([]*tombSegment, 2*len(x.dir))
	for i, g := range x.dir {
		dir[2*i], dir[2*i+1] = g, g
	}
	x.bytes += uint64(len(x.dir)) * 8
	x.dir = dir
	x.shift--
}
