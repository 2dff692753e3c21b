package table

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// slots returns the slots in the index and verifies that each entry can be found.
func (x *index) slots(tb interface{ Fatalf(string, ...any) }) map[uint32]uint32 {
	all := make(map[uint32]uint32)
	for i := range x.dir {
		g := x.dir[i]
		if i > 0 && g == x.dir[i-1] {
			continue
		}
		used := 0
		for _, e := range g.entries {
			if e.slot == 0 {
				continue
			}
			used++
			all[e.slot] = e.hash
			if x.segment(e.hash) != g {
				tb.Fatalf("hash %x: found in the wrong segment", e.hash)
			}
			mask := uint32(len(g.entries) - 1)
			for j := e.hash & mask; g.entries[j].slot != e.slot; j = (j + 1) & mask {
				if g.entries[j].slot == 0 {
					tb.Fatalf("slot %d: not found", e.slot)
				}
			}
		}
		if used != g.used || used > len(g.entries)/4*3 {
			tb.Fatalf("segment counts %d, holds %d of %d", g.used, used, len(g.entries))
		}
	}
	return all
}

func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x index
		x.init()
		want := make(map[uint32]uint32)
		// Few hash bits cause collisions and segments that fill unevenly.
		mask := rapid.SampledFrom([]uint32{1<<32 - 1, 0xfff00000, 0x3ff, 0x80000001}).Draw(t, "mask")
		slot := uint32(0)
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			n := rapid.IntRange(0, 3000).Draw(t, "inserts")
			seed := rapid.Uint32().Draw(t, "seed")
			for i := range uint32(n) {
				slot++
				h := (seed + i) * 2654435761 & mask
				x.insert(h, slot)
				want[slot] = h
			}
			gone := rapid.IntRange(0, len(want)).Draw(t, "removes")
			for s := uint32(1); s <= slot && gone > 0; s++ {
				if h, ok := want[s]; ok {
					x.remove(h, s)
					delete(want, s)
					gone--
				}
			}
			if got := x.slots(t); !maps.Equal(got, want) || x.count != len(want) {
				t.Fatalf("%d entries, counted %d, want %d", len(got), x.count, len(want))
			}
		}
	})
}

// TestIndexOfOneHash checks the worst case: all entries have the same hash.
func TestIndexOfOneHash(t *testing.T) {
	var x index
	x.init()
	for s := range uint32(2000) {
		x.insert(0xdeadbeef, s+1)
	}
	if n := len(x.slots(t)); n != 2000 {
		t.Fatalf("entries: got %d, want 2000", n)
	}
	if len(x.dir) > 1<<maxDepth {
		t.Fatalf("directory: got %d places, want at most %d", len(x.dir), 1<<maxDepth)
	}
	for s := range uint32(2000) {
		x.remove(0xdeadbeef, s+1)
	}
	if n := len(x.slots(t)); n != 0 || x.count != 0 {
		t.Fatalf("entries after their removal: got %d, counted %d, want 0", n, x.count)
	}
}

func TestFifo(t *testing.T) {
	var q fifo[int]
	next, want := 0, 0
	for round := range 5000 {
		for range 1 + round%7 {
			q.push(next)
			next++
		}
		for range 1 + round%6 {
			if q.len() == 0 {
				break
			}
			if p := q.peek(); p != want {
				t.Fatalf("peek: got %d, want %d", p, want)
			}
			if v := q.pop(); v != want {
				t.Fatalf("pop: got %d, want %d", v, want)
			}
			want++
		}
		if q.len() != next-want {
			t.Fatalf("length: got %d, want %d", q.len(), next-want)
		}
	}
	for q.len() > 0 {
		q.pop()
	}
	if q.bytes(8) > 4*fifoChunk*8 {
		t.Fatalf("empty queue: got %d bytes, want at most %d", q.bytes(8), 4*fifoChunk*8)
	}
}
