package table

import (
	"fmt"
	"testing"
	"time"
)

// TestCompactSkipsPendingTombstones: two kinds of tombstones stay in their slots, even if they move to
// the tail later. The kernel map refused the delete of the first kind. The reread of the second kind
// is pending.
func TestCompactSkipsPendingTombstones(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "refused", "v")
	r.write()
	r.remote(Accepted, second, peer, 2000, "refused", "-")
	r.refuse()
	r.local(Accepted, second, "update reread v packet 0")
	r.local(Accepted, second, "delete reread - packet 0")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("reread", keySize)) })
	r.wantRereads("reread")
	r.write()
	r.compact(9*second, 0)
	if n := r.tab.tombs.len(); n != 2 {
		t.Fatalf("%d tombstones in the queue, want 2", n)
	}
	r.local(Unchanged, 10*second, "delete reread - reread 0")
	r.merge(Stale, 10*second, peer, 9, "reread", "v", RemoteOptions{Touch: true, Repair: true})
	r.wantOrder("refusedreread")
	r.write()
	r.compact(30*second, 0)
	if n := r.tab.tombs.len(); n != 2 {
		t.Errorf("%d tombstones in the queue, want 2", n)
	}
}

// TestExpireCompactsAllTombstones: Expire returns true until the compaction has taken all
// tombstones. It returns false with the last tombstone that it forgets.
func TestExpireCompactsAllTombstones(t *testing.T) {
	const n = 5 * compactSteps
	r := newRig(t)
	for i := range n {
		r.remote(Accepted, second, peer, 1, fmt.Sprint(i), "-")
	}
	r.write()
	for r.expire(3*second, 1) {
	}
	if got := r.tab.log.n; got != n {
		t.Errorf("%d compact tombstones, want %d", got, n)
	}
	if r.expire(second+int64(DefaultTombstoneTTL), n) {
		t.Error("Expire of the last tombstone: got more true, want false")
	}
	r.wantOrder("")
}

// TestCompactMergesLogChunks: the log releases superseded tombstones, both when no tombstone waits
// for compaction and when one does.
func TestCompactMergesLogChunks(t *testing.T) {
	for _, wait := range []bool{false, true} {
		r := newRig(t)
		r.tab.log.shift = 2
		for i := range 100 {
			r.remote(Accepted, second, peer, 1, fmt.Sprint(i), "-")
		}
		r.write()
		r.compact(3*second, 100)
		for i := range 100 {
			if i%4 > 0 {
				r.remote(Accepted, 4*second, peer, 2, fmt.Sprint(i), "v")
			}
		}
		r.write()
		if wait {
			r.remote(Accepted, 5*second, peer, 2, "young", "-")
		}
		r.compact(5*second, 25)
		if used := r.tab.log.used; used > 2*25+4<<2 {
			t.Errorf("waits %v: log entries: got %d for 25 tombstones, want at most 66", wait, used)
		}
	}
}

// TestChangeForgetsAnotherCompactTombstone: a change of a key with a compact tombstone forgets another
// compact tombstone. The log number of a tombstone is reused after the change.
func TestChangeForgetsAnotherCompactTombstone(t *testing.T) {
	r := newRig(t, lru(1, 1), func(o *Options) { o.MaxLive, o.MaxTombstones = 2, 2 })
	for _, k := range []string{"j", "k"} {
		r.remote(Accepted, second, peer, 5, k, "v")
		r.remote(Accepted, second, peer, 6, k, "-")
	}
	r.write()
	r.compact(2*second, 2)
	r.local(Accepted, second, "update x v packet 0")
	r.local(Accepted, second, "update y v packet 0")
	r.local(Ignored, 2*second, "evict x - packet 0")
	r.remote(Accepted, 3*second, peer, 7, "k", "w") // x expires for k, and the table forgets j for x
	r.want("k", "w v7 b100 dirty")
	r.want("j", "unknown")
	r.wantExpired("x", false)

	r = newRig(t, shortLived)
	r.deleteAndCompact(second, "k")
	number := r.tab.log.find(r.tab.hash(pad("k", keySize)), pad("k", keySize))
	r.local(Accepted, 4*second, "update k v packet 0")
	r.deleteAndCompact(4*second, "l")
	if again := r.tab.log.find(r.tab.hash(pad("l", keySize)), pad("l", keySize)); again != number {
		t.Fatalf("number %x, want %x again", again, number)
	}
	r.expire(9*second, 9)
	r.wantOrder("k")
}

