package table

import (
	"fmt"
	"testing"
	"time"
)

func (r *rig) acknowledge(position uint64) {
	r.tab.Update(func(tx *Tx) { tx.SetAcknowledged(position) })
}

// TestAcknowledgedTombstonesAreForgotten: once all nodes have received a delete, the table keeps its
// tombstone for the grace period only. While a node is away, the table keeps it for its lifetime.
func TestAcknowledgedTombstonesAreForgotten(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneGrace = 5 * time.Second })
	for _, k := range []string{"k", "l", "m"} {
		r.local(Accepted, 1*second, "update "+k+" v packet 0")
	}
	r.local(Accepted, 2*second, "delete k - packet 0") // position 4
	r.local(Accepted, 3*second, "delete l - packet 0") // position 5
	r.expire(100*second, 9)
	r.want("k", "- v2000000000 a100")
	r.acknowledge(3)
	r.expire(100*second, 9)
	r.want("k", "- v2000000000 a100")
	r.acknowledge(4)
	r.expire(7*second-1, 9)
	r.want("k", "- v2000000000 a100")
	r.expire(7*second, 9)
	r.want("k", "unknown")
	r.want("l", "- v3000000000 a100")
	if st := r.tab.Stats(); st.Floor != 4 || st.Acknowledged != 1 {
		t.Errorf("floor: got %d, %d acknowledged, want 4 and 1", st.Floor, st.Acknowledged)
	}
	// A node leaves: the acknowledged position is unknown.
	r.acknowledge(0)
	r.expire(800*second, 9)
	r.want("l", "- v3000000000 a100")
	// The table keeps a tombstone that is dirty or has a pending reread, whichever peer acknowledged
	// it.
	r.acknowledge(5)
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("l", keySize)) })
	r.expire(801*second, 9)
	r.want("l", "- v3000000000 a100")
	r.takeRereads()
	r.local(Unchanged, 802*second, "delete l - reread 0")
	r.expire(900*second, 9)
	r.want("l", "unknown")
	// The table forgets no tombstone while the map is loaded, and until a scan has found the keys that
	// the load skipped.
	r.local(Accepted, 900*second, "delete m - packet 0")
	r.acknowledge(6)
	r.tab.Update((*Tx).BeginLoad)
	r.expire(1000*second, 9)
	r.want("m", "- v900000000000 a100")
	r.tab.Update((*Tx).EndLoad)
	r.expire(1000*second, 9)
	r.want("m", "- v900000000000 a100")
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		for tx.EndScan(10) {
		}
	})
	r.expire(1000*second, 9)
	r.want("m", "unknown")
}

// TestTombstonesAreBounded: above the limit the table forgets the oldest tombstones, and raises the
// floor.
func TestTombstonesAreBounded(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxTombstones = 10 })
	for i := range 100 {
		k := fmt.Sprint(i)
		r.local(Accepted, int64(i+1)*second, "update "+k+" v packet 0")
		r.local(Accepted, int64(i+2)*second, "delete "+k+" - packet 0")
		r.remote(Accepted, int64(i+2)*second, peer, Version(int64(i+2)*second+7), "p"+k, "-")
		r.write()
		if n := r.tab.Stats().Tombstones; n > 10 {
			t.Fatalf("tombstones: got %d, want at most 10", n)
		}
	}
	if st := r.tab.Stats(); st.ExpiredEarly != 190 || st.Floor == 0 {
		t.Errorf("forgotten early: got %d, floor %d, want 190 and a floor above 0", st.ExpiredEarly, st.Floor)
	}
}

// TestForgottenDeleteIsResent: a node still has a tombstone. A repair shows it that the owner of an
// older record has not received the delete.
func TestForgottenDeleteIsResent(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 10, "k", "-")
	r.merge(Stale, 2*second, other, 9, "k", "v", RemoteOptions{Touch: true})
	r.want("k", "- v10 b100")
	r.merge(Stale, 2*second, other, 9, "k", "v", RemoteOptions{Touch: true, Repair: true})
	r.want("k", "- v11 a100")
	// A tombstone of this node is resent unchanged.
	before := r.tab.Stats().Head
	r.merge(Stale, 2*second, other, 9, "k", "v", RemoteOptions{Touch: true, Repair: true})
	r.want("k", "- v11 a100")
	if st := r.tab.Stats(); st.Head == before || st.DeletesResent != 1 {
		t.Errorf("head: got %d, %d resent, want another head than %d, and 1 resent", st.Head, st.DeletesResent, before)
	}
	// So is a tombstone of the owner's earlier incarnation: the owner's map decides whether the owner
	// deleted the key.
	again := Owner{Node: peer.Node, Incarnation: peer.Incarnation + 1}
	r.remote(Accepted, 1*second, peer, 10, "m", "-")
	r.merge(Stale, 2*second, peer, 9, "m", "v", RemoteOptions{Touch: true, Repair: true})
	r.want("m", "- v10 b100")
	before = r.tab.Stats().Head
	r.merge(Stale, 2*second, again, 9, "m", "v", RemoteOptions{Touch: true, Repair: true})
	r.want("m", "- v10 b100")
	if st := r.tab.Stats(); st.Head == before || st.DeletesResent != 1 {
		t.Errorf("head: got %d, %d resent, want another head than %d, and 1 resent", st.Head, st.DeletesResent, before)
	}
	// A record that an earlier incarnation still holds is deleted by the later incarnation's
	// tombstone.
	r.remote(Accepted, 1*second, again, 10, "n", "-")
	r.merge(Stale, 2*second, peer, 9, "n", "v", RemoteOptions{Touch: true, Repair: true})
	r.want("n", "- v11 a100")
	// The sender's own tombstone counts, also if the clock was set back, so that the earlier incarnation has
	// the higher number.
	r.remote(Accepted, 1*second, peer, 10, "o", "-")
	sender := RemoteOptions{Touch: true, Repair: true, Sender: r.intern(peer)}
	r.merge(Stale, 2*second, again, 9, "o", "v", sender)
	r.want("o", "- v11 a100")
	// Of two adopted records only the owner decides which is newer.
	first := Owner{Node: "aa", Incarnation: 1}
	r.remote(Accepted, 1*second, peer, AdoptedVersion, "l", "-")
	r.merge(Stale, 2*second, first, AdoptedVersion, "l", "v", RemoteOptions{Touch: true, Repair: true})
	r.want("l", "- v3 a100")
}
