package table

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"mapsync/internal/race"
)

// smallMap simulates a kernel map with few entries, and its writer (see kmap.Syncer).
type smallMap struct {
	*rig
	room    int
	entries map[string]string // owners by key
	// during is called between the moment when the writer takes a record and its write. Nil: nothing happens.
	during func(tx *Tx, taken Record)
}

func newSmallMap(t *testing.T, room int, live, left []string) *smallMap {
	m := &smallMap{rig: newRig(t), room: room, entries: make(map[string]string)}
	m.tab.Update(func(tx *Tx) { tx.SetMembers(live, left) })
	return m
}

// send merges new records of an owner.
func (m *smallMap) send(o Owner, prefix string, n int, v Version) {
	m.Helper()
	m.tab.Update(func(tx *Tx) {
		for i := range n {
			d := &Delta{Key: pad(fmt.Sprint(prefix, i), keySize), Value: pad("v", valueSize), Version: v + Version(i), Owner: tx.Intern(o)}
			if got := tx.Remote(d, 1, RemoteOptions{}); got != Accepted {
				m.Fatalf("record %d of %s: got %s, want %s", i, o.Node, got, Accepted)
			}
		}
	})
	m.sync()
}

// own simulates writes by the data plane of this node.
func (m *smallMap) own(n int) {
	for i := range n {
		key := fmt.Sprint("own", i)
		m.local(Accepted, second+int64(i), "update "+key+" v packet 0")
		m.entries[key] = self.Node
	}
	m.sync()
}

// attach replaces the map with one that has other entries, and writes all records to it.
func (m *smallMap) attach(room int, entries map[string]string) {
	m.Helper()
	m.room, m.entries = room, entries
	m.tab.Update((*Tx).Refill)
	m.restartWriter()
	m.sync()
}

// restartWriter replaces the writer with a new one, which starts where the old one has reported.
func (m *smallMap) restartWriter() {
	m.writer.Close()
	m.writer = m.tab.NewCursor(m.tab.Stats().Applied)
}

// sync writes dirty records in bursts, and displaces entries for records that do not fit, until the
// map is stable.
func (m *smallMap) sync() {
	m.Helper()
	for range 10_000 {
		more := false
		m.tab.Update(func(tx *Tx) { more = m.burst(tx) })
		if !more && m.tab.Stats().Dirty == m.tab.Stats().Failed {
			checkInvariants(m, m.tab)
			return
		}
	}
	m.Fatal("sync: got no end of the displacement, want one")
}

// burst writes up to 8 records and displaces entries for those that do not fit. It returns true if there may
// be more to write.
func (m *smallMap) burst(tx *Tx) (more bool) {
	var rec, victim Record
	var refused []Record
	for range 8 {
		if more = tx.NextDirty(m.writer, &rec); !more {
			break
		}
		if m.during != nil {
			m.during(tx, rec)
		}
		m.write(tx, &rec, &refused)
	}
	tx.SetApplied(m.writer.Position())
	for i := range refused {
		if !search(tx, &refused[i], &victim) {
			continue
		}
		more = true
		if _, ok := m.entries[text(victim.Key)]; !ok {
			m.Fatalf("victim %s: not in the map", text(victim.Key))
		}
		delete(m.entries, text(victim.Key))
		tx.Displaced(victim.Ref, 2)
	}
	return more
}

func (m *smallMap) write(tx *Tx, rec *Record, refused *[]Record) {
	key := text(rec.Key)
	_, held := m.entries[key]
	switch {
	case rec.Delete:
		delete(m.entries, key)
	case !held && len(m.entries) >= m.room:
		tx.Applied(rec.Ref, rec.Version, errFull)
		*refused = append(*refused, *rec)
		return
	default:
		m.entries[key] = tx.Owner(rec.Owner).Node
	}
	tx.Applied(rec.Ref, rec.Version, nil)
}

// retry lets the writer retry failed writes.
func (m *smallMap) retry() {
	m.Helper()
	for range 50 {
		m.tab.Update(func(tx *Tx) { tx.RequeueFailed(64) })
		m.sync()
	}
}

func (m *smallMap) wantEntries(want map[string]int) {
	m.Helper()
	got := make(map[string]int)
	for _, node := range m.entries {
		got[node]++
	}
	for node := range want {
		if got[node] != want[node] {
			m.Errorf("entries in the map: got %d of %s, want %d", got[node], node, want[node])
		}
		if n := m.tab.kernelEntries(node); n != got[node] {
			m.Errorf("entries of %s that the table counts: got %d, want %d as in the map", node, n, got[node])
		}
	}
}

