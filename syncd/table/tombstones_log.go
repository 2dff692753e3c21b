package table

import (
	"bytes"
	"math/bits"
	"slices"
	"sort"

	"github.com/zeebo/xxh3"
)

// compactBit distinguishes the number of a compact tombstone from the number of a slot.
const compactBit uint32 = 1 << 31

// tombLog stores compact tombstones in the order of their positions. Each costs 14 bytes, its key, and 7.5
// to 9 bytes of index. The log stores the times after which tombstones may be forgotten for runs of
// tombstones. The lock of the table protects it. See tombstones_compact.go.
type tombLog struct {
	// seed is Options.Seed. It never changes.
	seed uint64
	// keySize is the size of a key in bytes. It never changes.
	keySize int
	// shift is the binary logarithm of the number of entries of a chunk. It never changes.
	shift uint

	// chunks has the chunks in the order of positions. Each has a live entry.
	chunks []*tombChunk
	// byID has each chunk of chunks at its id. Nil: the id is in free.
	byID []*tombChunk
	// free has the ids below len(byID) without a chunk.
	free []uint32
	// spare is an empty chunk for the next tail, or nil.
	spare *tombChunk
	// n is the number of live entries.
	n int
	// used is the number of entries, dead ones included.
	used int
	// last is the position of the entry that was added last. It never decreases.
	last uint64
	// mergeNext is the index in chunks of the next pair that merge looks at.
	mergeNext int
	// granule is the maximum length in nanoseconds of a run. The tombstones of a run are forgotten
	// together.
	granule int64
	// index has the number of each live entry, without compactBit.
	index tombIndex
}

// tombChunk is a part of the log. An entry keeps its index until the chunk is merged with another one.
type tombChunk struct {
	// id is the index in tombLog.byID while the chunk is in use.
	id uint32
	// gen is the generation. It increases when entries change their indexes or the chunk is reused.
	gen uint32
	// head is the index of an entry. All entries before it are dead.
	head int
	// n is the number of entries, dead ones included. Those from n on are unused.
	n int
	// live is the number of live entries. It is above 0 while the chunk is in tombLog.chunks.
	live int
	// base is the position of the first entry ever added since the chunk was taken into use. No entry has a
	// lower position.
	base uint64

	// versions has the version of each entry.
	versions []Version
	// places has the position of each entry as the distance from base, shifted left by tombBits. The lower
	// tombBits bits are the flags tombDead to tombPacket. Positions increase.
	places []uint32
	// owners has the owner of each entry.
	owners []OwnerID
	// keys has the keys of the entries, one after the other.
	keys []byte
	// runs has the runs in the order of their first entries. The first run starts at entry 0.
	runs []tombRun
}

// tombRun is the run of entries from first up to the next run.
type tombRun struct {
	// seen is the latest wall clock in nanoseconds at which one of its entries, or of the entries before
	// them in the chunk, was seen.
	seen int64
	// since is the wall clock in nanoseconds at which the first entry was seen.
	since int64
	// first is the index of the first entry.
	first int
}

const (
	tombDead     = 1 << iota // superseded or forgotten
	tombExpired              // flagExpired
	tombWritten              // flagWritten
	tombInferred             // flagInferred
	tombPacket               // flagPacketDelete

	// tombBits is the number of flags in tombChunk.places.
	tombBits = 5
	// tombRunLen is the size of a tombRun in bytes.
	tombRunLen = 24
)

// init sets up a log without entries.
func (l *tombLog) init(o *Options) {
	l.seed, l.keySize = o.Seed, o.KeySize
	const meta = 14
	n := bits.Len(uint(chunkTarget/(meta+o.KeySize))) - 1
	l.shift = uint(min(max(n, minChunkBits), maxChunkBits))
	l.granule = max(min(int64(o.TombstoneGrace), int64(o.TombstoneTTL))/16, int64(o.TombstoneTTL)/4096)
	l.index.init()
}

// seq returns the position of entry i.
func (c *tombChunk) seq(i int) uint64 { return c.base + uint64(c.places[i]>>tombBits) }

// is reports whether entry i has a flag.
func (c *tombChunk) is(i int, bit uint32) bool { return c.places[i]&bit != 0 }

// end returns the position of the last entry. The chunk must have one.
func (c *tombChunk) end() uint64 { return c.seq(c.n - 1) }

// seen returns the wall clock in nanoseconds from which the lifetime of an entry counts.
func (c *tombChunk) seen(i int) int64 {
	r := sort.Search(len(c.runs), func(r int) bool { return c.runs[r].first > i }) - 1
	return c.runs[r].seen
}

// key returns the key of entry i. The bytes are borrowed from the log.
func (l *tombLog) key(c *tombChunk, i int) []byte {
	at := i * l.keySize
	return c.keys[at : at+l.keySize : at+l.keySize]
}

