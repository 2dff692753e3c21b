package table

import (
	"errors"
	"fmt"
	"maps"
	"testing"
)

// smallMap is a kernel map with few entries, and its writer: see kmap.Syncer.
type smallMap struct {
	*rig
	room int
	held map[string]string // owners by key
}

func newSmallMap(t *testing.T, room int, live, left []string) *smallMap {
	m := &smallMap{newRig(t), room, make(map[string]string)}
	m.tab.Update(func(tx *Tx) { tx.SetMembers(live, left) })
	return m
}

// send merges new records of an owner.
func (m *smallMap) send(o Owner, prefix string, n int, v Version) {
	m.Helper()
	m.tab.Update(func(tx *Tx) {
		for i := range n {
			d := &Delta{Key: pad(fmt.Sprint(prefix, i), simKey), Value: pad("v", simValue), Version: v + Version(i), Owner: tx.Intern(o)}
			if got := tx.Remote(d, 1, RemoteOptions{}); got != Accepted {
				m.Fatalf("record %d of %s is %s", i, o.Node, got)
			}
		}
	})
	m.sync()
}

// own has this node's data plane write.
func (m *smallMap) own(n int) {
	for i := range n {
		key := fmt.Sprint("own", i)
		m.local(Accepted, second+int64(i), "update "+key+" v packet 0")
		m.held[key] = self.Node
	}
	m.sync()
}

// sync writes what is dirty, burst by burst, and makes room for what does not fit, until
// nothing changes.
func (m *smallMap) sync() {
	m.Helper()
	for range 10_000 {
		moved := false
		m.tab.Update(func(tx *Tx) {
			var rec, victim Record
			var refused []Record
			for range 8 {
				if !tx.NextDirty(m.writer, &rec) {
					break
				}
				moved = m.write(tx, &rec, &refused) || moved
			}
			for i := range refused {
				if !tx.Displace(refused[i].Ref, refused[i].Version, &victim) {
					continue
				}
				moved = true
				if _, ok := m.held[text(victim.Key)]; !ok {
					m.Fatalf("%s is to leave a map that does not hold it", text(victim.Key))
				}
				delete(m.held, text(victim.Key))
				tx.Displaced(victim.Ref, victim.Version, 2)
			}
			tx.SetApplied(m.writer.Position())
		})
		if !moved && m.tab.Stats().Dirty == m.tab.Stats().Failed {
			checkInvariants(m, m.tab)
			return
		}
	}
	m.Fatal("entries displace each other without end")
}

func (m *smallMap) write(tx *Tx, rec *Record, refused *[]Record) (moved bool) {
	key := text(rec.Key)
	_, held := m.held[key]
	switch {
	case rec.Delete:
		delete(m.held, key)
	case !held && len(m.held) >= m.room:
		tx.Applied(rec.Ref, rec.Version, errFull)
		*refused = append(*refused, *rec)
		return false
	default:
		m.held[key] = tx.Owner(rec.Owner).Node
	}
	tx.Applied(rec.Ref, rec.Version, nil)
	return true
}

// retry has the writer try failed writes again.
func (m *smallMap) retry() {
	m.Helper()
	for range 50 {
		m.tab.Update(func(tx *Tx) { tx.RequeueFailed(64) })
		m.sync()
	}
}

func (m *smallMap) wantHeld(want map[string]int) {
	m.Helper()
	got := make(map[string]int)
	for _, node := range m.held {
		got[node]++
	}
	for node := range want {
		if got[node] != want[node] {
			m.Errorf("%d entries of %s are in the map, want %d", got[node], node, want[node])
		}
		if n := m.tab.heldBy(node); n != got[node] {
			m.Errorf("the table counts %d entries of %s, the map has %d", n, node, got[node])
		}
	}
}

// TestAMemberDisplacesNoMoreThanItsShare: a node sends far more records than the map holds, all newer
// than those of the others, before, between and after theirs.
func TestAMemberDisplacesNoMoreThanItsShare(t *testing.T) {
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
		m.wantHeld(map[string]int{"b": 100, "c": 90, "m": 210})
		// Owners above their share lose down to it, and no further: this node has 100 of 400.
		for i := range 100 {
			m.remote(Accepted, 1, mallory, 4_000_000, fmt.Sprint("z", 900+i), "-")
		}
		m.sync()
		m.own(100)
		m.send(peer, "B", 300, 5000)
		m.retry()
		m.wantHeld(map[string]int{"b": 105, "c": 90, "m": 105})
	}
}

// TestHoldersOfAFullMap: one node has all entries, then another becomes active, the first restarts, and
// leaves.
func TestHoldersOfAFullMap(t *testing.T) {
	m := newSmallMap(t, 100, []string{"b", "c"}, nil)
	m.send(peer, "b", 150, 1000) // the only one: the newest stay
	m.wantHeld(map[string]int{"b": 100})
	for i := range 150 {
		if _, held := m.held[fmt.Sprint("b", i)]; held != (i >= 50) {
			t.Fatalf("entry %d of b is in the map: %v", i, held)
		}
	}
	m.send(Owner{"b", 200}, "d", 20, 2000) // a later incarnation is the same node
	m.wantHeld(map[string]int{"b": 100})
	m.send(other, "c", 30, 3000)
	m.wantHeld(map[string]int{"b": 70, "c": 30})
	m.send(other, "e", 100, 4000)
	m.wantHeld(map[string]int{"b": 50, "c": 50})
	// Departed nodes are one holder, in which the newest win.
	m.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"e"}, []string{"b", "c"}) })
	m.send(Owner{"e", 1}, "f", 80, 5000)
	m.retry()
	m.wantHeld(map[string]int{"e": 50})
	m.send(other, "g", 20, 6000)
	m.wantHeld(map[string]int{"e": 50})
	if m.tab.heldBy("b")+m.tab.heldBy("c") != 50 || m.tab.heldBy("c") < 20 {
		t.Errorf("b has %d entries and c has %d", m.tab.heldBy("b"), m.tab.heldBy("c"))
	}
}

