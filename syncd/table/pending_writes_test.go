package table

import "testing"

// pendingWrites returns the number of pending writes of a write barrier.
func (r *rig) pendingWrites(d *WriteBarrier) (n int) {
	r.tab.View(func(tx *Tx) { n = tx.PendingWrites(d) })
	return n
}

func (r *rig) addBarrier() (d *WriteBarrier) {
	r.tab.View(func(tx *Tx) { d = tx.AddBarrier() })
	return d
}

func (r *rig) wantPendingWrites(d *WriteBarrier, want int) {
	r.Helper()
	checkInvariants(r, r.tab)
	if n := r.pendingWrites(d); n != want {
		r.Fatalf("write barrier: got %d pending writes, want %d", n, want)
	}
}

// wantBarrierDone checks that a write barrier has left pending writes once the kernel map holds the
// table up to position. It checks that there are none once the map holds the whole table.
func (r *rig) wantBarrierDone(d *WriteBarrier, position uint64, left int) {
	r.Helper()
	r.tab.Update(func(tx *Tx) { tx.SetApplied(position) })
	r.wantPendingWrites(d, left)
	r.write()
	r.wantPendingWrites(d, 0)
}

func TestBarrierCoversDirtyRecords(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.wantPendingWrites(r.addBarrier(), 0)
	r.remote(Accepted, 0, peer, 1000, "l", "v")
	r.remote(Accepted, 0, peer, 1000, "m", "v")
	d := r.addBarrier()
	r.remote(Accepted, 0, peer, 1001, "n", "v")
	r.wantPendingWrites(d, 2)
	r.write()
	r.wantPendingWrites(d, 0)
	if n := len(r.tab.barriers); n != 0 {
		t.Fatalf("write barriers: got %d, want 0", n)
	}
}

// A record that changes before the writer takes it moves beyond any position, and stays in the write
// barrier.
func TestBarrierFollowsChangedRecords(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	r.remote(Accepted, 0, peer, 1000, "l", "v1")
	d := r.addBarrier()
	first := r.take()
	r.remote(Accepted, 0, peer, 2000, "l", "v2")
	r.wantPendingWrites(d, 2)
	r.applied(first, nil)
	r.wantBarrierDone(d, 2, 1)
}

// A write that the writer took before the barrier was created does not end the barrier for a record
// that has changed since.
func TestBarrierIgnoresOlderWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.remote(Accepted, 0, peer, 2000, "k", "v2")
	d := r.addBarrier()
	r.applied(first, nil)
	r.wantBarrierDone(d, 1, 1)
}

func TestBarrierKeepsFailedWrites(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.addBarrier()
	r.applied(r.take(), errFull)
	r.tab.Update(func(tx *Tx) { tx.SetApplied(1) })
	r.wantPendingWrites(d, 1)
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	r.wantPendingWrites(d, 1)
	r.write()
	r.wantPendingWrites(d, 0)
}

func TestBarrierEndsWithLocalUpdate(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.addBarrier()
	r.local(Accepted, 2000, "update k w packet 0")
	r.wantPendingWrites(d, 0)
}

func TestRemoveBarrier(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.addBarrier()
	r.tab.View(func(tx *Tx) { tx.RemoveBarrier(d); tx.RemoveBarrier(nil) })
	if n := len(r.tab.barriers); n != 0 {
		t.Fatalf("write barriers: got %d, want 0", n)
	}
}
