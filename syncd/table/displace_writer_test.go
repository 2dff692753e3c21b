package table

import (
	"fmt"
	"maps"
	"testing"
)

// TestDeletesOfRefusedRecordsKeepShares: a node sends more records than fit, and deletes refused ones. Records
// that are pending deletes do not count as missing in the map.
func TestDeletesOfRefusedRecordsKeepShares(t *testing.T) {
	mallory := Owner{"m", 1}
	m := newSmallMap(t, 400, []string{"b", "c", "m"}, nil)
	m.send(mallory, "x", 1200, 1_000_000)
	m.send(peer, "b", 100, 1000)
	m.send(other, "c", 90, 1000)
	m.retry()
	want := map[string]int{"b": 100, "c": 90, "m": 210}
	m.wantEntries(want)
	m.tab.Update(func(tx *Tx) {
		id := tx.Intern(mallory)
		for i := range 600 {
			tx.Remote(&Delta{Key: pad(fmt.Sprint("n", i), keySize), Value: pad("v", valueSize), Version: 2_000_000 + Version(i), Owner: id}, 1, RemoteOptions{})
		}
		for i := range 900 {
			tx.Remote(&Delta{Key: pad(fmt.Sprint("x", i), keySize), Delete: true, Version: 3_000_000 + Version(i), Owner: id}, 1, RemoteOptions{})
		}
	})
	m.sync()
	m.wantEntries(map[string]int{"b": 100, "c": 90})
}

// TestWriterStopsAfterDisplacement: the writer stops after it took records for which entries were displaced.
// They do not count as entries, the next writer writes them again, and a search for another record ends.
func TestWriterStopsAfterDisplacement(t *testing.T) {
	m := newSmallMap(t, 4, []string{"b", "c", "d"}, nil)
	m.send(peer, "b", 4, 1000)
	for i := range 2 {
		m.remote(Accepted, 1, other, Version(2000+i), fmt.Sprint("c", i), "v")
	}
	m.tab.Update(func(tx *Tx) {
		var rec, victim Record
		var refused []Record
		for tx.NextDirty(m.writer, &rec) {
			m.write(tx, &rec, &refused)
		}
		tx.SetApplied(m.writer.Position())
		for i := range refused {
			if search(tx, &refused[i], &victim) {
				delete(m.entries, text(victim.Key))
				tx.Displaced(victim.Ref, 2)
			}
		}
		taken := 0
		for tx.NextDirty(m.writer, &rec) {
			taken++
		}
		if taken != 2 || m.tab.kernelEntries("c") != 0 {
			t.Fatalf("records of c: got %d taken, %d counted as held, want 2 and 0", taken, m.tab.kernelEntries("c"))
		}
	})
	m.restartWriter()
	for key := range m.entries {
		m.remote(Accepted, 1, peer, 9000, key, "-")
	}
	m.sync()
	m.own(4)
	before := m.tab.Stats()
	m.send(Owner{"d", 1}, "d", 1, 3000)
	if st := m.tab.Stats(); st.WriteFailed > before.WriteFailed+3 {
		t.Errorf("failed writes for one record: got %d, want at most 3", st.WriteFailed-before.WriteFailed)
	}
	m.local(Accepted, 9*second, "delete own0 - packet 0")
	delete(m.entries, "own0")
	m.retry()
	m.wantEntries(map[string]int{"a": 3, "b": 0, "c": 1, "d": 0})
}