// TestStrangersDisplaceNothing: many names are one holder, and names that were never live have no
// part in a full map.
func TestStrangersDisplaceNothing(t *testing.T) {
	m := newSmallMap(t, 100, []string{"b", "m"}, []string{"d"})
	m.send(peer, "b", 60, 1000)
	m.send(Owner{"d", 1}, "d", 60, 1000)
	m.wantHeld(map[string]int{"b": 50, "d": 50})
	for i := range 50 {
		m.send(Owner{fmt.Sprint("stranger", i), 1}, fmt.Sprint("s", i, "-"), 10, 1_000_000)
	}
	m.retry()
	m.wantHeld(map[string]int{"b": 50, "d": 50})
	m.remote(Accepted, 1, peer, 2000, "b59", "-") // there is room for one
	m.retry()
	if len(m.held) != 100 {
		t.Errorf("%d entries are in a map of 100", len(m.held))
	}
}

// TestVictimsAreFoundBehindOthers: the entries of the holder that is to give up some come after
// many of another, which a search does not look at in one go.
func TestVictimsAreFoundBehindOthers(t *testing.T) {
	const n = 20 * displaceSteps
	m := newSmallMap(t, 2*n, []string{"b", "c", "d"}, nil)
	m.send(peer, "b", n/2, 1000)
	m.send(other, "c", 3*n/2, 1000)
	m.send(Owner{"d", 1}, "d", n/4, 1000)
	m.wantHeld(map[string]int{"b": n / 2, "c": 5 * n / 4, "d": n / 4})
	// An entry that returned because there was room is displaced first.
	before := maps.Clone(m.held)
	m.remote(Accepted, 1, other, 9999, fmt.Sprint("c", 3*n/2-1), "-")
	m.sync()
	m.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	m.sync()
	back := ""
	for key := range m.held {
		if _, held := before[key]; !held {
			back = key
		}
	}
	m.send(Owner{"d", 1}, "e", 1, 1000)
	if _, held := m.held[back]; held || back == "" {
		t.Errorf("%q came back and is still there", back)
	}
}

// TestNoVictimIsFound: all entries of the holder that is to give up some are being read again. The
// search ends, and the record waits like any other that does not fit.
func TestNoVictimIsFound(t *testing.T) {
	const n = 100
	m := newSmallMap(t, n, []string{"b", "c"}, nil)
	m.send(peer, "b", n, 1000)
	m.tab.Update(func(tx *Tx) {
		for key := range m.held {
			tx.Reread(pad(key, simKey))
		}
	})
	m.send(other, "c", 1, 1000)
	m.wantHeld(map[string]int{"b": n, "c": 0})
	m.rechecks()
	for key := range m.held {
		m.local(Unchanged, second, "update "+key+" v reread 0")
	}
	m.retry()
	m.wantHeld(map[string]int{"b": n - 1, "c": 1})
}

// TestHandsOfFormerHolders: hands go with the holders, and with the kernel map.
func TestHandsOfFormerHolders(t *testing.T) {
	m := newSmallMap(t, 10, []string{"b", "c"}, nil)
	for _, forget := range []func(*Tx){
		func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) },
		func(tx *Tx) { tx.SetMembers(nil, []string{"b", "c"}) },
		(*Tx).Refill,
	} {
		m.send(peer, "b", 20, Version(1000*m.tab.Stats().Head+1000))
		if n := len(m.tab.cursors); n != 3 {
			t.Errorf("%d cursors, want the writer's, that of the table and a hand", n)
		}
		m.tab.Update(forget)
		if n := len(m.tab.cursors); n != 2 {
			t.Errorf("%d cursors, want the writer's and that of the table", n)
		}
	}
}

var errNone = errors.New("none")

// TestFailedRecordsChangeHands: records that are not in the map count for no owner.
func TestFailedRecordsChangeHands(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1000, "l", "v")
	r.applied(r.take(), errNone)
	held := func(b, c int) {
		t.Helper()
		if r.tab.heldBy("b") != b || r.tab.heldBy("c") != c {
			t.Fatalf("b has %d and c has %d, want %d and %d", r.tab.heldBy("b"), r.tab.heldBy("c"), b, c)
		}
	}
	held(1, 0)
	r.remote(Accepted, 0, other, 2000, "k", "w") // is tried again
	held(1, 1)
	r.applied(r.take(), nil) // l
	r.applied(r.take(), errNone)
	held(1, 0)
	r.remote(Accepted, 0, peer, 3000, "k", "w") // failed, and of the same content
	checkInvariants(t, r.tab)
	r.local(Accepted, second, "delete k - packet 0")
	held(1, 0)
}
