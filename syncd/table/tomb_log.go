package table

import (
	"bytes"
	"math/bits"
	"slices"
	"sort"

	"github.com/zeebo/xxh3"
)

// compactBit distinguishes the numbers of compact tombstones from those of slots.
const compactBit uint32 = 1 << 31

// tombLog stores compact tombstones in the order of their positions: 14 bytes and the key of each,
// and 7.5 to 9 of its index. The time at which a tombstone may be forgotten is kept for runs of
// them. See compact.go.
type tombLog struct {
	seed    uint64
	keySize int
	shift   uint // entries of a chunk, as a power of two

	chunks []*tombChunk // in the order of positions; each has a live entry
	byID   []*tombChunk // nil: the id is in free
	free   []uint32
	spare  *tombChunk
	n      int    // live entries
	used   int    // entries, dead ones included
	last   uint64 // highest position ever
	merged int    // where the search for chunks to merge has got to
	// granule is how long in nanoseconds a run is: its tombstones are forgotten together.
	granule int64
	index   tombIndex
}

// tombChunk is a part of the log. Its entries stay in place until it is merged with another one.
type tombChunk struct {
	id   uint32
	gen  uint32 // changes when entries change places
	head int    // no entry before is live
	n    int    // entries
	live int
	base uint64 // of positions

	versions []Version
	// places have the position above base, above tombBits bits of flags.
	places []uint32
	owners []OwnerID
	keys   []byte
	runs   []tombRun
}

// tombRun are the entries from first on, up to the next run. seen is the latest time at which one of
// them, or of those before them, was seen.
type tombRun struct {
	seen  int64
	since int64 // of the first one
	first int
}

const (
	tombDead    = 1 << iota // superseded or forgotten
	tombExpired             // flagExpired
	tombWritten             // flagWritten

	tombBits   = 3
	tombRunLen = 24
)

func (l *tombLog) init(o *Options) {
	l.seed, l.keySize = o.Seed, o.KeySize
	const meta = 14
	n := bits.Len(uint(chunkTarget/(meta+o.KeySize))) - 1
	l.shift = uint(min(max(n, minChunkBits), maxChunkBits))
	l.granule = max(min(int64(o.TombstoneGrace), int64(o.TombstoneTTL))/16, int64(o.TombstoneTTL)/4096)
	l.index.init()
}

func (c *tombChunk) seq(i int) uint64          { return c.base + uint64(c.places[i]>>tombBits) }
func (c *tombChunk) is(i int, bit uint32) bool { return c.places[i]&bit != 0 }

// end returns the position of the last entry.
func (c *tombChunk) end() uint64 { return c.seq(c.n - 1) }

// seen returns the time after which an entry may be forgotten.
func (c *tombChunk) seen(i int) int64 {
	r := sort.Search(len(c.runs), func(r int) bool { return c.runs[r].first > i }) - 1
	return c.runs[r].seen
}

func (l *tombLog) key(c *tombChunk, i int) []byte {
	at := i * l.keySize
	return c.keys[at : at+l.keySize : at+l.keySize]
}

// at returns the chunk of an entry and its place there. number may have compactBit.
func (l *tombLog) at(number uint32) (c *tombChunk, i int) {
	number &^= compactBit
	return l.byID[number>>l.shift], int(number & (1<<l.shift - 1))
}

func (l *tombLog) number(c *tombChunk, i int) uint32 { return c.id<<l.shift | uint32(i) }

func (l *tombLog) hashOf(number uint32) uint32 {
	c, i := l.at(number)
	return uint32(xxh3.HashSeed(l.key(c, i), l.seed) >> 32)
}

// find returns the number of the tombstone of a key, with compactBit; 0 if there is none.
func (l *tombLog) find(hash uint32, key []byte) uint32 {
	g := l.index.segment(hash)
	tag := tagOf(hash)
	for i := g.home(tag); g.tags[i] != 0; i = g.after(i) {
		if g.tags[i] != tag {
			continue
		}
		if c, at := l.at(g.numbers[i]); bytes.Equal(l.key(c, at), key) {
			return g.numbers[i] | compactBit
		}
	}
	return 0
}

// tombEntry is an entry, but for its key.
type tombEntry struct {
	seq     uint64
	seen    int64
	version Version
	owner   OwnerID
	bits    uint32
}

// add appends a tombstone. Its position must be above all others, and its key not in the log.
func (l *tombLog) add(e *tombEntry, hash uint32, key []byte) {
	c := l.tail(e.seq)
	l.put(c, e, key)
	l.last = e.seq
	l.n++
	l.insert(hash, l.number(c, c.n-1))
}