// TestRetryWithoutVictimWritesOnce: a retry of a record for which no entry may be displaced costs one write,
// however many records the search examines, and the record is not resent.
func TestRetryWithoutVictimWritesOnce(t *testing.T) {
	const n = 20 * displaceSteps
	m := newSmallMap(t, n, []string{"b", "c"}, nil)
	m.send(peer, "b", n, 1000)
	m.tab.Update(func(tx *Tx) {
		for key := range m.entries {
			tx.RequestReread(pad(key, keySize))
		}
	})
	m.send(other, "c", 1, 1000)
	for range 3 {
		before := m.tab.Stats()
		m.tab.Update(func(tx *Tx) { tx.RequeueFailed(64) })
		m.sync()
		if st := m.tab.Stats(); st.Head != before.Head || st.WriteFailed != before.WriteFailed+1 {
			t.Errorf("retry: got %d failed writes and %d changes, want 1 and 0", st.WriteFailed-before.WriteFailed, st.Head-before.Head)
		}
	}
}

// TestReturnedEntryIsTheOldest: an entry that was displaced and returns by displacing another one is again the
// oldest entry of its owner.
func TestReturnedEntryIsTheOldest(t *testing.T) {
	m := newSmallMap(t, 20, []string{"b", "c", "d"}, nil)
	m.send(peer, "b", 10, 1000)
	m.send(other, "c", 20, 1000) // c0 to c9 are displaced
	for i := 15; i < 20; i++ {
		m.remote(Accepted, 1, other, 9000, fmt.Sprint("c", i), "-")
	}
	m.send(peer, "B", 5, 5000)
	m.wantEntries(map[string]int{"b": 15, "c": 5})
	m.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	m.sync()
	m.wantEntries(map[string]int{"b": 14, "c": 6})
	returned := ""
	for i := range 10 {
		if _, held := m.entries[fmt.Sprint("c", i)]; held {
			returned = fmt.Sprint("c", i)
		}
	}
	for i := range 10 {
		m.remote(Accepted, 1, peer, 9000, fmt.Sprint("b", i), "-")
	}
	m.sync()
	m.own(20 - len(m.entries))
	before := maps.Clone(m.entries)
	m.send(Owner{"d", 1}, "e", 1, 6000)
	for key := range before {
		if _, held := m.entries[key]; !held && key != returned {
			t.Errorf("displaced entry: got %s, want %s", key, returned)
		}
	}
}

// TestAnotherMapHasRefusedNothing: a write that another map refused does not count in a new map.
func TestAnotherMapHasRefusedNothing(t *testing.T) {
	m := newSmallMap(t, 2, []string{"b"}, nil)
	m.send(peer, "b", 3, 1000)
	m.wantEntries(map[string]int{"b": 2})
	m.tab.Update((*Tx).Refill)
	if n := m.tab.kernelEntries("b"); n != 3 {
		t.Errorf("entries that the new map may hold: got %d, want 3", n)
	}
	m.attach(3, make(map[string]string))
	m.wantEntries(map[string]int{"b": 3})
}

// TestVictimOfDepartedOwnersIsFound: the search restarts for the group of all departed owners, too.
func TestVictimOfDepartedOwnersIsFound(t *testing.T) {
	const n = 20 * displaceSteps
	m := newSmallMap(t, n, []string{"b"}, []string{"d"})
	m.send(Owner{"d", 1}, "d", n, 1000)
	m.tab.Update(func(tx *Tx) {
		for key := range m.entries {
			tx.RequestReread(pad(key, keySize))
		}
	})
	m.send(peer, "b", 1, 1000)
	m.wantEntries(map[string]int{"b": 0})
	m.tab.Update(func(tx *Tx) {
		for tx.TakeRereads(make([]byte, 64*keySize)) > 0 {
		}
	})
	m.local(Unchanged, second, fmt.Sprintf("update d%d v reread 0", n/2))
	m.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	m.sync()
	m.wantEntries(map[string]int{"b": 1, "d": n - 1})
}

// TestOwnRecordAfterADisplacement: a full map refuses an own record in the burst in which another record displaced
// the only entry of its owner. The own record displaces that other record, once it is in the map.
func TestOwnRecordAfterADisplacement(t *testing.T) {
	m := newSmallMap(t, 2, []string{"b", "c"}, nil)
	m.send(other, "c", 2, 1000)
	m.own(2)
	m.attach(2, map[string]string{"own0": "a", "c0": "c"})
	m.wantEntries(map[string]int{"a": 2, "c": 0})
}