// TestOldestTombstoneIsForgottenFirst: the oldest tombstone makes room, whether it is in a slot or
// compact.
func TestOldestTombstoneIsForgottenFirst(t *testing.T) {
	for _, slotFirst := range []bool{true, false} {
		r := newRig(t, func(o *Options) { o.MaxTombstones = 2 })
		inSlot := func(at int64) {
			r.local(Accepted, at, "update slot v packet 0")
			r.local(Accepted, at, "delete slot - packet 0")
			r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("slot", keySize)) })
			r.takeRereads()
			r.write()
			r.compact(at+6*second, r.tab.log.n)
			r.local(Unchanged, at+7*second, "delete slot - reread 0")
		}
		if slotFirst {
			inSlot(second)
		}
		r.deleteAndCompact(10*second, "compact")
		if !slotFirst {
			inSlot(12 * second)
		}
		r.local(Accepted, 30*second, "update last v packet 0")
		r.local(Accepted, 30*second, "delete last - packet 0")
		if want := map[bool]string{true: "compactlast", false: "slotlast"}[slotFirst]; r.order() != want {
			t.Errorf("order %q, want %q", r.order(), want)
		}
	}
}

// TestScanDuringLoadKeepsTombstones: a scan that ends before the load does not cause tombstones to be
// forgotten.
func TestScanDuringLoadKeepsTombstones(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneGrace = 5 * time.Second })
	r.deleteAndCompact(second, "compact")
	r.local(Accepted, 2*second, "update slot v packet 0")
	r.local(Accepted, 2*second, "delete slot - packet 0")
	r.tab.Update((*Tx).BeginLoad)
	r.scan(3 * second)
	r.acknowledge(9)
	r.expire(60*second, 9)
	r.wantOrder("compactslot")
	r.tab.Update((*Tx).EndLoad)
	r.write()
	r.expire(60*second, 9)
	r.wantOrder("")
}

// TestClosedCursorReadsNoTombstones: a closed cursor returns no compact tombstones.
func TestClosedCursorReadsNoTombstones(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "k")
	c := r.tab.NewCursor(0)
	c.Close()
	var rec Record
	r.tab.View(func(tx *Tx) {
		if tx.Next(c, &rec) {
			t.Errorf("Next of a closed cursor: got %q, want no record", rec.Key)
		}
	})
}

// TestConvertedTombstoneKeepsItsOwner: the owner of a compact tombstone has an id in the new table
// until the table forgets the tombstone.
func TestConvertedTombstoneKeepsItsOwner(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "-")
	r.write()
	r.compact(3*second, 1)
	to, _ := r.convert("")
	to.tab.View((*Tx).ReclaimOwners)
	to.want("k", "- v1000 b100")
	to.expire(2*second+int64(DefaultTombstoneTTL), 9)
	to.tab.View((*Tx).ReclaimOwners)
	to.tab.View(func(tx *Tx) {
		tx.Owners(func(o Owner) {
			if o == peer {
				t.Error("id of an owner without records: got one, want none")
			}
		})
	})
}

// TestBoundedCursorBehindRemovedTombstones: a change removes the compact tombstone behind a cursor, and its chunk,
// from the log. A bounded cursor ends there, and does not return the record that replaced the tombstone.
func TestBoundedCursorBehindRemovedTombstones(t *testing.T) {
	for _, searched := range []bool{false, true} {
		r := newRig(t)
		r.tab.log.shift = 1
		r.deleteAndCompact(second, "a", "b", "c")
		c := r.tab.NewCursor(0)
		next := func() (s uint32) {
			r.tab.View(func(*Tx) { s = c.nextBounded() })
			return s
		}
		if a, b := next(), next(); a == 0 || b == 0 {
			t.Fatalf("nextBounded: got %x and %x, want two tombstones", a, b)
		}
		if !searched {
			c.logPos = tombLogPos{}
		}
		r.local(Accepted, 9*second, "update c v packet 0")
		if s := next(); s != 0 {
			t.Errorf("nextBounded behind the removed tombstone, searched before: %v: got %x, want the end", searched, s)
		}
		c.Close()
	}
}
