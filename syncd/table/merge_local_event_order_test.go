package table

import (
	"math"
	"testing"
)

// Two CPUs write and delete a key during the first read of the map. The event of the write arrives
// last, after Adopt has removed the key.
func TestAdoptStoresDeletedKeys(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.local(Accepted, second+1000, "delete k - syscall 1")
	r.adopt()
	r.want("k", "unknown")
	r.local(Accepted, second, "update k v packet 0")
	r.wantRereads("k")
}

// Two deleted keys have the same place in earlyDeletes: the later delete stays.
func TestEarlyDeletesKeepTheLatest(t *testing.T) {
	var x earlyDeletes
	x.note(7, 2*second, 0, true)
	x.note(7, second, 1, false)
	deleted, packet := x.match(7, &Change{Time: 2 * second, CPU: 1})
	if same, _ := x.match(7, &Change{Time: 2 * second, CPU: 0}); !deleted || !packet || same {
		t.Errorf("early delete: got %+v, want the later one, of CPU 0 by a packet", x[0])
	}
}

// Only deletes of one key by two CPUs at about the same time have an unknown order.
func TestEarlyDeletesOfUnknownOrder(t *testing.T) {
	note := func(hash uint32, at int64, cpu uint16) (x earlyDeletes) {
		x.note(7, second, 1, true)
		x.note(hash, at, cpu, hash == 8)
		return x
	}
	for name, c := range map[string]struct {
		x    earlyDeletes
		want earlyDelete
	}{
		"two CPUs":                 {note(7, second+timestampMargin, 0), earlyDelete{second + timestampMargin, 7, cpuNone, false}},
		"two CPUs, earlier":        {note(7, second-timestampMargin, 0), earlyDelete{second, 7, cpuNone, false}},
		"one CPU":                  {note(7, second+1, 1), earlyDelete{second + 1, 7, 1, false}},
		"two keys, the same place": {note(8, second+1, 0), earlyDelete{second + 1, 8, 0, true}},
	} {
		if got := c.x[0]; got != c.want {
			t.Errorf("early delete, %s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// CPU 0 deletes and creates a key during the first read of the map, and CPU 1 deletes it at the same moment.
// The events of the deletes arrive first. They do not show which write was the last one.
func TestDeletesOfTwoCPUsDuringTheLoad(t *testing.T) {
	for _, order := range [][]string{
		{"delete k - packet 0", "delete k - packet 1"},
		{"delete k - packet 1", "delete k - packet 0"},
	} {
		r := newRig(t)
		r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
		for _, event := range order {
			r.local(Unchanged, second, event)
		}
		r.local(Accepted, second+1000, "update k v packet 0")
		r.wantRereads("k")
	}
	var x earlyDeletes
	x.note(7, second, 1, true)
	x.note(7, second+timestampMargin+1, 0, true)
	if deleted, _ := x.match(7, &Change{Time: second + timestampMargin + 1, CPU: 0}); deleted {
		t.Errorf("early delete: got %+v, want the later one alone", x[0])
	}
}

// A restarted scan compares all records, for any number of restarts.
func TestRestartedScanComparesAllRecords(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	for range 3 {
		r.tab.Update(func(tx *Tx) { tx.BeginScan(0) })
	}
	r.scan(2 * second)
	r.wantRereads("k")
	// A reread at the end of a scan does not count as found in the next scan.
	r.local(Unchanged, 3*second, "update k v reread 0")
	r.scan(4 * second)
	r.wantRereads("k")
}

// A map evicts a key on one CPU while another CPU writes it. A reread of the map decides which came
// last.
func TestConcurrentEvictionAndWrite(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 2")
	r.local(Ignored, second+timestampMargin, "evict k - own 0")
	r.wantRereads("k")
	r.local(Unchanged, 2*second, "update k v reread 0")
	r.remote(Accepted, 3*second, peer, Version(3*second), "k", "-")
	r.want("k", "- v3000000000 b100 dirty")
	r.local(Accepted, second, "update l v packet 0")
	r.local(Ignored, second+1, "evict l - own 0") // the events of one CPU are in the order of the map
	r.local(Accepted, second, "update m v packet 2")
	r.local(Ignored, second+timestampMargin+1, "evict m - own 0")
	r.wantRereads("")
}

// The order of an event and a read of the map at the same time is unknown, for an event of any CPU.
func TestEventAtReadTimeIsReread(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k 1 packet 0")
	r.read(second+10).found(Accepted, "k", "0")
	r.wantRereads("k")
	r.read(second+20).found(Unchanged, "k", "0")
	r.local(Accepted, second+30, "update k 2 packet 0")
	r.want("k", "2 v1000000030 a100")
	r.wantRereads("k")
}

// A delete event arrives after more than TombstoneTTL. The lifetime of the tombstone begins with the
// arrival.
func TestLateDeleteIsStored(t *testing.T) {
	r := newRig(t, shortLived)
	late := func(now int64) {
		r.tab.Update(func(tx *Tx) { tx.AdvanceClock(now) })
		r.local(Accepted, now-5*second, "delete k - packet 0")
		r.expire(now, 9)
		r.wantOrder("k")
	}
	r.local(Accepted, second, "update k v packet 0")
	late(9 * second)
	r.local(Accepted, 9*second+1, "update k w packet 0") // the same holds for a key that was created again
	late(19 * second)
	r.expire(20*second, 9)
	r.wantOrder("")
}

// A retried write does not count as a record that its owner sent. Sweep deletes the record if the full
// sync from the owner did not include it.
func TestSweepIncludesRetriedWrites(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.applied(r.take(), errFull)
	before := r.tab.Stats().Head + 1
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	again := r.take()
	r.applied(again, errFull)
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: before}, 2*second, c, 9)
	})
	r.want("k", "- v1000 b100 dirty")
}