// TestDisplaceKeepsShares: a node sends far more records than the map holds. They are newer than the
// records of the other nodes, and arrive before, between and after these.
func TestDisplaceKeepsShares(t *testing.T) {
	race.SkipSequential(t)
	mallory := Owner{"m", 1}
	for _, first := range []bool{false, true} {
		m := newSmallMap(t, 400, []string{"b", "c", "m"}, nil)
		if first {
			m.send(mallory, "x", 500, 1_000_000)
		}
		m.send(peer, "b", 100, 1000)
		m.send(mallory, "y", 1000, 2_000_000)
		m.send(other, "c", 90, 1000)
		m.send(mallory, "z", 1000, 3_000_000)
		m.retry()
		m.wantEntries(map[string]int{"b": 100, "c": 90, "m": 210})
		// Owners above their share lose entries down to the share and no further. This node has 100 of
		// 400 entries.
		for i := range 100 {
			m.remote(Accepted, 1, mallory, 4_000_000, fmt.Sprint("z", 900+i), "-")
		}
		m.sync()
		m.own(100)
		m.send(peer, "B", 300, 5000)
		m.retry()
		m.wantEntries(map[string]int{"b": 105, "c": 90, "m": 105})
	}
}

// TestEarlierIncarnationsKeepShares: records in the name of an earlier incarnation of this node arrive at a
// full map. They leave the other owners an equal share. Changes of this node displace all others.
func TestEarlierIncarnationsKeepShares(t *testing.T) {
	m := newSmallMap(t, 400, []string{"b", "c"}, nil)
	m.send(peer, "b", 300, 1000)
	m.send(other, "c", 100, 1000)
	m.send(older, "a", 1000, 50)
	m.retry()
	m.wantEntries(map[string]int{"a": 150, "b": 150, "c": 100})
	m.own(100)
	m.retry()
	m.wantEntries(map[string]int{"a": 250})
}

// TestSharesOfAFullMap: one node has all entries. Then a second node sends records, and the first node
// restarts and leaves.
func TestSharesOfAFullMap(t *testing.T) {
	m := newSmallMap(t, 100, []string{"b", "c"}, nil)
	m.send(peer, "b", 150, 1000) // the only peer: the newest records stay
	m.wantEntries(map[string]int{"b": 100})
	for i := range 150 {
		if _, held := m.entries[fmt.Sprint("b", i)]; held != (i >= 50) {
			t.Fatalf("entry %d of b in the map: got %v, want %v", i, held, i >= 50)
		}
	}
	m.send(Owner{"b", 200}, "d", 20, 2000) // a later incarnation counts as the same node
	m.wantEntries(map[string]int{"b": 100})
	m.send(other, "c", 30, 3000)
	m.wantEntries(map[string]int{"b": 70, "c": 30})
	m.send(other, "e", 100, 4000)
	m.wantEntries(map[string]int{"b": 50, "c": 50})
	// Departed nodes form one owner group. The newest records of the group stay.
	m.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"e"}, []string{"b", "c"}) })
	m.send(Owner{"e", 1}, "f", 80, 5000)
	m.retry()
	m.wantEntries(map[string]int{"e": 50})
	m.send(other, "g", 20, 6000)
	m.wantEntries(map[string]int{"e": 50})
	if m.tab.kernelEntries("b")+m.tab.kernelEntries("c") != 50 || m.tab.kernelEntries("c") < 20 {
		t.Errorf("entries: got %d of b and %d of c, want 50 in total", m.tab.kernelEntries("b"), m.tab.kernelEntries("c"))
	}
}

// TestUnverifiedOwnersDisplaceNothing: owners that are not live form one owner group, however many names they
// have. Owners that were never live get no entries in a full map.
func TestUnverifiedOwnersDisplaceNothing(t *testing.T) {
	m := newSmallMap(t, 100, []string{"b", "m"}, []string{"d"})
	m.send(peer, "b", 60, 1000)
	m.send(Owner{"d", 1}, "d", 60, 1000)
	m.wantEntries(map[string]int{"b": 50, "d": 50})
	for i := range 50 {
		m.send(Owner{fmt.Sprint("unverified", i), 1}, fmt.Sprint("s", i, "-"), 10, 1_000_000)
	}
	m.retry()
	m.wantEntries(map[string]int{"b": 50, "d": 50})
	m.remote(Accepted, 1, peer, 2000, "b59", "-") // frees room for one entry
	m.retry()
	if len(m.entries) != 100 {
		t.Errorf("entries in the map: got %d, want 100", len(m.entries))
	}
}

// TestVictimSearchContinues: the entries of the owner group that must lose an entry come after many
// entries of another group. One search does not reach them.
func TestVictimSearchContinues(t *testing.T) {
	const n = 20 * displaceSteps
	m := newSmallMap(t, 2*n, []string{"b", "c", "d"}, nil)
	m.send(peer, "b", n/2, 1000)
	m.send(other, "c", 3*n/2, 1000)
	m.send(Owner{"d", 1}, "d", n/4, 1000)
	m.wantEntries(map[string]int{"b": n / 2, "c": 5 * n / 4, "d": n / 4})
	// An entry that returned when there was room is displaced first.
	before := maps.Clone(m.entries)
	m.remote(Accepted, 1, other, 9999, fmt.Sprint("c", 3*n/2-1), "-")
	m.sync()
	m.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	m.sync()
	back := ""
	for key := range m.entries {
		if _, held := before[key]; !held {
			back = key
		}
	}
	m.send(Owner{"d", 1}, "e", 1, 1000)
	if _, held := m.entries[back]; held || back == "" {
		t.Errorf("entry %q that returned to the map: got present, want displaced", back)
	}
}

