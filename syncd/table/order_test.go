package table

import "testing"

// Two CPUs write and delete a key while the map is read for the first time; the event of the
// write comes last, after the claim has forgotten the key.
func TestClaimRemembersWhatVanished(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.local(Accepted, second+1000, "delete k - syscall 1")
	r.claim()
	r.want("k", "unknown")
	r.local(Accepted, second, "update k v packet 0")
	r.wantRechecks("k")
}

// Of two deleted keys with one place in the small memory the later one stays.
func TestStraysKeepTheLatest(t *testing.T) {
	var x strays
	x.note(7, 2*second, 0)
	x.note(7, second, 1)
	if !x.match(7, &Change{Time: 2 * second, CPU: 1}) || x.match(7, &Change{Time: 2 * second, CPU: 0}) {
		t.Errorf("%+v", x[0])
	}
}

// A scan that is begun anew has met nothing, however often.
func TestScanBegunAnewHasMetNothing(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	for range 3 {
		r.tab.Update(func(tx *Tx) { tx.BeginScan() })
	}
	r.scan(2 * second)
	r.wantRechecks("k")
	// What is read again at the end of one is not met in the next.
	r.local(Unchanged, 3*second, "update k v reread 0")
	r.scan(4 * second)
	r.wantRechecks("k")
}

// An eviction on one CPU and a write on another, at the same moment: the map decides which came
// last.
func TestEvictionAtTheSameMoment(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 2")
	r.local(Ignored, second+sameMoment, "evict k - own 0")
	r.wantRechecks("k")
	r.local(Unchanged, 2*second, "update k v reread 0")
	r.remote(Accepted, 3*second, peer, Version(3*second), "k", "-")
	r.want("k", "- v3000000000 b100 dirty")
	r.local(Accepted, second, "update l v packet 0")
	r.local(Ignored, second+1, "evict l - own 0") // the order of one CPU is the map's
	r.local(Accepted, second, "update m v packet 2")
	r.local(Ignored, second+sameMoment+1, "evict m - own 0")
	r.wantRechecks("")
}

// An event of the moment at which the map was read has no order with that, whichever CPU it is of.
func TestEventOfTheMomentOfAReading(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k 1 packet 0")
	r.read(second+10).found(Accepted, "k", "0")
	r.wantRechecks("k")
	r.read(second+20).found(Unchanged, "k", "0")
	r.local(Accepted, second+30, "update k 2 packet 0")
	r.want("k", "2 v1000000030 a100")
	r.wantRechecks("k")
}

// A delete that waited for longer than tombstones live is remembered from when the table
// learns of it.
func TestLateDeleteIsRemembered(t *testing.T) {
	r := newRig(t, shortLived)
	late := func(now int64) {
		r.tab.Update(func(tx *Tx) { tx.Now(now) })
		r.local(Accepted, now-5*second, "delete k - packet 0")
		r.expire(now, 9)
		r.wantOrder("k")
	}
	r.local(Accepted, second, "update k v packet 0")
	late(9 * second)
	r.local(Accepted, 9*second+1, "update k w packet 0") // and so is one of a key that lived again
	late(19 * second)
	r.expire(20*second, 9)
	r.wantOrder("")
}

// A retried write does not count as a record sent by its owner: where a full
// sync from the owner did not bring it, it is swept.
func TestSweepOfWhatIsTriedAgain(t *testing.T) {
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
		for tx.Sweep("b", before, 2*second, c, 9) {
		}
	})
	r.want("k", "- v1000 b100 dirty")
}

// A writer that ends with a record that it tried again leaves it to the next one.
func TestTriedAgainByTheNextWriter(t *testing.T) {
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
		t.Fatalf("wrote %q", keys)
	}
}
