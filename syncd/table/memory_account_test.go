package table

import (
	"testing"
	"time"
)

// queueWithSpare returns a queue with one spare chunk and n chunks in use.
func queueWithSpare[T any](n int) (q fifo[T]) {
	var v T
	for range (n + 1) * fifoChunk {
		q.push(v)
	}
	for range fifoChunk {
		q.pop()
	}
	return q
}

// TestBytes: the reported memory of each part of a table is the sum of its allocations.
func TestBytes(t *testing.T) {
	chunks := queueWithSpare[uint32](2)
	var first fifo[uint32]
	first.push(1)
	var waiting settling
	waiting.pauses[1] = queueWithSpare[settlingKey](1)
	few := digestSums{sparse: make([]bucketSum, 3, 5)}
	all := digestSums{dense: new(Buckets)}
	nodes := digester{
		pairs: make([]wordPair, 7),
		nodes: map[string]*nodeDigest{"b": {digestSums: few}, "c": {digestSums: all, audit: &few}},
	}
	log := tombLog{
		shift: 6, keySize: 10, index: tombIndex{bytes: 7},
		byID: make([]*tombChunk, 4, 9), free: make([]uint32, 1, 3),
		chunks: append(make([]*tombChunk, 0, 11), &tombChunk{runs: make([]tombRun, 1, 5)}, &tombChunk{runs: make([]tombRun, 1, 3)}),
	}
	spared := log
	spared.spare = &tombChunk{}
	const logged = 7 + 20*8 + 3*4 + 8*tombRunLen
	for name, test := range map[string]struct{ got, want uint64 }{
		"empty queue":           {new(fifo[uint32]).bytes(4), 0},
		"queue of one chunk":    {first.bytes(4), 4*fifoChunk + uint64(cap(first.chunks))*8},
		"queue with a spare":    {chunks.bytes(4), 3*4*fifoChunk + uint64(cap(chunks.chunks))*8},
		"settling keys":         {waiting.bytes(), 2*24*fifoChunk + uint64(cap(waiting.pauses[1].chunks))*8},
		"few buckets":           {few.bytes(), 5 * 16},
		"all buckets":           {all.bytes(), 8 * DigestBuckets},
		"digests":               {nodes.bytes(), 3*160 + 7*48 + 2*5*16 + 8*DigestBuckets},
		"owners":                {(&owners{list: make([]ownerInfo, 3)}).bytes(), 3 * (24 + 64 + 64)},
		"records":               {(&slab{shift: 6, stride: 24, chunks: make([]chunk, 2, 5)}).slabBytes(), 2*64*(24+metaSize) + 5*48},
		"keys to be read":       {(&keyQueue{keys: make([]byte, 3, 20)}).bytes(), 20},
		"early deletes":         {make(earlyDeletes, 3, 4).bytes(), 4 * 16},
		"compact tombstones":    {log.bytes(), 2*64*(14+10) + logged},
		"log with a spare":      {spared.bytes(), 3*64*(14+10) + logged},
		"log without a chunk":   {(&tombLog{shift: 6, keySize: 10}).bytes(), 0},
		"records of a new slab": {new(slab).slabBytes(), 0},
	} {
		if test.got != test.want {
			t.Errorf("%s: %d bytes, want %d", name, test.got, test.want)
		}
	}
}

