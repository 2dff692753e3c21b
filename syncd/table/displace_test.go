package table

import "testing"

// refuse simulates a writer that takes all dirty records and a kernel that refuses all of them.
func (r *rig) refuse() (refused []Record) {
	r.tab.Update(func(tx *Tx) {
		var rec Record
		for tx.NextDirty(r.writer, &rec) {
			rec.Key = append([]byte(nil), rec.Key...)
			refused = append(refused, rec)
			tx.Applied(rec.Ref, rec.Version, errFull)
		}
		tx.SetApplied(r.writer.Position())
	})
	return refused
}

// search calls Displace for a record until the search is finished.
func search(tx *Tx, refused *Record, victim *Record) (found bool) {
	for more := true; more; {
		found, more = tx.Displace(refused.Ref, refused.Version, victim)
	}
	return found
}

// displace calls Displace for a record. It returns the victim and its key, or "" without a victim.
func (r *rig) displace(rec Record) (victim Record, key string) {
	r.tab.Update(func(tx *Tx) {
		if search(tx, &rec, &victim) {
			key = text(victim.Key)
		}
	})
	checkInvariants(r, r.tab)
	return victim, key
}

func TestOldestEntryIsDisplaced(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 500, "update o v packet 0")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, other, 1001, "l", "v")
	r.write()

	r.remote(Accepted, 0, peer, 2000, "m", "v")
	m := r.refuse()
	victim, key := r.displace(m[0])
	if key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	r.want("k", "v v1000 b100 dirty") // it stays in the table
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 3000) })
	if keys := r.write(); keys != "m" {
		t.Fatalf("written keys: got %q, want m", keys)
	}
	if st := r.tab.Stats(); st.Failed != 1 || st.Dirty != 1 || st.Displaced != 1 {
		t.Fatalf("stats: got %+v, want Failed 1, Dirty 1, Displaced 1", st)
	}
	// A record older than all entries of the map stays out. This also holds for the victim itself.
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	k := r.refuse()
	if len(k) != 1 || text(k[0].Key) != "k" {
		t.Fatalf("refused records: got %v, want k", k)
	}
	if _, key := r.displace(k[0]); key != "" {
		t.Fatalf("Displace for an older record: got victim %q, want none", key)
	}
	// The owner updates the entry: now it is the newest.
	r.remote(Accepted, 0, peer, 4000, "k", "w")
	if _, key := r.displace(r.refuse()[0]); key != "l" {
		t.Fatalf("Displace: got victim %q, want l", key)
	}
	// Entries of this node are never victims. Records of this node displace entries of any other node.
	r.remote(Accepted, 0, peer, 9000, "n", "v")
	n := r.refuse() // together with k
	for range n {
		r.displace(n[len(n)-1])
	}
	if st := r.tab.Stats(); st.Displaced > 3 {
		t.Fatalf("stats: got %+v, want Displaced at most 3", st)
	}
	r.want("o", "v v500 a100")
}

func TestOwnRecordDisplacesNewerOnesOfOthers(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 500, "update o v packet 0")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.writer.Close()
	r.writer = r.tab.NewCursor(0)
	own := r.take()
	r.applied(own, errFull)
	r.write()
	if _, key := r.displace(own); key != "k" {
		t.Fatalf("Displace for a record of this node: got victim %q, want k", key)
	}
}

// A record that changes during its displacement keeps the new state and is not lost.
func TestUpdateDuringDisplacement(t *testing.T) {
	for name, event := range map[string]struct {
		at    int64
		late  bool // the event arrives after Displaced
		dirty bool
	}{
		"written before, event before": {2500, false, true},
		"written before, event after":  {2500, true, true},
		"written after":                {9 * second, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.remote(Accepted, 0, peer, 1000, "k", "v")
			r.write()
			r.remote(Accepted, 0, peer, 2000, "m", "v")
			victim, _ := r.displace(r.refuse()[0])
			deliver := func() { r.local(Accepted, event.at, "update k w packet 0") }
			if !event.late {
				deliver()
			}
			r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 3000) })
			if event.late {
				deliver()
			}
			checkInvariants(t, r.tab)
			keys := r.write()
			if wrote := keys == "mk"; wrote != event.dirty {
				t.Fatalf("written keys: got %q, want mk only if k is dirty", keys)
			}
			if st := r.tab.Stats(); st.Failed != 0 || st.Dirty != 0 {
				t.Fatalf("stats: got %+v, want Failed 0, Dirty 0", st)
			}
		})
	}
}

func TestDisplaceIgnoresRecordsThatDidNotFail(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	rec := r.take()
	for ref := range Ref(1 << 13) { // the kernel map refused none of them
		rec.Ref = ref
		if _, key := r.displace(rec); key != "" {
			t.Fatalf("Displace of a record that did not fail: got victim %q, want none", key)
		}
		r.tab.Update(func(tx *Tx) { tx.Displaced(ref, 8) })
	}
	checkInvariants(t, r.tab)
}
