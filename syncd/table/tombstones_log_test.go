package table

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"mapsync/internal/race"
)

// logModel is a table with only a log of compact tombstones, and the expected content of the log.
type logModel struct {
	tab  *Table
	live []uint64 // positions, which are also the keys
	gone []uint64
}

func newLogModel(t *testing.T, shift uint) *logModel {
	t.Helper()
	tab, err := New(Options{Self: self, KeySize: 8, ValueSize: 8, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	tab.log.shift = shift
	return &logModel{tab: tab}
}

func logKey(seq uint64) []byte { return binary.LittleEndian.AppendUint64(nil, seq) }

func (m *logModel) add(gap uint64) {
	t := m.tab
	t.seq += gap
	k := logKey(t.seq)
	t.log.add(&tombEntry{seq: t.seq, seen: int64(t.seq), version: Version(t.seq), bits: uint32(t.seq%2) * tombExpired}, t.hash(k), k)
	t.stats.Tombstones++
	m.live = append(m.live, t.seq)
}

func (m *logModel) remove(i int) {
	k := logKey(m.live[i])
	h := m.tab.hash(k)
	m.tab.log.remove(m.tab.log.find(h, k), h)
	m.tab.stats.Tombstones--
	m.gone = append(m.gone, m.live[i])
	m.live = append(m.live[:i], m.live[i+1:]...)
}

func (m *logModel) check(t *testing.T) {
	t.Helper()
	checkInvariants(t, m.tab)
	if m.tab.log.n != len(m.live) {
		t.Fatalf("entries of the log: got %d, want %d", m.tab.log.n, len(m.live))
	}
	for _, seq := range m.gone[max(0, len(m.gone)-100):] {
		if k := logKey(seq); m.tab.log.find(m.tab.hash(k), k) != 0 {
			t.Fatalf("removed entry %d: got found, want not found", seq)
		}
	}
	c := m.tab.NewCursor(0)
	defer c.Close()
	m.read(t, c, len(m.live))
}

// read checks the next entries of a cursor.
func (m *logModel) read(t *testing.T, c *Cursor, n int) {
	t.Helper()
	for _, seq := range m.live {
		if seq <= c.pos || n == 0 {
			continue
		}
		n--
		var rec Record
		if !m.tab.tx.Next(c, &rec) || rec.Position != seq || rec.Version != Version(seq) || rec.Expired != (seq%2 == 1) ||
			binary.LittleEndian.Uint64(rec.Key) != seq {
			t.Fatalf("next record: got %+v, want key, position and version %d, expired %t", rec, seq, seq%2 == 1)
		}
		chunk, i := m.tab.log.at(uint32(rec.Ref))
		if seen := chunk.seen(i); seen < int64(seq) || (seen > int64(seq)+16*m.tab.log.granule) {
			t.Fatalf("entry at %d: got seen at %d, want at least %d and at most %d", seq, seen, int64(seq), int64(seq)+16*m.tab.log.granule)
		}
	}
}

// TestTombLog compares the log with a model under random changes, while cursors continue to read.
func TestTombLog(t *testing.T) {
	race.SkipSequential(t)
	merged := 0
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		m := newLogModel(t, uint(1+seed%4))
		m.tab.log.granule = rnd.Int64N(9)
		cursors := []*Cursor{m.tab.NewCursor(0), m.tab.NewCursor(0), m.tab.NewCursor(0)}
		grow := rnd.IntN(2)
		for step := range 3000 {
			if step%500 == 0 {
				grow = rnd.IntN(9)
			}
			switch x := rnd.IntN(12); {
			case x < grow:
				gap := uint64(1 + rnd.IntN(3))
				if rnd.IntN(100) == 0 {
					gap += 1 << 29
				}
				m.add(gap)
			case x < 9 && len(m.live) > 0:
				m.remove(rnd.IntN(len(m.live)))
			case x < 11:
				m.read(t, cursors[rnd.IntN(len(cursors))], rnd.IntN(5))
			default:
				before := len(m.tab.log.chunks)
				for m.tab.log.merge() {
				}
				if len(m.tab.log.chunks) < before {
					merged++
				}
			}
			if step%50 == 0 {
				m.check(t)
			}
		}
		if n := len(m.live); n > 0 {
			c, i := m.tab.log.oldest()
			if c.seq(i) != m.live[0] {
				t.Fatalf("oldest is %d, want %d", c.seq(i), m.live[0])
			}
		}
		for len(m.live) > 0 {
			m.remove(rnd.IntN(len(m.live)))
		}
		if m.check(t); len(m.tab.log.chunks) != 0 {
			t.Fatalf("chunks without an entry: got %d, want 0", len(m.tab.log.chunks))
		}
	}
	if merged < 100 {
		t.Errorf("merges: got %d, want at least 100", merged)
	}
}

// TestTombLogIsBounded: the log has room for twice its entries and a few chunks, for any number of
// superseded entries. Its index shrinks.
func TestTombLogIsBounded(t *testing.T) {
	m := newLogModel(t, 6)
	for range 20_000 {
		m.add(1)
	}
	full := m.tab.log.index.bytes
	if each := float64(full) / 20_000; each > 9.5 {
		t.Errorf("index: got %.1f bytes per tombstone, want at most 9.5", each)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for len(m.live) > 100 {
		i := rnd.IntN(len(m.live))
		k := logKey(m.live[i])
		h := m.tab.hash(k)
		m.tab.log.remove(m.tab.log.find(h, k), h)
		m.tab.stats.Tombstones--
		m.live[i] = m.live[len(m.live)-1]
		m.live = m.live[:len(m.live)-1]
		for m.tab.log.merge() {
		}
		if l := &m.tab.log; l.used > 2*l.n+5<<6 {
			t.Fatalf("live entries: got %d of %d, want at most %d", l.n, l.used, 2*l.n+5<<6)
		}
	}
	if is := m.tab.log.index.bytes; is > full/20 {
		t.Errorf("index: got %d bytes, want at most a 20th of %d", is, full)
	}
	checkInvariants(t, m.tab)
}

// TestTombLogSpan: the positions of a chunk are less than 2^29 apart, also after a merge. The search
// for chunks to merge ends if there are none.
func TestTombLogSpan(t *testing.T) {
	const span = 1 << 29
	m := newLogModel(t, 3)
	m.add(1)
	m.add(span - 1)
	m.add(1)
	if n := len(m.tab.log.chunks); n != 2 {
		t.Errorf("chunks: got %d for positions %d apart, want 2", n, span)
	}
	m.check(t)
	m = newLogModel(t, 3)
	fill := func(live int) { // a chunk
		for i := range 8 {
			if m.add(1); i >= live {
				m.remove(len(m.live) - 1)
			}
		}
	}
	fill(7)
	fill(1) // fits exactly
	m.add(span)
	first := m.tab.seq
	for range 7 {
		m.add(1)
		m.remove(len(m.live) - 1)
	}
	m.add(first + span - m.tab.seq) // does not fit
	for range 20 {
		m.add(span)
		for range 7 {
			m.add(1)
			m.remove(len(m.live) - 1)
		}
	}
	before := len(m.tab.log.chunks)
	for range 2 {
		for m.tab.log.merge() {
		}
		m.check(t)
	}
	if n := len(m.tab.log.chunks); n != before-1 {
		t.Errorf("chunks: got %d after the merge of two of %d, want %d", n, before, before-1)
	}
}

// TestTombLogReusesChunkIDs: the log reuses the ids of chunks without entries.
func TestTombLogReusesChunkIDs(t *testing.T) {
	m := newLogModel(t, 1)
	for range 100 {
		m.add(1)
		m.remove(0)
	}
	if n := len(m.tab.log.byID); n != 1 {
		t.Errorf("chunk ids: got %d for one chunk at a time, want 1", n)
	}
}

// TestTombLogRuns: the table forgets the tombstones of a run together, at most a granule late.
func TestTombLogRuns(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "k", "l")
	r.acknowledge(9)
	r.expire(second+int64(DefaultTombstoneGrace)+r.tab.log.granule, 9)
	r.wantOrder("l")
	m := newLogModel(t, 6)
	m.tab.log.granule = 5
	for _, c := range []struct {
		gap  uint64
		runs int
	}{{10, 1}, {5, 1}, {1, 2}, {6, 3}} {
		m.add(c.gap)
		if got := len(m.tab.log.chunks[0].runs); got != c.runs {
			t.Errorf("runs: got %d at %d, want %d", got, m.tab.seq, c.runs)
		}
	}
}
