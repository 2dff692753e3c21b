package table

import "testing"

// bytesOf returns the memory of an index in bytes, computed from its directory.
func (x *index) bytesOf() (n uint64) {
	n = uint64(len(x.dir)) * 8
	for i, g := range x.dir {
		if i == 0 || g != x.dir[i-1] {
			n += uint64(len(g.entries))*entryBytes + segmentBytes
		}
	}
	return n
}

func (x *tombIndex) bytesOf() (n uint64) {
	n = uint64(len(x.dir)) * 8
	for i, g := range x.dir {
		if i == 0 || g != x.dir[i-1] {
			n += uint64(len(g.tags))*tombEntryBytes + tombSegmentBytes
		}
	}
	return n
}

// TestIndexGrows: a segment doubles when it is three quarters full. It is split when it has 1024
// places.
func TestIndexGrows(t *testing.T) {
	var x index
	x.init()
	for _, test := range []struct{ entries, places, segments int }{
		{0, 16, 1}, {12, 16, 1}, {13, 32, 1}, {24, 32, 1}, {25, 64, 1}, {384, 512, 1}, {385, 1024, 1}, {768, 1024, 1}, {769, 1024, 2},
	} {
		for x.count < test.entries {
			s := uint32(x.count) + 1
			x.insert(s*0x9e3779b1, s)
		}
		if n := len(x.dir[0].entries); n != test.places || len(x.dir) != test.segments {
			t.Errorf("%d entries: got %d segments of %d places, want %d of %d", test.entries, len(x.dir), n, test.segments, test.places)
		}
		if want := x.bytesOf(); x.bytes != want {
			t.Errorf("%d entries: counted memory: got %d bytes, want %d", test.entries, x.bytes, want)
		}
		x.slots(t)
	}
}

// TestIndexSplitsWideSegment: several places of the directory share a segment. A split divides the
// places in the middle, for any hash that causes it.
func TestIndexSplitsWideSegment(t *testing.T) {
	for last := range uint32(8) {
		var x index
		x.init()
		slot := uint32(0)
		fill := func(upper uint32, n int) {
			for range n {
				slot++
				x.insert(upper|slot*0x9e3779b1>>4, slot)
			}
		}
		fill(0, 800) // the directory has a place for each value of 4 or more bits
		if len(x.dir) < 16 {
			t.Fatalf("directory: got %d places, want at least 16", len(x.dir))
		}
		for p := range uint32(8) {
			fill(1<<31|p<<28, 96)
		}
		fill(1<<31|last<<28, 1) // the first split of the upper half
		if all := x.slots(t); len(all) != int(slot) {
			t.Errorf("split at %d: %d entries, want %d", last, len(all), slot)
		}
		if x.bytes != x.bytesOf() {
			t.Errorf("split at %d: counted memory: got %d bytes, want %d", last, x.bytes, x.bytesOf())
		}
		if half := len(x.dir) / 2; x.dir[half] == x.dir[half+half/2] || x.dir[half] != x.dir[half+half/2-1] {
			t.Errorf("split at %d: got a split outside the middle of the upper half, want it there", last)
		}
	}
}

// TestTombSegmentSizes: a segment has one of the fixed sizes, and is split above 1636 tombstones. It
// shrinks if this at least halves its size.
func TestTombSegmentSizes(t *testing.T) {
	for used, size := range map[int]int{
		0: 16, 12: 16, 13: 64, 48: 64, 49: 128, 100: 128, 101: 256, 1380: 1728, 1381: 2048, 1636: 2048,
		1637: 4096, 3276: 4096, 3277: 8192, 6552: 8192, 6553: 16384,
	} {
		if got := tombSegmentFor(used); got != size {
			t.Errorf("segment for %d: got %d places, want %d", used, got, size)
		}
	}
	var l tombLog
	l.init(&Options{KeySize: 8})
	x, g := &l.index, l.index.dir[0]
	hash := func(i int) uint32 { return uint32(i) * 0x9e3779b1 }
	check := func(size int) {
		t.Helper()
		if len(g.tags) != size || len(x.dir) != 1 {
			t.Errorf("%d tombstones: got %d segments of %d places, want %d", g.used, len(x.dir), len(g.tags), size)
		}
		if x.bytes != x.bytesOf() {
			t.Errorf("index: counted memory: got %d bytes, want %d", x.bytes, x.bytesOf())
		}
	}
	check(16)
	for _, step := range []struct{ used, size int }{{12, 16}, {13, 64}, {48, 64}, {49, 128}, {1380, 1728}, {1381, 2048}, {1636, 2048}} {
		for g.used < step.used {
			n := g.used + 1
			l.insert(hash(n), uint32(n))
		}
		check(step.size)
	}
	for _, step := range []struct{ used, size int }{{409, 2048}, {408, 1024}, {205, 1024}, {204, 512}, {103, 512}, {102, 256}, {7, 64}, {6, 16}, {0, 16}} {
		for g.used > step.used {
			n := g.used
			x.remove(hash(n), uint32(n))
		}
		check(step.size)
	}
}

// TestTombSegmentHome: the tags of a segment are distributed over all its places.
func TestTombSegmentHome(t *testing.T) {
	g := &tombSegment{tags: make([]uint16, 768)}
	for _, test := range []struct{ tag, home int }{{1, 0}, {1 << 15, 384}, {3 << 14, 576}, {1<<16 - 1, 767}} {
		if got := g.home(uint16(test.tag)); got != test.home {
			t.Errorf("home of tag %d: got %d, want %d", test.tag, got, test.home)
		}
	}
}

// addUpper adds n tombstones whose hashes have the given upper bits.
func (m *logModel) addUpper(upper uint32, bits uint, n int) {
	for range n {
		gap := uint64(1)
		for m.tab.hash(logKey(m.tab.seq+gap))>>(32-bits) != upper {
			gap++
		}
		m.add(gap)
	}
}

// TestTombIndexSplitsWideSegment checks the split of TestIndexSplitsWideSegment for compact
// tombstones.
func TestTombIndexSplitsWideSegment(t *testing.T) {
	m := newLogModel(t, 12)
	x := &m.tab.log.index
	m.addUpper(0, 3, 1637) // the directory has a place for each value of 4 bits
	if len(x.dir) != 16 {
		t.Fatalf("directory: got %d places, want 16", len(x.dir))
	}
	m.addUpper(2, 2, 1073)
	m.addUpper(3, 2, 1636-1073)
	m.addUpper(15, 4, 1) // the first split of the upper half
	m.check(t)
	if x.dir[8] != x.dir[11] || x.dir[12] != x.dir[15] || x.dir[8] == x.dir[12] || x.dir[0] == x.dir[1] {
		t.Error("split: got other segments, want places 8 to 11 and places 12 to 15 in one segment each, and 0 and 1 in two")
	}
	if x.bytes != x.bytesOf() {
		t.Errorf("index: counted memory: got %d bytes, want %d", x.bytes, x.bytesOf())
	}
	if lower, upper := len(x.dir[8].tags), len(x.dir[12].tags); lower != 1536 || upper != 768 {
		t.Errorf("segment sizes: got %d and %d places, want 1536 and 768", lower, upper)
	}
	for i, g := range x.dir {
		want := uint(4)
		switch {
		case i >= 4:
			want = 2
		case i >= 2:
			want = 3
		}
		if g.depth != want {
			t.Errorf("segment %d: got depth %d, want %d", i, g.depth, want)
		}
	}
}
