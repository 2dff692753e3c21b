package table

import (
	"fmt"
	"testing"
)

// deleteDuringWrite makes the delete of a record by a process wait while the writer writes the record.
func (r clearRig) deleteDuringWrite(key string) {
	r.Helper()
	r.write()
	r.tab.Update(func(tx *Tx) {
		_, s := tx.t.find(pad(key, keySize))
		tx.t.markDirty(s)
		tx.t.moveTail(s)
		tx.SetCaller(collector)
		tx.AdvanceClock(later)
	})
	rec := r.take()
	r.local(Ignored, later, fmt.Sprintf("delete %s - syscall 0", key))
	r.applied(rec, nil)
}

// TestWaitingDeleteDuringAWrite: a collector deletes an entry while syncd writes it. The write may come later, so the entry is
// deleted again once the delete has waited. If the load balancer has written it since, it stays.
func TestWaitingDeleteDuringAWrite(t *testing.T) {
	for found, state := range map[string]string{"v": "- v%d a100 dirty", "w": "w v%d a100"} {
		r := newClearRig(t, 200)
		r.deleteDuringWrite("k0")
		r.wantRereads("")
		r.settle(later+second, later+5*second, nil)
		r.want("k0", fmt.Sprintf("- v%d a100", later))
		r.wantRereads("k0")
		want, at := Stale, later
		if found == "w" {
			want, at = Accepted, later+6*second
		}
		r.local(want, later+6*second, fmt.Sprintf("update k0 %s reread 0", found))
		r.want("k0", fmt.Sprintf(state, at))
	}
}

// TestRecordsAfterAWaitingDeleteDuringAWrite: a newer record of a peer decides about a delete that waits. The writer writes it,
// because the map may have the entry again.
func TestRecordsAfterAWaitingDeleteDuringAWrite(t *testing.T) {
	r := newClearRig(t, 200)
	r.deleteDuringWrite("k0")
	r.remote(Accepted, later+second, peer, Version(later+second), "k0", "-")
	r.want("k0", fmt.Sprintf("- v%d b100 dirty", later+second))

	r = newClearRig(t, 200, sameMap)
	r.load(Accepted, "k", "v")
	r.remote(Accepted, startTime+second, older, 10, "k", "v")
	r.deleteDuringWrite("k")
	r.remote(Accepted, later+second, older, 20, "k", "-")
	r.want("k", "- v20 a90 dirty")
}

// TestWaitingDeleteOfAWrittenEntry: a process deletes an entry that syncd writes at that time, and has written before, or that a node
// has left. A reread finds the value that syncd has written, which does not end the delete. Another value does.
func TestWaitingDeleteOfAWrittenEntry(t *testing.T) {
	for _, o := range []Owner{older, other} {
		for _, found := range []string{"v", "w"} {
			r := newClearRig(t, 200)
			r.setGone("c", true)
			r.remote(Accepted, startTime+second, o, Version(startTime), "k", "v")
			r.write()
			r.takeRereads()
			r.deleteDuringWrite("k")
			for i := range int64(10) {
				now := later + (i+1)*second
				if r.takeRereads() == "k" {
					r.tab.Update(func(tx *Tx) {
						tx.Local(&Change{Key: pad("k", keySize), Value: pad(found, valueSize), Time: now, Context: ContextReread})
					})
				}
				r.settle(now, now, nil)
			}
			if deleted := r.state("k")[0] == '-'; deleted != (found == "v") {
				t.Errorf("entry of %s, found %s: got %s, want it deleted: %t", o.Node, found, r.state("k"), found == "v")
			}
		}
	}
}

// TestAbsentEntryDeletedDuringAWrite: peers send a newer record of an earlier incarnation while a delete waits that came during a write.
// Once the absence counts, the writer deletes what syncd may have written.
func TestAbsentEntryDeletedDuringAWrite(t *testing.T) {
	r := newClearRig(t, 200, sameMap)
	r.tab.Update((*Tx).DelayAbsent)
	r.load(Accepted, "k", "v")
	r.remote(Accepted, startTime+second, older, 10, "k", "v")
	r.adopt()
	r.deleteDuringWrite("k")
	r.remote(Accepted, later+second, older, 20, "k", "newer")
	r.tab.Update((*Tx).DecideAbsent)
	r.settle(later+2*second, later+6*second, nil)
	r.want("k", "- v21 a100 dirty")
}
