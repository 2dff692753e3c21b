package table

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"mapsync/internal/race"
)

// displaceRuns is the number of random runs of TestDisplacementEnds.
const displaceRuns = 300

// TestDisplacementEnds: owners of all kinds send to a full map, leave and return, and the map is replaced.
// Displacement ends each time. Then some rounds of rereads and retries enter all own records, and the table's
// count of the entries of each node is exact.
func TestDisplacementEnds(t *testing.T) {
	race.SkipSequential(t)
	for seed := range uint64(displaceRuns) {
		random := rand.New(rand.NewPCG(seed, 1))
		room := 1 + random.IntN(1+random.IntN(4*displaceSteps))
		m := newSmallMap(t, room, []string{"b", "c"}, []string{"d"})
		if random.IntN(2) == 0 {
			m.during = func(tx *Tx, taken Record) { m.changeTaken(tx, taken, random) }
		}
		for step := range 12 {
			m.randomStep(random, step)
		}
		for range 12 {
			for m.reread(20*second) > 0 {
			}
			m.tab.Update(func(tx *Tx) { tx.RequeueFailed(1 << 20) })
			m.sync()
		}
		m.wantOwnRecords()
		m.wantEntries(map[string]int{"a": m.held("a"), "b": m.held("b"), "c": m.held("c"), "d": m.held("d")})
		if t.Failed() {
			t.Fatalf("seed %d, a map of %d entries", seed, room)
		}
	}
}

// randomStep does one random action of a peer, the data plane or the membership.
func (m *smallMap) randomStep(random *rand.Rand, step int) {
	n := 1 + random.IntN(1+m.room)
	switch random.IntN(10) {
	case 0, 1, 2:
		o := []Owner{peer, other, {"d", 1}, {"u", 1}, older}[random.IntN(5)]
		m.send(o, fmt.Sprint(step, o.Node), n, Version(1000*step+1))
	case 3:
		for i := 0; i < n && len(m.entries) < m.room; i++ {
			key := fmt.Sprint(step, "o", i)
			m.local(Accepted, int64(step)*second+int64(i), "update "+key+" v packet 0")
			m.entries[key] = self.Node
		}
		m.sync()
	case 4, 5:
		m.changeRemote(random, n, Version(1000*step+500))
		m.sync()
	case 6:
		m.stopWriter(random.IntN(9))
		m.sync()
	case 7:
		m.reread(int64(step) * second)
		m.tab.Update(func(tx *Tx) {
			for _, key := range slices.Sorted(maps.Keys(m.entries)) {
				if random.IntN(4) == 0 {
					tx.RequestReread(pad(key, keySize))
				}
			}
		})
		m.sync()
	case 8:
		live := [][]string{{"b", "c"}, {"b"}, {"c", "d"}, {}}[random.IntN(4)]
		m.tab.Update(func(tx *Tx) { tx.SetMembers(live, []string{"b", "c", "d"}) })
	default:
		m.replaceMap(random)
	}
}

// changeRemote merges newer records, and deletes, of records of peers.
func (m *smallMap) changeRemote(random *rand.Rand, n int, v Version) {
	var rec Record
	c := m.tab.NewCursor(0)
	defer c.Close()
	m.tab.Update(func(tx *Tx) {
		for ; n > 0 && tx.Next(c, &rec); n-- {
			if rec.Owner == selfID || random.IntN(2) == 0 {
				continue
			}
			d := Delta{Key: rec.Key, Value: pad("w", valueSize), Version: max(rec.Version, v) + 1, Owner: rec.Owner}
			if random.IntN(2) == 0 {
				d.Delete, d.Value = true, nil
			}
			tx.Remote(&d, 1, RemoteOptions{})
		}
	})
}

// changeTaken sometimes merges newer records of the key that the writer has taken: a delete, and perhaps a live
// record after it.
func (m *smallMap) changeTaken(tx *Tx, taken Record, random *rand.Rand) {
	if taken.Owner == selfID || random.IntN(4) > 0 {
		return
	}
	d := Delta{Key: bytes.Clone(taken.Key), Version: taken.Version + 1, Owner: taken.Owner, Delete: true}
	if random.IntN(2) == 0 {
		tx.Remote(&d, 1, RemoteOptions{})
		d.Version++
	}
	if random.IntN(2) == 0 {
		d.Delete, d.Value = false, pad("w", valueSize)
	}
	tx.Remote(&d, 1, RemoteOptions{})
}

// stopWriter lets the writer do some bursts, and then stop after it has taken another one.
func (m *smallMap) stopWriter(bursts int) {
	m.tab.Update(func(tx *Tx) {
		var rec Record
		tx.RequeueFailed(16)
		for range bursts {
			m.burst(tx)
		}
		for range 8 {
			tx.NextDirty(m.writer, &rec)
		}
	})
	m.restartWriter()
}

// reread answers pending rereads, and returns their number.
func (m *smallMap) reread(at int64) (n int) {
	m.tab.Update(func(tx *Tx) {
		var rec Record
		buf := make([]byte, 64*keySize)
		n = tx.TakeRereads(buf)
		for key := range slices.Chunk(buf[:n*keySize], keySize) {
			c := Change{Key: key, Time: at, Op: OpDelete, Context: ContextReread}
			if _, held := m.entries[text(key)]; held && tx.Get(key, &rec) {
				c.Op, c.Value = OpUpdate, bytes.Clone(rec.Value)
			}
			tx.Local(&c)
		}
	})
	return n
}

// replaceMap attaches a map that has some of the entries.
func (m *smallMap) replaceMap(random *rand.Rand) {
	room := max(1, random.IntN(2*m.room+1))
	for _, key := range slices.Sorted(maps.Keys(m.entries)) {
		if random.IntN(2) == 0 || len(m.entries) > room {
			delete(m.entries, key)
		}
	}
	m.attach(room, m.entries)
}

// held returns the number of entries of a node in the map.
func (m *smallMap) held(node string) (n int) {
	for _, owner := range m.entries {
		if owner == node {
			n++
		}
	}
	return n
}

// wantOwnRecords checks that no own record is outside of the map while the map has entries of other nodes.
func (m *smallMap) wantOwnRecords() {
	others := len(m.entries) - m.held(self.Node)
	var rec Record
	c := m.tab.NewCursor(0)
	defer c.Close()
	m.tab.View(func(tx *Tx) {
		for tx.Next(c, &rec) {
			if _, held := m.entries[text(rec.Key)]; !held && !rec.Delete && rec.Owner == selfID && others > 0 {
				m.Errorf("own record %s: not in the map, which has %d entries of other nodes", text(rec.Key), others)
				return
			}
		}
	})
}