// TestRoomIsForTheRefusedRecord: the writer writes the record for which an entry was displaced before it
// retries others.
func TestRoomIsForTheRefusedRecord(t *testing.T) {
	r, _ := fullMap(t) // the record m stays failed
	r.remote(Accepted, 0, peer, 3000, "n", "v")
	refused := r.refuse()
	if _, key := r.displace(refused[0]); key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	if rec := r.take(); text(rec.Key) != "n" {
		t.Errorf("record that is written first: got %s, want n", text(rec.Key))
	}
}

// TestRecordsThatChangeAllTheTimeAreDisplaced: the largest owner changes all its entries before each burst. An own
// record displaces one nevertheless.
func TestRecordsThatChangeAllTheTimeAreDisplaced(t *testing.T) {
	m := newSmallMap(t, 4, []string{"b"}, nil)
	m.send(peer, "b", 4, 1000)
	m.own(1)
	m.entries = map[string]string{"b0": "b", "b1": "b", "b2": "b", "b3": "b"}
	m.tab.Update((*Tx).Refill)
	m.restartWriter()
	m.tab.Update(func(tx *Tx) {
		var rec, victim Record
		var refused []Record
		for tx.NextDirty(m.writer, &rec) {
			m.write(tx, &rec, &refused)
		}
		tx.SetApplied(m.writer.Position())
		id := tx.Intern(peer)
		for n := range 4 {
			tx.Remote(&Delta{Key: pad(fmt.Sprint("b", n), keySize), Value: pad("w", valueSize), Version: Version(2000 + n), Owner: id}, 1, RemoteOptions{})
		}
		if len(refused) != 1 || !search(tx, &refused[0], &victim) {
			t.Fatalf("search for the refused records %v: got no victim, want an entry of b", refused)
		}
		delete(m.entries, text(victim.Key))
		tx.Displaced(victim.Ref, 2)
	})
	m.sync()
	m.wantEntries(map[string]int{"a": 1, "b": 3})
}

// TestDeferredRecordKeepsItsPosition: a record that a full map refused and that waits for others is not sent
// again, and a sweep after a full sync finds it at its old position.
func TestDeferredRecordKeepsItsPosition(t *testing.T) {
	m := newSmallMap(t, 2, []string{"b", "c"}, nil)
	m.send(other, "c", 2, 1000)
	m.own(2)
	before := m.tab.Stats().Head
	m.attach(2, map[string]string{"own0": "a", "c0": "c"})
	m.wantEntries(map[string]int{"a": 2, "c": 0})
	if head := m.tab.Stats().Head; head != before {
		t.Errorf("head after the displacement: got %d, want %d as before", head, before)
	}
}

// TestRecreatedRecordIsNotDisplaced: a peer deletes keys and creates them again, and the writer has written the deletes
// only. The kernel map has no entry of such a record, so it cannot be displaced.
func TestRecreatedRecordIsNotDisplaced(t *testing.T) {
	m := newSmallMap(t, 5, []string{"b", "c"}, nil)
	m.send(peer, "b", 5, 1000)
	m.room = 3
	m.remote(Accepted, 1, peer, 2000, "b0", "-")
	m.remote(Accepted, 1, peer, 2000, "b1", "-")
	m.remote(Accepted, 1, other, 2000, "c0", "v")
	m.tab.Update(func(tx *Tx) {
		var rec, victim Record
		var refused []Record
		put := func(n int) {
			tx.Remote(&Delta{Key: pad(fmt.Sprint("b", n), keySize), Value: pad("w", valueSize), Version: 3000, Owner: tx.Intern(peer)}, 1, RemoteOptions{})
		}
		for n := range 2 {
			tx.NextDirty(m.writer, &rec)
			taken := rec
			if n == 0 {
				put(0) // during the write of the delete
			}
			m.write(tx, &taken, &refused)
		}
		for n := 1; n < 5; n++ {
			put(n) // the others have an older entry in the map
		}
		tx.NextDirty(m.writer, &rec)
		m.write(tx, &rec, &refused)
		if len(refused) != 1 || !search(tx, &refused[0], &victim) || text(victim.Key) != "b2" {
			t.Errorf("victim for %d refused records: got %q, want b2 for 1", len(refused), text(victim.Key))
		}
	})
}