// TestOwnRecordBeforeALargerGroup: a full map refuses an own record before the writer has tried the records
// of the largest group, none of which is in the map. The own record displaces an entry nevertheless.
func TestOwnRecordBeforeALargerGroup(t *testing.T) {
	m := newSmallMap(t, 4, []string{"b", "c"}, nil)
	m.send(other, "c", 4, 1000)
	m.own(1)
	m.send(peer, "b", 20, 1000)
	// Another map has entries of c only.
	m.attach(4, map[string]string{"c0": "c", "c1": "c", "c2": "c", "c3": "c"})
	m.wantEntries(map[string]int{"a": 1, "b": 1, "c": 2})
}

// TestRefillRestartsTheVictimSearch: a search that has found no victim does not limit the searches in
// another map.
func TestRefillRestartsTheVictimSearch(t *testing.T) {
	const n = 20 * displaceSteps
	m := newSmallMap(t, n, []string{"b"}, nil)
	m.own(n)
	m.send(peer, "b", 9, 1000) // no record of b is in the map
	group := m.tab.owners.groups[0]
	if group.examined == 0 {
		t.Fatal("search without a victim: got no examined records, want some")
	}
	m.tab.Update((*Tx).Refill)
	if group.examined != 0 || group.untried {
		t.Errorf("search in another map: got %d examined records, untried %t, want 0 and false", group.examined, group.untried)
	}
}

// TestNoVictimIsFound: all entries of the owner group that must lose an entry have pending rereads.
// The search ends, and the record waits like any other record that does not fit. It displaces the first entry
// whose reread has ended, wherever that is.
func TestNoVictimIsFound(t *testing.T) {
	const n = 20 * displaceSteps
	m := newSmallMap(t, n, []string{"b", "c"}, nil)
	m.send(peer, "b", n, 1000)
	m.tab.Update(func(tx *Tx) {
		for key := range m.entries {
			tx.RequestReread(pad(key, keySize))
		}
	})
	m.send(other, "c", 1, 1000)
	m.wantEntries(map[string]int{"b": n, "c": 0})
	m.tab.Update(func(tx *Tx) {
		for tx.TakeRereads(make([]byte, 64*keySize)) > 0 {
		}
	})
	m.local(Unchanged, second, fmt.Sprintf("update b%d v reread 0", n/2))
	m.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) }) // one retry is enough
	m.sync()
	m.wantEntries(map[string]int{"b": n - 1, "c": 1})
}

// TestVictimCursorsAreClosed: the table closes a victim cursor when its owner group ends or when the
// kernel map is detached.
func TestVictimCursorsAreClosed(t *testing.T) {
	m := newSmallMap(t, 10, []string{"b", "c"}, nil)
	for _, forget := range []func(*Tx){
		func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) },
		func(tx *Tx) { tx.SetMembers(nil, []string{"b", "c"}) },
		(*Tx).Refill,
	} {
		m.send(peer, "b", 20, Version(1000*m.tab.Stats().Head+1000))
		if n := len(m.tab.cursors); n != 2 {
			t.Errorf("%d cursors, want the writer's and a victim cursor", n)
		}
		m.tab.Update(forget)
		if n := len(m.tab.cursors); n != 1 {
			t.Errorf("%d cursors, want the writer's", n)
		}
	}
}

var errNone = errors.New("none")

// TestFailedRecordsCountForNoOwner: records that are not in the map do not count for their owner.
func TestFailedRecordsCountForNoOwner(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1000, "l", "v")
	r.applied(r.take(), errNone)
	wantEntries := func(b, c int) {
		t.Helper()
		if r.tab.kernelEntries("b") != b || r.tab.kernelEntries("c") != c {
			t.Fatalf("b has %d and c has %d, want %d and %d", r.tab.kernelEntries("b"), r.tab.kernelEntries("c"), b, c)
		}
	}
	wantEntries(1, 0)
	r.remote(Accepted, 0, other, 2000, "k", "w") // is not in the map before a write succeeds
	wantEntries(1, 0)
	r.applied(r.take(), nil) // the record l
	r.applied(r.take(), errNone)
	wantEntries(1, 0)
	r.remote(Accepted, 0, peer, 3000, "k", "w") // failed, with the same content
	checkInvariants(t, r.tab)
	r.local(Accepted, second, "delete k - packet 0")
	wantEntries(1, 0)
}
