package kmap

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// put makes the load balancer write an entry, and reads the map.
func (r *referringMap) put(port, service uint16, backend, state uint32) {
	r.t.Helper()
	key, value := referringEntry(port, service, backend, state)
	if err := r.kernel.Put(key, value); err != nil {
		r.t.Fatal(err)
	}
	r.rescan()
}

// wantMeanings waits until the live records are those wanted: the meanings of each, with the number of records.
func (r *referringMap) wantMeanings(when string, want map[string]int) {
	r.t.Helper()
	var got map[string]int
	poll.Within(r.t, 10*time.Second, when+fmt.Sprint(": want the records ", want), func() bool {
		got = make(map[string]int)
		c := r.tab.NewCursor(0)
		defer c.Close()
		r.tab.View(func(tx *table.Tx) {
			for rec := (table.Record{}); tx.Next(c, &rec); {
				if !rec.Delete {
					service, _ := r.services.Name(uint32(rec.Key[2]) | uint32(rec.Key[3])<<8)
					got[service]++
				}
			}
		})
		return fmt.Sprint(got) == fmt.Sprint(want)
	}, func() any { return got })
}

// TestEntriesWrittenAtAChangeOfIDs: the load balancer uses an id before syncd has read what it means now. Its entries stay in the map, and have
// the new meaning.
func TestEntriesWrittenAtAChangeOfIDs(t *testing.T) {
	for name, c := range map[string]struct {
		write    map[uint16]uint32 // the states of port 10, by service
		services map[uint64]string // the next reading
		stored   string
		meanings map[string]int
	}{
		"new":         {map[uint16]uint32{9: 1}, map[uint64]string{1: "vip=1", 2: "vip=2", 9: "vip=9"}, "map[10: 9>5/1]", map[string]int{"vip=9": 1}},
		"used again":  {map[uint16]uint32{1: 1}, map[uint64]string{1: "vip=3", 2: "vip=2"}, "map[10: 1>5/1]", map[string]int{"vip=3": 1}},
		"exchanged":   {map[uint16]uint32{1: 22, 2: 11}, map[uint64]string{1: "vip=2", 2: "vip=1"}, "map[10: 1>5/22 2>5/11]", map[string]int{"vip=1": 1, "vip=2": 1}},
		"not changed": {map[uint16]uint32{2: 1}, map[uint64]string{1: "vip=3", 2: "vip=2"}, "map[10: 2>5/1]", map[string]int{"vip=2": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReferringMap(t, false, map[uint64]string{1: "vip=1", 2: "vip=2"}, map[uint64]string{5: "m"})
			for _, service := range []uint16{1, 2, 9} {
				if state, ok := c.write[service]; ok {
					r.put(10, service, 5, state)
				}
			}
			r.services.Update(c.services)
			r.wantMeanings("after the change", c.meanings)
			r.rescan()
			r.wantStored("after a scan", c.stored)
			r.wantMeanings("after a scan", c.meanings)
		})
	}
}

// TestKeysWithoutAnID: an entry whose service has no id here is not found, although the number of the service is an id of another one.
func TestKeysWithoutAnID(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{2: "vip=1", 3: "vip=4"}, map[uint64]string{5: "m"})
	known, _ := referringEntry(10, uint16(number(t, r.services, "vip=1")), 0, 0)
	k2 := number(t, r.services, "vip=2")
	r.services.Update(map[uint64]string{uint64(k2): "vip=1", 50: "vip=4"})
	r.receive(10, "vip=1", "m", 7)
	r.wantStored("a peer's entry", fmt.Sprintf("map[10: %d>5/7]", k2))
	unknown, _ := referringEntry(10, uint16(k2), 0, 0)
	type result struct {
		index int
		key   string
		found bool
	}
	var results []result
	if err := r.m.Lookup(append(append(append([]byte(nil), unknown...), known...), unknown...), func(i int, key, _ []byte, ok bool) {
		results = append(results, result{i, string(key), ok})
	}); err != nil {
		t.Fatal(err)
	}
	if want := []result{{0, string(unknown), false}, {1, string(known), true}, {2, string(unknown), false}}; !slices.Equal(results, want) {
		t.Errorf("Lookup: got %v, want %v", results, want)
	}
	if value, err := r.m.Peek(unknown); err != nil || value != nil {
		t.Errorf("Peek of a key without an id: got %x and error %v, want none", value, err)
	}
	if value, err := r.m.Peek(known); err != nil || value == nil {
		t.Errorf("Peek: got %x and error %v, want the entry", value, err)
	}
}