// TestMemoryBytesIsTheSum: Stats counts each part once, and multiplies the queues with the size of
// their elements.
func TestMemoryBytesIsTheSum(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "k")
	r.local(Accepted, 9*second, "update l v packet 0")
	r.local(Unchanged, 9*second, "delete m - packet 0")
	tab := r.tab
	tab.tombs, tab.evicted, tab.released = queueWithSpare[timedSlot](0), queueWithSpare[timedSlot](1), queueWithSpare[uint32](0)
	tab.rereads, tab.failures, tab.retries = queueWithSpare[uint32](0), queueWithSpare[uint32](2), queueWithSpare[uint32](0)
	tab.withVictim, tab.deferred = queueWithSpare[uint32](0), queueWithSpare[uint32](0)
	tab.settling.pauses[0] = queueWithSpare[settlingKey](0)
	tab.unknownRereads.push(pad("k", keySize))
	tab.recent.slots = make([]uint32, 5)
	tab.replaced.begin()
	tab.replaced.note(pad("k", keySize), nil, false)
	defer func() { // the checks that newRig makes at the end
		tab.evicted, tab.failures, tab.unknownRereads, tab.recent.slots = fifo[timedSlot]{}, fifo[uint32]{}, keyQueue{}, nil
	}()
	want := uint64(0)
	for part, n := range map[string]uint64{
		"records": tab.slabBytes(), "index": tab.index.bytes, "owners": tab.owners.bytes(), "digests": tab.digester.bytes(),
		"log": tab.log.bytes(), "early deletes": tab.earlyDeletes.bytes(), "unknown rereads": tab.unknownRereads.bytes(), "settling": tab.settling.bytes(),
		"replaced loads": keySize + replacedLoadBytes, "recent slots": 5 * 4, "tombs": tab.tombs.bytes(16), "new tombs": tab.newTombs.bytes(16), "evicted": tab.evicted.bytes(16), "released": tab.released.bytes(4),
		"rereads": tab.rereads.bytes(4), "failures": tab.failures.bytes(4), "retries": tab.retries.bytes(4),
		"withVictim": tab.withVictim.bytes(4), "deferred": tab.deferred.bytes(4),
	} {
		if n == 0 {
			t.Errorf("%s: got 0 bytes, want more", part)
		}
		want += n
	}
	if got := tab.Stats().MemoryBytes; got != want {
		t.Errorf("memory: got %d bytes, want %d (the sum of the parts)", got, want)
	}
}

// TestChunkSizes: chunks of the slab and of the log have about 256 kB, and 64 to 4096 entries. Those of the slab
// have fewer for a small map.
func TestChunkSizes(t *testing.T) {
	for _, test := range []struct{ size, maxEntries, shift int }{
		{1, 0, 12},
		{64, 0, 12},
		{65, 0, 11},
		{128, 0, 11},
		{129, 0, 10},
		{256, 0, 10},
		{257, 0, 9},
		{4096, 0, 6},
		{4097, 0, 6},
		{100_000, 0, 6},
		{64, 1, 6},
		{64, 63, 6},
		{64, 64, 7},
		{64, 1 << 20, 12},
		{4097, 1 << 20, 6},
	} {
		var s slab
		s.initSlab(test.size/2, test.size-test.size/2, test.maxEntries)
		if s.shift != uint(test.shift) || s.mask != 1<<test.shift-1 || len(s.chunks[0].meta) != 1<<test.shift {
			t.Errorf("chunk of records of %d bytes in a map of %d: got shift %d, mask %#x, %d entries, want shift %d, mask %#x and %d entries",
				test.size, test.maxEntries, s.shift, s.mask, len(s.chunks[0].meta), test.shift, 1<<test.shift-1, 1<<test.shift)
		}
		if test.size < 15 || test.maxEntries != 0 {
			continue
		}
		var l tombLog
		l.init(&Options{KeySize: test.size - 14})
		if l.shift != uint(test.shift) {
			t.Errorf("chunk of tombstones of %d bytes: got 2^%d entries, want 2^%d", test.size, l.shift, test.shift)
		}
	}
}

// TestGranule: a run of tombstones lasts a 16th of the shorter one of grace and lifetime, and at least
// a 4096th of the lifetime.
func TestGranule(t *testing.T) {
	for _, test := range []struct{ grace, ttl, want int64 }{
		{1600, 3200, 100}, {3200, 1600, 100}, {16, 4096 * 5, 5}, {16 * 7, 4096 * 5, 7},
	} {
		r := newRig(t, func(o *Options) {
			o.TombstoneTTL, o.TombstoneGrace = time.Duration(test.ttl), time.Duration(test.grace)
		})
		if got := r.tab.log.granule; got != test.want {
			t.Errorf("grace %d and lifetime %d: %d, want %d", test.grace, test.ttl, got, test.want)
		}
	}
}