// A writer that ends with a retried record leaves the record to the next writer.
func TestNextWriterRetriesFailedWrites(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.applied(r.take(), errFull)
	r.write()
	for range 2 {
		r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
		r.take()
	}
	r.writer.Close()
	r.writer = r.tab.NewCursor(r.tab.Stats().Applied)
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(9) })
	if keys := r.write(); keys != "k" {
		t.Fatalf("written keys: got %q, want k", keys)
	}
}

// TestEventsOfOneValueNeedNoReread: two CPUs write the same value at about the same time. Their order does not
// matter.
func TestEventsOfOneValueNeedNoReread(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Unchanged, second-10, "update k v packet 1")
	r.wantRereads("")
}

// TestEventAfterAnAbsentKey: the table has a delete of a key without an event, because the key is not in the
// map. The order of that delete and of an event at about the same time is uncertain.
func TestEventAfterAnAbsentKey(t *testing.T) {
	r := newRig(t, sameMap)
	r.remote(Accepted, second, older, 1000, "k", "v")
	r.want("k", "- v1001 a100")
	r.local(Accepted, second+1, "update k v packet 0")
	r.wantRereads("k")
}

// TestLateChangeKeepsNewerEvidence: a change that is older than the newest evidence for a record leaves the time of
// that evidence, unless it revives the record.
func TestLateChangeKeepsNewerEvidence(t *testing.T) {
	seen := func(r *rig, want int64) {
		t.Helper()
		if m, _ := r.tab.metaOf(pad("k", keySize)); m.seen != want {
			t.Errorf("time of the newest evidence: got %d, want %d", m.seen, want)
		}
	}
	r := newRig(t)
	r.remote(Accepted, 5*second, peer, 1000, "k", "v")
	r.write()
	r.local(Accepted, 3*second, "update k w packet 0")
	seen(r, 5*second)
	r = newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Ignored, 5*second, "evict k - packet 0")
	r.local(Accepted, 4*second, "delete k - packet 0")
	seen(r, 5*second)
}