// TestKeysWithOneMeaning: of two services with one address, entries of the lower id are replicated. Those of the other stay where they are.
func TestKeysWithOneMeaning(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1", 2: "vip=1"}, map[uint64]string{5: "m"})
	r.put(10, 2, 5, 1)
	r.wantMeanings("an entry of the higher id", map[string]int{"": 1})
	key, _ := referringEntry(10, uint16(number(t, r.services, "vip=1")), 0, 0)
	r.tab.Update(func(tx *table.Tx) { tx.RequestRereadOfChange(key) })
	r.put(10, 1, 5, 77)
	r.wantMeanings("entries of both ids", map[string]int{"": 1, "vip=1": 1})
	_, before, _ := r.record(10)
	r.rescan()
	if _, after, _ := r.record(10); after != before {
		t.Errorf("version after a scan: got %d, want %d as before", after, before)
	}
	r.wantStored("entries of both ids", "map[10: 1>5/77 2>5/1]")
	r.services.Update(map[uint64]string{2: "vip=1"})
	r.wantStored("the lower id has ended", "map[10: 2>5/77]")
}

// TestAddedIDAffectsNoOthers: entries without a service or a backend stay as they are when one is added.
func TestAddedIDAffectsNoOthers(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m"})
	r.services.Update(map[uint64]string{1: "vip=1", 2: "vip=2"})
	r.backends.Update(map[uint64]string{5: "m", 9: "z"})
	key, value := referringEntry(10, 0, 0, 1)
	if r.tr.Changes().Affects(key, value) {
		t.Error("entry without ids: got affected by added ids, want not")
	}
}

// TestPendingDeleteAtAChangeOfIDs: the delete of a peer is not written yet when the id in its key changes.
func TestPendingDeleteAtAChangeOfIDs(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1", 2: "vip=2"}, map[uint64]string{5: "m"})
	r.receive(10, "vip=1", "m", 7)
	r.wantStored("a peer's entry", "map[10: 1>5/7]")
	r.stop()
	key, _ := referringEntry(10, uint16(number(t, r.services, "vip=1")), 0, 0)
	r.services.Update(map[uint64]string{1: "vip=3", 2: "vip=2", 3: "vip=1"})
	r.tab.Update(func(tx *table.Tx) {
		tx.Remote(&table.Delta{Key: key, Delete: true, Version: table.Version(now()), Owner: r.peer}, now(), table.RemoteOptions{})
	})
	r.syncFixture = newSyncFixture(t, r.tab, r.m)
	r.wantStored("the entry is deleted", "map[]")
	r.rescan()
	r.wantMeanings("after a scan", map[string]int{})
}

// TestCopiesOfAnEarlierIncarnation: after a reboot, peers have sent this node its own sessions. The load balancer numbers its backends anew.
func TestCopiesOfAnEarlierIncarnation(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m"})
	r.tab.Update(func(tx *table.Tx) { r.peer = tx.Intern(table.Owner{Node: "here", Incarnation: 1}) })
	r.receive(10, "vip=1", "m", 1)
	r.wantStored("an own entry from a peer", "map[10: 1>5/1]")
	r.backends.Update(map[uint64]string{5: "o", 6: "m"})
	r.wantStored("the backend has another id", "map[10: 1>6/1]")
	if _, _, m := r.record(10); m != "vip=1>m" {
		t.Errorf("record: got the meanings %q, want vip=1>m as before", m)
	}
}

// TestWritesDuringAChangeOfIDs: the load balancer writes entries while the table is searched for those whose ids change. They are read again.
func TestWritesDuringAChangeOfIDs(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m", 6: "n"})
	r.stop()
	for port := range uint16(60000) {
		r.receive(port, "vip=1", "n", 1)
	}
	former := number(t, r.backends, "m")
	r.backends.Update(map[uint64]string{5: "o", 6: "n"})
	sync, err := NewSyncer(r.tab, r.m, SyncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- sync.retranslate() }()
	for port, running := uint16(60001), true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			key, value := referringEntry(port, 1, 5, 1)
			r.tr.FromKernel(key, value)
			r.tab.Update(func(tx *table.Tx) {
				tx.Local(&table.Change{Key: key, Value: value, Time: now(), Op: table.OpUpdate, Context: table.ContextSyscall})
			})
			port = 60001 + (port-60000)%5000
		}
	}
	if err := sync.retranslate(); err != nil {
		t.Fatal(err)
	}
	stale, cursor := uint64(0), r.tab.NewCursor(0)
	defer cursor.Close()
	r.tab.View(func(tx *table.Tx) {
		for rec := (table.Record{}); tx.Next(cursor, &rec); {
			if !rec.Delete && uint32(rec.Value[0])|uint32(rec.Value[1])<<8 == former {
				stale++
			}
		}
	})
	if pending := uint64(r.tab.Stats().PendingRereads); stale > pending {
		t.Errorf("entries with the former meaning of their id: got %d, of which %d are read again, want all", stale, pending)
	}
}
