package table

import (
	"fmt"
	"testing"
)

// reading is one reading of the kernel map in a test.
type reading struct {
	r  *rig
	at int64
	Reading
}

// read begins a reading at a given time.
func (r *rig) read(at int64) *reading {
	d := &reading{r: r, at: at}
	r.tab.View(func(tx *Tx) { tx.BeginReading(&d.Reading) })
	return d
}

// found enters the value of a key that the reading returned, or "-" for a missing key.
func (d *reading) found(want Outcome, key, value string) {
	d.r.Helper()
	d.r.do(want, func(tx *Tx) Outcome { return tx.Local(d.change(key, value)) })
}

func (d *reading) change(key, value string) *Change {
	c := &Change{Key: pad(key, keySize), Time: d.at, Op: OpDelete, Context: ContextReread, Read: &d.Reading}
	if value != "-" {
		c.Op, c.Value = OpUpdate, pad(value, valueSize)
	}
	return c
}

// scanned enters the value of a key that the reading returned, as a scan does.
func (d *reading) scanned(want Outcome, key, value string) {
	d.r.Helper()
	d.r.do(want, func(tx *Tx) Outcome { return tx.Scanned(d.change(key, value)) })
}

// A scan has read a value. syncd then writes a newer one and rereads it, all at the same time of a
// coarse clock. The value of the scan is not a change of the data plane.
func TestReadingFromBeforeAWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "old")
	r.write()
	scan := r.read(2 * second)
	r.remote(Accepted, 2*second, peer, 2000, "k", "new")
	r.write()
	scan.scanned(Stale, "k", "old")
	r.wantRereads("k")
	r.read(2*second).found(Unchanged, "k", "new")
	scan.scanned(Stale, "k", "old")
	r.want("k", "new v2000 b100")
	// The next reading counts immediately.
	r.wantRereads("k")
	r.read(3*second).found(Unchanged, "k", "new")
	r.read(3*second).scanned(Accepted, "k", "changed")
	r.want("k", "changed v3000000000 a100")
}

func TestReadingFromBeforeAChange(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"update":   func(r *rig) { r.local(Accepted, second, "update k new packet 0") },
		"same":     func(r *rig) { r.local(Unchanged, second, "update k v packet 0") },
		"evicted":  func(r *rig) { r.local(Ignored, second, "evict k - packet 0") },
		"received": func(r *rig) { r.remote(Accepted, second, peer, Version(2*second), "k", "v") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.local(Accepted, 1000, "update k v packet 0")
			before := r.read(second)
			change(r)
			want := r.state("k")
			before.scanned(Stale, "k", "older")
			r.want("k", want)
			r.wantRereads("k")
		})
	}
}

// A scan has read the key and the map evicts it, at the same time of a coarse clock. The table rereads
// the key, and it counts as evicted.
func TestReadingFromBeforeAnEviction(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	before := r.read(second)
	r.local(Ignored, second, "evict k - packet 0")
	before.scanned(Stale, "k", "v")
	r.wantRereads("k")
	r.read(second).found(Unchanged, "k", "-")
	r.remote(Accepted, 2*second, peer, Version(2*second), "k", "v")
	r.want("k", "v v2000000000 b100 dirty")
}

// A scan has read the key, and a reread does not find it, before the event of the delete arrives. The key
// counts as evicted until then.
func TestReadingFromBeforeAnUnseenEviction(t *testing.T) {
	r := newRig(t, func(o *Options) { o.LRU = true })
	r.local(Accepted, 1000, "update k v packet 0")
	scan := r.read(second)
	r.read(second+20*timestampMargin).found(Ignored, "k", "-")
	scan.scanned(Stale, "k", "v")
	r.wantRereads("k")
	r.local(Accepted, second+10*timestampMargin, "delete k - packet 0")
	r.want("k", "- v1010000000 a100")
}

// The table forgets a tombstone during the first load of the map. A value that was read before does
// not restore the key.
func TestLoadOfAForgottenKey(t *testing.T) {
	r := newRig(t, shortLived)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.remote(Accepted, second, peer, 2000, "k", "-")
	r.write()
	r.tab.Update((*Tx).BeginLoad)
	r.expire(9*second, 9)
	r.want("k", "unknown")
	r.load(Accepted, "k", "v")
	r.wantRereads("k")
}

// A key was deleted, and its tombstone is forgotten. A value that was read before does not restore the
// key: the table rereads it.
func TestReadingOfAForgottenKey(t *testing.T) {
	r := newRig(t, shortLived)
	r.local(Accepted, second, "update k v packet 0")
	before := r.read(second)
	r.local(Accepted, second+1, "delete k - packet 0")
	r.expire(9*second, 9)
	r.want("k", "unknown")
	before.scanned(Stale, "k", "v")
	r.want("k", "unknown")
	r.wantRereads("k")
	r.read(9*second).scanned(Accepted, "k", "w")
}

func TestReadingOfDeletedUnknownKey(t *testing.T) {
	r := newRig(t)
	before := r.read(second)
	r.local(Unchanged, 9*second, "delete k - packet 0")
	before.scanned(Stale, "k", "v")
	r.want("k", "unknown")
	r.wantRereads("k")
	other := r.read(second)
	other.scanned(Accepted, "k", "v")
}

// An entry that Displace removed from a full map is absent, whatever a scan read before.
func TestReadingFromBeforeADisplacement(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 2000, "l", "v")
	refused := r.take()
	r.applied(refused, errFull)
	var victim Record
	before := r.read(second)
	r.tab.Update(func(tx *Tx) {
		if found, _ := tx.Displace(refused.Ref, refused.Version, &victim); !found || text(victim.Key) != "k" {
			t.Fatal("Displace: got no victim, want k")
		}
	})
	r.local(Accepted, second, "update k w packet 0")
	after := r.read(second)
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, second) })
	r.write()
	before.scanned(Stale, "k", "v")
	after.found(Stale, "k", "-")
}

// A new reading keeps no marks of an earlier one. It marks more records than there were when it began.
func TestReadingBeginsAnew(t *testing.T) {
	r := newRig(t)
	var d Reading
	begin := func() { r.tab.View(func(tx *Tx) { tx.BeginReading(&d) }) }
	for round := range 5 {
		begin()
		for i := range 40 << round {
			r.local(Accepted, second, fmt.Sprintf("update %d-%d v packet 0", round, i))
		}
		for s := firstSlot; s < r.tab.allocated; s++ {
			if is := d.isStale(s); is != (s >= r.tab.allocated-uint32(40<<round)) {
				t.Fatalf("round %d: slot %d of %d: got changed %v, want %v", round, s, r.tab.allocated, is, s >= r.tab.allocated-uint32(40<<round))
			}
		}
	}
	r.tab.View(func(tx *Tx) { tx.EndReading(&d); tx.EndReading(&d) })
	if len(r.tab.readings) != 0 {
		t.Fatal("Close: got an open reading, want a closed one")
	}
}
