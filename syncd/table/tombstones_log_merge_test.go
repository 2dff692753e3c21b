package table

import "testing"

// fill adds a chunk of 8 tombstones, of which the given number stays live.
func (m *logModel) fill(live int) {
	for i := range 8 {
		if m.add(1); i >= live {
			m.remove(len(m.live) - 1)
		}
	}
}

// far makes the next chunk begin so far behind that it cannot be merged with the previous one.
func (m *logModel) far() { m.tab.seq += 1 << 29 }

func (m *logModel) merge() {
	for m.tab.log.merge() {
	}
}

func (m *logModel) wantChunks(t *testing.T, what string, want int) {
	t.Helper()
	if n := len(m.tab.log.chunks); n != want {
		t.Errorf("%s: got %d chunks, want %d", what, n, want)
	}
	m.check(t)
}

// TestTombLogMergesAboveItsBound: the log merges chunks if it has more than two entries per live entry
// plus the entries of four chunks. The merge ends below that limit.
func TestTombLogMergesAboveItsBound(t *testing.T) {
	m := newLogModel(t, 3)
	for _, live := range []int{2, 1, 1, 1, 1, 2} {
		m.fill(live)
	}
	if m.tab.log.used != 48 || m.tab.log.n != 8 {
		t.Fatalf("log: got %d entries, %d live, want 48 and 8", m.tab.log.used, m.tab.log.n)
	}
	m.merge()
	m.wantChunks(t, "48 entries, 8 live", 6)
	m.remove(0)
	m.merge()
	m.wantChunks(t, "48 entries, 7 live", 5)
	if m.tab.log.used != 34 {
		t.Errorf("entries after the merge: got %d, want 34", m.tab.log.used)
	}
}

// TestTombLogMergesAllPairs: each search examines all pairs of adjacent chunks, except the pair with
// the growing chunk.
func TestTombLogMergesAllPairs(t *testing.T) {
	const chunks = 9
	for near := range chunks - 1 { // the pair that fits
		m := newLogModel(t, 3)
		for i := range chunks {
			if i != near+1 {
				m.far()
			}
			m.fill(1)
		}
		m.merge()
		want := chunks - 1
		if near == chunks-2 {
			want = chunks
		}
		m.wantChunks(t, "one search", want)
	}
	m := newLogModel(t, 3)
	m.fill(8)
	for i := range chunks - 1 {
		if i > 0 {
			m.far()
		}
		m.fill(1)
	}
	m.merge()
	m.wantChunks(t, "nine live", chunks)
	m.remove(0)
	m.merge()
	m.wantChunks(t, "eight live", chunks-1)
}

// TestWrittenCompactTombstone: a reread that finds the key may be older than the write of the delete.
func TestWrittenCompactTombstone(t *testing.T) {
	for name, written := range map[string]bool{"written": true, "never in the map": false} {
		r := newRig(t)
		if written {
			r.remote(Accepted, second, peer, 10, "k", "v")
			r.write()
		}
		r.remote(Accepted, second, peer, 11, "k", "-")
		r.write()
		r.compact(9*second, 1)
		want := Accepted
		if written {
			want = Stale
		}
		r.local(want, 20*second, "update k v reread 0")
		if keys := r.takeRereads(); written && keys != "k" {
			t.Errorf("%s: got rereads %q, want \"k\"", name, keys)
		}
	}
}

// TestUnscannedMapKeepsCompactTombstones: the table keeps acknowledged tombstones until a scan after
// the load.
func TestUnscannedMapKeepsCompactTombstones(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "k")
	r.acknowledge(9)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	now := 2*second + int64(DefaultTombstoneGrace) + r.tab.log.granule
	r.expire(now, 9)
	if n := r.tab.log.n; n != 1 {
		t.Errorf("tombstones before the scan: got %d, want 1", n)
	}
	r.scan(now)
	r.expire(now, 9)
	r.want("k", "unknown")
}

// TestPositionAtTheEnd: a cursor at the end has the position of the last change, even if the table has
// forgotten that record.
func TestPositionAtTheEnd(t *testing.T) {
	r := newRig(t, shortLived)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "update l v packet 0")
	r.local(Accepted, 2*second, "delete l - packet 0")
	r.expire(9*second, 9)
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.View(func(tx *Tx) {
		var rec Record
		for i, want := range []struct {
			more bool
			pos  uint64
		}{{true, 1}, {false, 3}, {false, 3}} {
			if more := tx.Next(c, &rec); more != want.more || c.Position() != want.pos {
				t.Errorf("call %d: got %v, position %d, want %v and %d", i, more, c.Position(), want.more, want.pos)
			}
		}
	})
}
