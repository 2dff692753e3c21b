package table

// tombIndex finds the number of a compact tombstone by the hash of its key. Like index it is a
// directory of open-addressing segments. An entry has 6 bytes, and segments grow in small steps, so
// that at least two thirds of them are in use.
//
// An entry keeps 16 bits of the hash, its tag, which choose the place in the segment. A split needs
// more bits of the hash: it makes the hashes anew from the keys.
type tombIndex struct {
	dir   []*tombSegment
	shift uint // 32 - bits of the directory
	bytes uint64
}

type tombSegment struct {
	tags    []uint16 // 0: empty
	numbers []uint32
	used    int
	depth   uint // upper hash bits that its entries share
}

const (
	tombEntryBytes   = 6
	tombSegmentBytes = 64
)

// tombSegments are the sizes of segments. Go's allocator has size classes for 2 and 4 times each.
var tombSegments = [...]int{16, 64, 128, 256, 512, 768, 1024, 1152, 1344, 1536, 1728, 2048}

// fullTombs is how many entries a segment of a size holds at most.
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
		size *= 2 // a segment that cannot be split any more
	}
	return size
}

func tagOf(hash uint32) uint16 { return max(uint16(hash), 1) }

func (x *tombIndex) init() {
	x.shift = 32
	x.dir = []*tombSegment{{}}
	x.bytes = 8 + tombSegmentBytes
	x.resize(x.dir[0], 0)
}

func (x *tombIndex) segment(hash uint32) *tombSegment { return x.dir[hash>>x.shift] }

func (g *tombSegment) home(tag uint16) int { return int(uint32(tag) * uint32(len(g.tags)) >> 16) }

func (g *tombSegment) after(i int) int {
	if i++; i == len(g.tags) {
		return 0
	}
	return i
}

// distance returns how many places j is behind i.
func (g *tombSegment) distance(i, j int) int {
	if j < i {
		return j + len(g.tags) - i
	}
	return j - i
}

// resize gives a segment the size for a number of entries.
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

func (g *tombSegment) insert(tag uint16, number uint32) {
	i := g.home(tag)
	for g.tags[i] != 0 {
		i = g.after(i)
	}
	g.tags[i], g.numbers[i] = tag, number
	g.used++
}

// insert adds a tombstone whose key the index does not hold.
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

// place returns where a segment has a tombstone. No place between there and the home of its tag is empty.
func (g *tombSegment) place(hash, number uint32) int {
	i := g.home(tagOf(hash))
	for g.numbers[i] != number {
		i = g.after(i)
	}
	return i
}

// remove takes a tombstone out and closes the gap. A segment that is nearly empty shrinks.
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

// split moves the entries of g whose next hash bit is set to a segment of their own. hash is one
// that leads to g.
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

// splitUpper marks entries during a split. Numbers in the index are without compactBit.
const splitUpper = compactBit

func (x *tombIndex) double() {
	dir := make([]*tombSegment, 2*len(x.dir))
	for i, g := range x.dir {
		dir[2*i], dir[2*i+1] = g, g
	}
	x.bytes += uint64(len(x.dir)) * 8
	x.dir = dir
	x.shift--
}
