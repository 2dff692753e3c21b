package table

import "testing"

// TestTimerBeforeTheRecordArrives: a drained node whose syncd has restarted has an entry of which it does not have the record yet.
// If its timer ends it, the record stays on the other nodes.
func TestTimerBeforeTheRecordArrives(t *testing.T) {
	for _, timer := range []bool{false, true} {
		r := newRig(t, sameMap, func(o *Options) { o.HasTimer = timer })
		r.tab.Update(func(tx *Tx) {
			tx.Load(pad("k", keySize), pad("v", valueSize))
			tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10})
		})
		r.local(Accepted, 1*second, "delete k - packet 0")
		r.tab.Update(func(tx *Tx) {
			d := Delta{Key: pad("k", keySize), Value: pad("v", valueSize), Version: 10, Owner: tx.Intern(older)}
			tx.Remote(&d, 2*second, RemoteOptions{})
		})
		var rec Record
		r.tab.View(func(tx *Tx) { tx.Get(pad("k", keySize), &rec) })
		if rec.Delete == timer {
			t.Errorf("map with timers %t: got %+v, want a delete: %t", timer, rec, !timer)
		}
	}
}

// TestRecordAfterTheReturn: a drain ends before a peer has sent a record that was handed over. The absence of its entry is no
// delete: the load balancer has cleared the map. It is one for a record that was not handed over.
func TestRecordAfterTheReturn(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update(func(tx *Tx) {
		tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10})
		tx.EndHandover(1 * second)
	})
	r.remote(Accepted, 2*second, older, 10, "k", "v")
	r.want("k", "v v10 a90 dirty")
	r.remote(Accepted, 2*second, older, 11, "later", "v")
	r.want("later", "- v12 a100")
}

// TestNewerRecordAfterAHandover: a peer that was cut off during the drain has a newer record of an earlier incarnation. The entry,
// which the load balancer of the drained node has deleted since, stays handed over.
func TestNewerRecordAfterAHandover(t *testing.T) {
	r := newRig(t, sameMap)
	r.local(Accepted, 1*second, "update k v packet 0")
	r.beginHandover()
	r.local(Ignored, 2*second, "delete k - syscall 0")
	r.remote(Accepted, 3*second, older, Version(9*second), "k", "w")
	r.local(Unchanged, 4*second, "delete k - reread 0")
	r.want("k", "v v9000000001 a90")
}
