package table

import "testing"

// requeue queues failed writes again, and checks their number.
func (r *rig) requeue(limit, want int) {
	r.Helper()
	r.tab.Update(func(tx *Tx) {
		if n := tx.RequeueFailed(limit); n != want {
			r.Fatalf("requeued %d, want %d", n, want)
		}
	})
}

// TestRetryOfAChangedRecord: the writer does not retry a record that the data plane has taken over. It
// retries a later write of the record that fails.
func TestRetryOfAChangedRecord(t *testing.T) {
	for name, queued := range map[string]bool{"before the retry": false, "during the retry": true} {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.refuse()
		if queued {
			r.requeue(9, 1)
		}
		r.local(Accepted, 2*second, "update k w packet 0")
		if !queued {
			r.requeue(9, 0)
		}
		if keys := r.write(); keys != "" {
			t.Errorf("%s: written keys: got %q, want none", name, keys)
		}
		r.takeRereads()
		r.remote(Accepted, 3*second, peer, Version(3*second), "k", "x")
		r.refuse()
		r.requeue(9, 1)
		if keys := r.write(); keys != "k" {
			t.Errorf("%s: written keys: got %q, want k", name, keys)
		}
	}
}

// TestLateReportOfAnOlderWrite: the report of an older version leaves the record dirty.
func TestLateReportOfAnOlderWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "v")
	first := r.take()
	r.remote(Accepted, second, peer, 11, "k", "w")
	next := r.take()
	r.applied(first, nil)
	r.want("k", "w v11 b100 dirty")
	r.applied(first, errFull)
	if n := r.tab.Stats().Failed; n != 0 {
		t.Errorf("failed records: got %d, want 0", n)
	}
	r.applied(next, nil)
	r.want("k", "w v11 b100")
}

// TestLateWriteOverTakenOverRecord: the writer writes the record again, even if it has passed the new
// position of the record.
func TestLateWriteOverTakenOverRecord(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.local(Accepted, 2000, "update k v2 packet 0")
	r.takeRereads()
	r.local(Unchanged, 3000, "update k v2 reread 0")
	r.remote(Accepted, 4000, other, 4000, "k", "v2")
	r.remote(Accepted, 4000, other, 4000, "l", "v")
	if keys := r.write(); keys != "l" {
		t.Fatalf("written keys: got %q, want l", keys)
	}
	r.applied(first, nil)
	if keys := r.write(); keys != "k" {
		t.Errorf("written keys: got %q, want k", keys)
	}
	r.wantOrder("lk")
}

// TestReadingDuringAWrite: the value of a reading is stale if a write of the key ended meanwhile.
func TestReadingDuringAWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "old")
	r.write()
	r.remote(Accepted, second, peer, 11, "k", "new")
	rec := r.take()
	before := r.read(2 * second)
	r.applied(rec, nil)
	before.found(Stale, "k", "old")
	r.want("k", "new v11 b100")
}

// TestAppliedOfFreeSlot: a report for a free slot, or for the head of a list, has no effect.
func TestAppliedOfFreeSlot(t *testing.T) {
	r := newRig(t, shortLived)
	r.remote(Accepted, second, peer, 10, "k", "v")
	rec := r.take()
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.takeRereads()
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.write()
	r.expire(100*second, 9)
	r.want("k", "unknown")
	r.applied(rec, nil)
	for ref := range Ref(firstSlot) {
		rec.Ref = ref
		r.applied(rec, nil)
	}
	if st := r.tab.Stats(); st.PendingRereads != 0 || st.Dirty != 0 || r.tab.rereads.len() != 0 {
		t.Errorf("rereads: got %d, %d dirty, want 0 and 0", st.PendingRereads, st.Dirty)
	}
}

// TestFailedWriteOfAReleasedRecord: the map holds an older value, which the writer deletes.
func TestFailedWriteOfAReleasedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.expired(Accepted, second, peer, 10, "k")
	rec := r.take()
	if rec.Delete || text(rec.Value) != "v" {
		t.Errorf("NextDirty: got %+v, want the value", rec)
	}
	r.applied(rec, errFull)
	if st := r.tab.Stats(); st.Released != 0 || st.Failed != 0 || st.Dirty != 1 {
		t.Errorf("records: got %d released, %d failed, %d dirty, want 0 and 0 and 1", st.Released, st.Failed, st.Dirty)
	}
	if rec = r.take(); !rec.Delete {
		t.Errorf("NextDirty: got %+v, want the delete", rec)
	}
}

