package table

import "testing"

// refuse has the writer take all there is, and the kernel refuse it.
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

// displace makes way for a record and returns the victim's key, "" for none.
func (r *rig) displace(rec Record) (victim Record, key string) {
	r.tab.Update(func(tx *Tx) {
		if tx.Displace(rec.Ref, rec.Version, &victim) {
			key = text(victim.Key)
		}
	})
	checkInvariants(r, r.tab)
	return victim, key
}

func TestTheOldestOfOthersMakesWay(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 500, "update o v packet 0")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, other, 1001, "l", "v")
	r.write()

	r.remote(Accepted, 0, peer, 2000, "m", "v")
	m := r.refuse()
	victim, key := r.displace(m[0])
	if key != "k" {
		t.Fatalf("%q is displaced", key)
	}
	r.want("k", "v v1000 b100 dirty") // in the table it stays
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, victim.Version, 3000) })
	if keys := r.write(); keys != "m" {
		t.Fatalf("wrote %q", keys)
	}
	if st := r.tab.Stats(); st.Failed != 1 || st.Dirty != 1 || st.Displaced != 1 {
		t.Fatalf("%+v", st)
	}
	// What is older than all that the map holds stays out: also the victim itself.
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	k := r.refuse()
	if len(k) != 1 || text(k[0].Key) != "k" {
		t.Fatalf("refused %v", k)
	}
	if _, key := r.displace(k[0]); key != "" {
		t.Fatalf("%q is displaced for an older one", key)
	}
	// Its owner uses it again: now it is the newest.
	r.remote(Accepted, 0, peer, 4000, "k", "w")
	if _, key := r.displace(r.refuse()[0]); key != "l" {
		t.Fatalf("%q is displaced", key)
	}
	// This node's own are never victims, and go before all others'.
	r.remote(Accepted, 0, peer, 9000, "n", "v")
	n := r.refuse() // with k
	for range n {
		r.displace(n[len(n)-1])
	}
	if st := r.tab.Stats(); st.Displaced > 3 {
		t.Fatalf("%+v", st)
	}
	r.want("o", "v v500 a100")
}

func TestOwnRecordsGoBeforeNewerOnesOfOthers(t *testing.T) {
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
		t.Fatalf("%q is displaced for this node's own", key)
	}
}

// A record that changes while it is thrown out is what it is then, and not lost.
func TestDisplacedAndUsedAtTheSameMoment(t *testing.T) {
	for name, event := range map[string]struct {
		at    int64
		late  bool // told after Displaced
		dirty bool
	}{
		"written before, told before": {2500, false, true},
		"written before, told after":  {2500, true, true},
		"written after":               {9 * second, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.remote(Accepted, 0, peer, 1000, "k", "v")
			r.write()
			r.remote(Accepted, 0, peer, 2000, "m", "v")
			victim, _ := r.displace(r.refuse()[0])
			tell := func() { r.local(Accepted, event.at, "update k w packet 0") }
			if !event.late {
				tell()
			}
			r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, victim.Version, 3000) })
			if event.late {
				tell()
			}
			checkInvariants(t, r.tab)
			keys := r.write()
			if wrote := keys == "mk"; wrote != event.dirty {
				t.Fatalf("wrote %q", keys)
			}
			if st := r.tab.Stats(); st.Failed != 0 || st.Dirty != 0 {
				t.Fatalf("%+v", st)
			}
		})
	}
}

func TestDisplaceOfNothing(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	rec := r.take()
	for ref := range Ref(1 << 13) { // none was refused
		rec.Ref = ref
		if _, key := r.displace(rec); key != "" {
			t.Fatalf("%q is displaced for nothing", key)
		}
		r.tab.Update(func(tx *Tx) { tx.Displaced(ref, 7, 8) })
	}
	checkInvariants(t, r.tab)
}
