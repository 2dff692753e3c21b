package table

import (
	"fmt"
	"testing"
	"time"
)

// TestHandLeavesOpenTombstones: a delete that the kernel map refused and one whose reread has no answer yet
// stay in their slots, also if they move to the tail later.
func TestHandLeavesOpenTombstones(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "refused", "v")
	r.write()
	r.remote(Accepted, second, peer, 2000, "refused", "-")
	r.refuse()
	r.local(Accepted, second, "update reread v packet 0")
	r.local(Accepted, second, "delete reread - packet 0")
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("reread", simKey)) })
	r.wantRechecks("reread")
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

// TestHandGoesOn: Expire returns true until the hand has passed all tombstones, and false with the last one
// that it forgets.
func TestHandGoesOn(t *testing.T) {
	const n = 5 * handSteps
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
		t.Error("there is more after the last one")
	}
	r.wantOrder("")
}

// TestHandMerges: the log gives up superseded tombstones, whether the hand is at the end or waits.
func TestHandMerges(t *testing.T) {
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
			r.compactOnce(5 * second)
			r.remote(Accepted, 5*second, peer, 2, "young", "-")
		}
		r.compact(5*second, 25)
		if used := r.tab.log.used; used > 2*25+4<<2 {
			t.Errorf("waits %v: the log has %d entries for 25 tombstones", wait, used)
		}
	}
}

// compactOnce has the hand pass all that is live.
func (r *rig) compactOnce(now int64) {
	r.tab.Update(func(*Tx) { r.tab.compact(now, r.tab.stats.Live) })
}

// TestForgottenDuringAChange: the change of one compact tombstone forgets another one, and a number is used
// again after a change.
func TestForgottenDuringAChange(t *testing.T) {
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
	r.remote(Accepted, 3*second, peer, 7, "k", "w") // x expires for it, and j is forgotten for x
	r.want("k", "w v7 b100 dirty")
	r.want("j", "unknown")
	r.isExpired("x", false)

	r = newRig(t, shortLived)
	r.bury(second, "k")
	number := r.tab.log.find(r.tab.hash(pad("k", simKey)), pad("k", simKey))
	r.local(Accepted, 4*second, "update k v packet 0")
	r.bury(4*second, "l")
	if again := r.tab.log.find(r.tab.hash(pad("l", simKey)), pad("l", simKey)); again != number {
		t.Fatalf("number %x, want %x again", again, number)
	}
	r.expire(9*second, 9)
	r.wantOrder("k")
}

// TestOldestIsForgotten: of tombstones in slots and compact ones the oldest makes room.
func TestOldestIsForgotten(t *testing.T) {
	for _, slotFirst := range []bool{true, false} {
		r := newRig(t, func(o *Options) { o.MaxTombstones = 2 })
		inSlot := func(at int64) {
			r.local(Accepted, at, "update slot v packet 0")
			r.local(Accepted, at, "delete slot - packet 0")
			r.tab.Update(func(tx *Tx) { tx.Reread(pad("slot", simKey)) })
			r.rechecks()
			r.write()
			r.compact(at+6*second, r.tab.log.n)
			r.local(Unchanged, at+7*second, "delete slot - reread 0")
		}
		if slotFirst {
			inSlot(second)
		}
		r.bury(10*second, "compact")
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

// TestScanDuringTheLoad: a scan that ends before the load does not have tombstones forgotten.
func TestScanDuringTheLoad(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneGrace = 5 * time.Second })
	r.bury(second, "compact")
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

// TestClosedCursorReadsNoTombstones: a closed cursor returns no compact tombstone either.
func TestClosedCursorReadsNoTombstones(t *testing.T) {
	r := newRig(t)
	r.bury(second, "k")
	c := r.tab.NewCursor(0)
	c.Close()
	var rec Record
	r.tab.View(func(tx *Tx) {
		if tx.Next(c, &rec) {
			t.Errorf("a closed cursor returns %q", rec.Key)
		}
	})
}

// TestConvertedTombstoneKeepsItsOwner: the owner of a compact tombstone has an id in the new table until the
// tombstone is forgotten.
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
				t.Error("the owner of no record has an id")
			}
		})
	})
}