// at returns the chunk and the index of an entry. number may have compactBit.
func (l *tombLog) at(number uint32) (c *tombChunk, i int) {
	number &^= compactBit
	return l.byID[number>>l.shift], int(number & (1<<l.shift - 1))
}

// number returns the number of entry i, without compactBit.
func (l *tombLog) number(c *tombChunk, i int) uint32 { return c.id<<l.shift | uint32(i) }

// hashOf returns the index hash of an entry's key. number may have compactBit.
func (l *tombLog) hashOf(number uint32) uint32 {
	c, i := l.at(number)
	return uint32(xxh3.HashSeed(l.key(c, i), l.seed) >> 32)
}

// find returns the number of the tombstone of a key, with compactBit, or 0 if the log has none.
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

// tombEntry is an entry of the log without its key.
type tombEntry struct {
	// seq is the position of the tombstone.
	seq uint64
	// seen is the wall clock in nanoseconds of the newest evidence for the tombstone.
	seen int64
	// version is the version of the tombstone, above 0.
	version Version
	// owner is the owner of the tombstone.
	owner OwnerID
	// bits are those of tombFlags.
	bits uint32
}

// add appends a tombstone. Its position must be above all others, and the log must not have the key.
func (l *tombLog) add(e *tombEntry, hash uint32, key []byte) {
	c := l.tail(e.seq)
	l.put(c, e, key)
	l.last = e.seq
	l.n++
	l.insert(hash, l.number(c, c.n-1))
}

// tail returns the chunk for an entry with the given position. It takes a new chunk into use if necessary.
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

// put writes an entry after the last one of a chunk. It does not update l.n or the index.
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

// note stores the time at which an entry was seen.
func (c *tombChunk) note(i int, seen, granule int64) {
	n := len(c.runs)
	switch {
	case n == 0 || seen > c.runs[n-1].since+granule:
		c.runs = append(c.runs, tombRun{seen: seen, since: seen, first: i})
	default:
		c.runs[n-1].seen = max(c.runs[n-1].seen, seen)
	}
}

// remove marks a tombstone as dead and removes it from the index. It drops the chunk if no live entry
// remains.
func (l *tombLog) remove(number, hash uint32) {
	l.index.remove(hash, number&^compactBit)
	c, i := l.at(number)
	c.places[i] |= tombDead
	l.n--
	if c.live--; c.live == 0 {
		l.drop(slices.Index(l.chunks, c))
	}
}

// drop removes a chunk from the log. The log keeps it as the spare chunk.
func (l *tombLog) drop(at int) {
	c := l.chunks[at]
	l.chunks = slices.Delete(l.chunks, at, at+1)
	if at < l.mergeNext {
		l.mergeNext--
	}
	l.byID[c.id] = nil
	l.free = append(l.free, c.id)
	l.used -= c.n
	c.reset()
	l.spare = c
}

// reset removes all entries of a chunk.
func (c *tombChunk) reset() { c.gen, c.head, c.n, c.live, c.runs = c.gen+1, 0, 0, 0, c.runs[:0] }

// oldest returns the first live entry. The log must have one.
func (l *tombLog) oldest() (c *tombChunk, i int) {
	c = l.chunks[0]
	for c.is(c.head, tombDead) {
		c.head++
	}
	return c, c.head
}

// after returns the first entry with a position above the given one, or nil if there is none. The entry may
// be dead.
func (l *tombLog) after(pos uint64) (c *tombChunk, i int) {
	at := sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].end() > pos })
	if at == len(l.chunks) {
		return nil, 0
	}
	c = l.chunks[at]
	return c, sort.Search(c.n, func(i int) bool { return c.seq(i) > pos })
}

// merge moves the entries of two neighbouring chunks into the first of them if they fit. Repeated calls
// keep the dead entries below half of all entries, not counting those of a few chunks. Each call looks at
// the next pair and returns true if there is another one. merge never touches the last chunk, which still
// grows.
func (l *tombLog) merge() (more bool) {
	const few = 4
	if l.used <= 2*l.n+few<<l.shift || l.mergeNext+2 >= len(l.chunks) {
		l.mergeNext = 0
		return false
	}
	a, b := l.chunks[l.mergeNext], l.chunks[l.mergeNext+1]
	const span = 1 << (32 - tombBits)
	if a.live+b.live > len(a.places) || b.end()-a.base >= span {
		l.mergeNext++
		return true
	}
	runs, n := a.runs, a.n
	l.used -= n
	a.reset()
	a.runs = nil
	l.move(a, a, runs, n)
	l.move(a, b, b.runs, b.n)
	l.drop(l.mergeNext + 1)
	return true
}

// move appends the live entries of a chunk to another chunk, or to the same chunk after a reset. The
// entries in the index get their new numbers.
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

// bytes returns the memory of the log in bytes.
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
