package table

import (
	"fmt"
	"testing"
	"time"
)

// TestTimesOfRestoredRecords: a restored record counts as changed at the time of its original version.
func TestTimesOfRestoredRecords(t *testing.T) {
	const now = int64(stopTime) + 100*second
	r := newRig(t, restores)
	r.remote(Accepted, now, peer, restored(0), "k", "v")
	r.write()
	r.setGone("b", true)
	r.expireUnused(int64(stopTime)-second, nil)
	r.tab.View(func(tx *Tx) {
		var rec Record
		tx.Get(pad("k", keySize), &rec)
		if got := tx.t.takenOver(uint32(rec.Ref)); got != int64(stopTime) {
			t.Errorf("unchanged since: got %d, want %d", got, stopTime)
		}
	})
	for limit, want := range map[time.Duration]bool{101 * time.Second: false, 100 * time.Second: true} {
		var rec Record
		r.tab.View(func(tx *Tx) {
			tx.Get(pad("k", keySize), &rec)
			if got := tx.t.unused(uint32(rec.Ref), &Unused{For: limit, Changes: true}, now); got != want {
				t.Errorf("unchanged for %s: got %t, want %t", limit, got, want)
			}
		})
	}
}

// TestClearOfRestoredRecords: the entries were in use before the load balancer has cleared the map, and are restored. If
// another node was not stopped, some records have their original versions.
func TestClearOfRestoredRecords(t *testing.T) {
	for _, n := range []int{0, 1} {
		r := clearRig{newRig(t, restores, holdClears, visibleUse, sameMap)}
		r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
		for i := range 200 {
			r.remote(Accepted, int64(stopTime)+second, older, restored(i), fmt.Sprint("k", i), "v")
		}
		for i := range n {
			r.remote(Accepted, int64(stopTime)+second, older, stopTime+Version(second), fmt.Sprint("running", i), "v")
		}
		r.adopt()
		r.settle(int64(stopTime)+second, int64(stopTime)+second, nil)
		r.wantLive(200+n, 200+n, 1)
	}
}

// TestDeletesAfterRestore: the load balancer clears its map soon after all nodes were stopped. The entries were in use before.
func TestDeletesAfterRestore(t *testing.T) {
	r := clearRig{newRig(t, restores, holdClears, visibleUse, sameMap)}
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	for i := range 200 {
		r.load(Accepted, fmt.Sprint("k", i), "v")
	}
	r.tab.Update(func(tx *Tx) { tx.EndLoad() })
	for i := range 200 {
		r.remote(Accepted, int64(stopTime), older, restored(i), fmt.Sprint("k", i), "v")
	}
	r.adopt()
	r.clear(0, 200, int64(stopTime)+10*second, Caller{})
	r.settle(int64(stopTime)+11*second, int64(stopTime)+14*second, nil)
	r.wantLive(200, 200, 1)
}