// tail returns the chunk that takes an entry with the given position.
func (l *tombLog) tail(seq uint64) *tombChunk {
	if n := len(l.chunks); n > 0 {
		if c := l.chunks[n-1]; c.n < len(c.places) && seq-c.base < 1<<(32-tombBits) {
			return c
		}
	}
	c := l.spare
	l.spare = nil
	if c == nil {
		n := 1 << l.shift
		c = &tombChunk{
			versions: make([]Version, n), places: make([]uint32, n), owners: make([]OwnerID, n), keys: make([]byte, n*l.keySize),
		}
	}
	if n := len(l.free); n > 0 {
		c.id, l.free = l.free[n-1], l.free[:n-1]
	} else {
		c.id = uint32(len(l.byID))
		l.byID = append(l.byID, nil)
	}
	l.byID[c.id] = c
	c.base = seq
	l.chunks = append(l.chunks, c)
	return c
}

// put writes an entry behind the last one of a chunk.
func (l *tombLog) put(c *tombChunk, e *tombEntry, key []byte) {
	i := c.n
	c.versions[i], c.owners[i] = e.version, e.owner
	c.places[i] = uint32(e.seq-c.base)<<tombBits | e.bits
	copy(l.key(c, i), key)
	c.note(i, e.seen, l.granule)
	c.n++
	c.live++
	l.used++
}

// note enters the time at which an entry was seen.
func (c *tombChunk) note(i int, seen, granule int64) {
	n := len(c.runs)
	switch {
	case n == 0 || seen > c.runs[n-1].since+granule:
		c.runs = append(c.runs, tombRun{seen: seen, since: seen, first: i})
	default:
		c.runs[n-1].seen = max(c.runs[n-1].seen, seen)
	}
}

// remove takes a tombstone out. Its chunk goes with the last one.
func (l *tombLog) remove(number, hash uint32) {
	l.index.remove(hash, number&^compactBit)
	c, i := l.at(number)
	c.places[i] |= tombDead
	l.n--
	if c.live--; c.live == 0 {
		l.drop(slices.Index(l.chunks, c))
	}
}

// drop gives a chunk up, of which the log keeps one to use again.
func (l *tombLog) drop(at int) {
	c := l.chunks[at]
	l.chunks = slices.Delete(l.chunks, at, at+1)
	if at < l.merged {
		l.merged--
	}
	l.byID[c.id] = nil
	l.free = append(l.free, c.id)
	l.used -= c.n
	c.reset()
	l.spare = c
}

func (c *tombChunk) reset() { c.gen, c.head, c.n, c.live, c.runs = c.gen+1, 0, 0, 0, c.runs[:0] }

// oldest returns the first live entry. The log must have one.
func (l *tombLog) oldest() (c *tombChunk, i int) {
	c = l.chunks[0]
	for c.is(c.head, tombDead) {
		c.head++
	}
	return c, c.head
}

// after returns the first entry with a position above the given one, nil if there is none.
func (l *tombLog) after(pos uint64) (c *tombChunk, i int) {
	at := sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].end() > pos })
	if at == len(l.chunks) {
		return nil, 0
	}
	c = l.chunks[at]
	return c, sort.Search(c.n, func(i int) bool { return c.seq(i) > pos })
}

// merge moves the entries of two neighbouring chunks into one if they fit, so that at most half of
// all entries are dead, and those of a few chunks. It looks at the next pair, and returns true if there
// is another. The chunk that grows stays as it is.
func (l *tombLog) merge() (more bool) {
	const few = 4
	if l.used <= 2*l.n+few<<l.shift || l.merged+2 >= len(l.chunks) {
		l.merged = 0
		return false
	}
	a, b := l.chunks[l.merged], l.chunks[l.merged+1]
	const span = 1 << (32 - tombBits)
	if a.live+b.live > len(a.places) || b.end()-a.base >= span {
		l.merged++
		return true
	}
	runs, n := a.runs, a.n
	l.used -= n
	a.reset()
	a.runs = nil
	l.move(a, a, runs, n)
	l.move(a, b, b.runs, b.n)
	l.drop(l.merged + 1)
	return true
}

// move appends the live entries of a chunk to another one, or to what it has kept itself.
func (l *tombLog) move(to, from *tombChunk, runs []tombRun, n int) {
	run := 0
	for i := range n {
		if run+1 < len(runs) && runs[run+1].first <= i {
			run++
		}
		if from.is(i, tombDead) {
			continue
		}
		e := tombEntry{
			seq: from.seq(i), seen: runs[run].seen, version: from.versions[i], owner: from.owners[i],
			bits: from.places[i] & (1<<tombBits - 1),
		}
		key := l.key(from, i)
		hash := uint32(xxh3.HashSeed(key, l.seed) >> 32)
		l.put(to, &e, key)
		g := l.index.segment(hash)
		g.numbers[g.place(hash, l.number(from, i))] = l.number(to, to.n-1)
	}
}

func (l *tombLog) bytes() uint64 {
	all := uint64(len(l.chunks))
	if l.spare != nil {
		all++
	}
	sum := all<<l.shift*uint64(14+l.keySize) + l.index.bytes + uint64(cap(l.byID)+cap(l.chunks))*8 + uint64(cap(l.free))*4
	for _, c := range l.chunks {
		sum += uint64(cap(c.runs)) * tombRunLen
	}
	return sum
}