// TestRemovedEntryIsNotDisplaced: the entry of a record has left the kernel map, and the writer has yet to write it
// again. The record cannot be displaced, although the writer wrote it before.
func TestRemovedEntryIsNotDisplaced(t *testing.T) {
	for _, tt := range []struct {
		how  string
		want Outcome
	}{
		{"delete b0 - syscall 0", Restored},
		{"evict b0 - packet 0", Ignored},
	} {
		m := newSmallMap(t, 3, []string{"b", "c"}, nil)
		m.send(peer, "b", 3, 1000)
		m.remote(Accepted, 1, other, 2000, "c0", "v")
		m.local(tt.want, second, tt.how)
		delete(m.entries, "b0")
		m.entries["own0"] = self.Node
		m.reread(2 * second)
		for n := range 3 {
			m.remote(Accepted, 1, peer, 3000, fmt.Sprint("b", n), "w")
		}
		m.tab.Update(func(tx *Tx) {
			var rec, victim Record
			var refused []Record
			tx.NextDirty(m.writer, &rec)
			m.write(tx, &rec, &refused)
			if len(refused) != 1 || !search(tx, &refused[0], &victim) || text(victim.Key) != "b1" {
				t.Errorf("after %q, victim for %d refused records: got %q, want b1 for 1", tt.how, len(refused), text(victim.Key))
			}
		})
	}
}

// TestDeferredRecordIsDisplaced: a record that waited for the records of the largest group is written by a retry, and
// then displaced, while it is still queued. It waits for a retry like all displaced records, and its delete leaves no
// entry.
func TestDeferredRecordIsDisplaced(t *testing.T) {
	m := newSmallMap(t, 5, []string{"b", "c"}, nil)
	m.send(peer, "b", 1, 1000)
	m.send(other, "c", 3, 1000)
	m.own(1)
	m.room, m.entries = 1, map[string]string{"x": ""}
	m.tab.Update((*Tx).Refill)
	m.restartWriter()
	m.tab.Update(func(tx *Tx) {
		var rec, victim Record
		var refused []Record
		tx.NextDirty(m.writer, &rec)
		m.write(tx, &rec, &refused)
		if len(refused) != 1 || search(tx, &refused[0], &victim) {
			t.Fatalf("refused records: got %d, want 1 for which no entry is displaced", len(refused))
		}
		tx.RequeueFailed(1)
		m.room++
		for tx.NextDirty(m.writer, &rec) && text(rec.Key) != "own0" {
			m.write(tx, &rec, &refused)
		}
		m.write(tx, &rec, &refused)
		if !search(tx, &refused[len(refused)-1], &victim) || text(victim.Key) != "b0" {
			t.Fatalf("victim for %s: got %q, want b0", text(rec.Key), text(victim.Key))
		}
		delete(m.entries, "b0")
		tx.Displaced(victim.Ref, 2)
		m.room++
	})
	m.sync()
	if _, written := m.entries["b0"]; written {
		t.Error("b0: got a write before its retry, want none")
	}
	m.tab.Update(func(tx *Tx) { tx.RequeueFailed(64) })
	m.sync()
	m.wantEntries(map[string]int{"a": 1, "b": 1, "c": 0})
	m.remote(Accepted, 1, peer, 9000, "b0", "-")
	m.sync()
	m.wantEntries(map[string]int{"a": 1, "b": 0, "c": 0})
}