// TestRefillResetsMapState: Refill clears the marks of writes, releases and deletes in the previous
// map.
func TestRefillResetsMapState(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, second, "update k v packet 0")
	r.remote(Accepted, second, peer, 10, "released", "v")
	r.remote(Accepted, second, peer, 10, "deleted", "v")
	refill := func() {
		r.tab.Update((*Tx).Refill)
		r.writer.Close()
		r.writer = r.tab.NewCursor(0)
	}
	refill()
	r.write()
	r.expired(Accepted, 2*second, peer, 10, "released")
	r.remote(Accepted, 2*second, peer, 11, "deleted", "-")
	refill()
	if st := r.tab.Stats(); st.Released != 0 || st.Dirty != 1 {
		t.Errorf("%d released, %d dirty, want k alone", st.Released, st.Dirty)
	}
	r.local(Accepted, 3*second, "update k w packet 0")
	r.wantRereads("")
	if keys := r.write(); keys != "" {
		t.Errorf("written keys: got %q, want none", keys)
	}
}

// full returns a table whose last chunk has no free slot, and its number of records.
func full(t *testing.T) (r *rig, n int) {
	t.Helper()
	r = newRig(t, func(o *Options) { o.ValueSize = 8000 })
	n = len(r.tab.chunks[0].meta) - int(firstSlot)
	value := make([]byte, 8000)
	for i := range n {
		value[0] = byte(i)
		d := &Delta{Key: pad(string(rune('A'+i)), keySize), Value: value, Version: 10}
		r.do(Accepted, func(tx *Tx) Outcome { d.Owner = tx.Intern(peer); return tx.Remote(d, 1, RemoteOptions{}) })
	}
	return r, n
}

// TestFullChunk: loops over all slots end at the last one. A reference beyond it has no effect.
func TestFullChunk(t *testing.T) {
	r, n := full(t)
	r.write()
	beyond := Record{Ref: Ref(r.tab.allocated), Version: 10}
	r.applied(beyond, nil)
	r.applied(beyond, errFull)
	if _, key := r.displace(beyond); key != "" {
		t.Errorf("Displace: got victim %q, want none", key)
	}
	r.tab.Update(func(tx *Tx) {
		tx.Displaced(beyond.Ref, 1)
		tx.SetDigestKey([]byte("another"))
		if tx.Audit(n + 9) {
			t.Error("Audit: got more true, want false")
		}
		tx.BeginScan(0)
		if tx.EndScan(n + 9) {
			t.Error("EndScan: got more true, want false")
		}
	})
	if st := r.tab.Stats(); st.Live != n || st.Dirty != 0 || st.Audits != 1 || st.AuditFound != 0 || st.PendingRereads != n {
		t.Errorf("stats: got %+v, want all records live and clean, 1 audit without differences", st)
	}
}

// TestEventBeforeAWriteOfAnOlderVersion: a peer's delete is written while a repair gives the tombstone another
// version. The data plane wrote the key before that write. When its event arrives, the key is reread, because
// the kernel map may not have it.
func TestEventBeforeAWriteOfAnOlderVersion(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.remote(Accepted, 2*second, peer, Version(2*second), "k", "-")
	rec := r.take()
	r.merge(Stale, 3*second, other, 9, "k", "v", RemoteOptions{Repair: true}) // the tombstone is resent
	r.applied(rec, nil)
	r.local(Accepted, 9*second, "update k w packet 0")
	r.wantRereads("k")
}

// TestOwnWriteAfterADelete: syncd's write reached the map after a delete by the data plane. The reread that shows
// it is evidence: it ends the uncertainty, and later evidence counts from its time.
func TestOwnWriteAfterADelete(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	rec := r.take()
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.applied(rec, nil)
	r.wantRereads("k")
	r.local(Stale, 3*second, "update k v reread 0")
	r.want("k", "- v2000000000 a100 dirty")
	if seen, uncertain := (Internals{}).Uncertain(r.tab, pad("k", keySize)); seen != 3*second || uncertain {
		t.Errorf("evidence: got seen at %d, uncertain %v, want %d, false", seen, uncertain, 3*second)
	}
}
