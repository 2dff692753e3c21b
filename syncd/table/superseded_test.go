package table

import (
	"fmt"
	"testing"
	"time"
)

// supersede notes that a live peer has a record of a key that was filtered.
func (r *rig) supersede(key string, v Version, o Owner) {
	r.tab.Update(func(tx *Tx) { tx.NoteSuperseded(pad(key, keySize), v, o) })
}

func (r *rig) endFullSync(o Owner, round int) {
	r.tab.Update(func(tx *Tx) { tx.EndFullSync(o, round) })
}

// TestSupersededRecordsDoNotExpire: a live peer has taken over the entry of a node that has left, by a record that this node has
// filtered. The entry stays. Once the peer has left, the time begins anew.
func TestSupersededRecordsDoNotExpire(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	for _, key := range []string{"k", "l"} {
		r.remote(Accepted, second, peer, Version(second), key, "v")
	}
	r.write()
	r.setGone("b", true)
	r.expireTakenOver(1000 * second)
	r.supersede("k", Version(1010*second), other)
	r.supersede("l", Version(second)-1, other) // older
	r.expireTakenOver(1200 * second)
	r.want("k", "v v1000000000 b100")
	r.want("l", "- v1000000001 a100 dirty")
	r.local(Restored, 1201*second, "delete k - syscall 0")
	r.want("k", "v v1000000000 b100 dirty")
	r.write()
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) { tx.Remove(&Selection{Orphaned: true}, 1203*second, c, 10) })
	r.want("k", "v v1000000000 b100")

	r.setGone("c", true)
	r.expireTakenOver(2000 * second)
	r.expireTakenOver(2099 * second)
	r.want("k", "v v1000000000 b100")
	r.expireTakenOver(2113 * second)
	r.want("k", "- v1000000001 a100 dirty")
}

// TestSupersededOwnRecord: a collector does not end an entry of this node that a live peer has taken over by a filtered record.
// Another use by this node, or the departure of the peer, ends that.
func TestSupersededOwnRecord(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "update l v packet 0")
	for _, key := range []string{"k", "l"} {
		r.supersede(key, Version(2*second), other)
		r.local(Restored, 3*second, "delete "+key+" - syscall 0")
	}
	r.write()
	r.local(Accepted, 4*second, "update k w packet 0")
	r.local(Accepted, 5*second, "delete k - syscall 0")
	r.setGone("c", true)
	r.local(Accepted, 5*second, "delete l - syscall 0")
	r.want("l", "- v5000000000 a100")
}

// TestWriteBeforeARestoredDelete: the delete of such an entry arrives before the event of an earlier write by another CPU. A reread
// decides whether the map has the entry.
func TestWriteBeforeARestoredDelete(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.supersede("k", Version(2*second), other)
	r.local(Restored, 3*second, "delete k - syscall 0")
	r.local(Accepted, 3*second-1000, "update k w packet 1")
	r.wantRereads("k")
}

// TestClockStepKeepsSupersededRecords: a step of the clock lowers the versions of this node's records. Those of the peer stay newer.
func TestClockStepKeepsSupersededRecords(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = 30 * time.Second })
	at := int64(time.Hour)
	r.local(Accepted, at, "update k v packet 0")
	r.supersede("k", Version(2*at), other)
	r.tab.Update(func(tx *Tx) {
		tx.FollowClock(at, -int64(30*time.Minute))
		c := &Cursor{t: tx.t}
		c.moveTo(order)
		for tx.Withdraw(at, c, 100) {
		}
	})
	if got := r.state("k"); got == fmt.Sprintf("v v%d a100", at) {
		t.Fatalf("record after the step: got %q, want a lower version", got)
	}
	r.local(Restored, at+second, "delete k - syscall 0")
}

// TestEndOfSupersededRecord checks what ends the mark of a superseded record. Records of third nodes do not.
func TestEndOfSupersededRecord(t *testing.T) {
	later := Owner{"c", 200}
	for name, test := range map[string]struct {
		step func(r *rig)
		ends bool
	}{
		"full sync of the same incarnation": {func(r *rig) { r.endFullSync(other, 2) }, false},
		"full sync of another node":         {func(r *rig) { r.endFullSync(Owner{"d", 200}, 1) }, false},
		"full sync of a later incarnation":  {func(r *rig) { r.endFullSync(later, 1) }, true},
		"the later incarnation has it, too": {func(r *rig) { r.supersede("k", 30, later); r.endFullSync(later, 1) }, false},
		"newer record of a third node":      {func(r *rig) { r.remote(Accepted, second, Owner{"d", 1}, 20, "k", "w"); r.setGone("d", true) }, false},
		"older record of the peer":          {func(r *rig) { r.remote(Stale, second, other, 5, "k", "w") }, false},
		"older record, in an answer":        {func(r *rig) { r.merge(Stale, second, other, 5, "k", "w", RemoteOptions{Touch: true}) }, true},
	} {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.write()
		r.setGone("b", true)
		r.supersede("k", 30, other)
		r.tab.Update((*Tx).ReclaimOwners)
		test.step(r)
		want := Restored
		if test.ends {
			want = Accepted
		}
		t.Log(name)
		r.local(want, 3*second, "delete k - syscall 0")
	}
}

// TestUndecodedKeys: a live peer has a record of a key whose interface does not exist here. Records with the same other bits count
// as superseded, until a later full sync of the peer lacks the key.
func TestUndecodedKeys(t *testing.T) {
	r := newRig(t, takeoverExpiry, func(o *Options) { o.ComparedKey = []byte("\xff\x00\x00\x00\x00\x00\x00\x00") })
	for _, key := range []string{"k1", "l1"} {
		r.remote(Accepted, second, peer, Version(second), key, "v")
	}
	r.write()
	r.setGone("b", true)
	r.expireTakenOver(1000 * second)
	r.tab.Update(func(tx *Tx) { tx.NoteUndecoded(pad("k2", keySize), other, 1) })
	r.endFullSync(other, 1)
	r.expireTakenOver(1200 * second)
	r.want("k1", "v v1000000000 b100")
	r.want("l1", "- v1000000001 a100 dirty")
	r.local(Restored, 1201*second, "delete k1 - syscall 0")
	r.write()
	r.endFullSync(other, 2)
	r.expireTakenOver(1300 * second)
	r.expireTakenOver(1399 * second)
	r.want("k1", "v v1000000000 b100")
	r.expireTakenOver(1413 * second)
	r.want("k1", "- v1000000001 a100 dirty")
}

// TestUndecodedKeyInNewMap: a live peer has a record of a key that this node cannot decode, and a new map comes before the entry of
// the former one is adopted. The entry gets the value of the new map, and is adopted.
func TestUndecodedKeyInNewMap(t *testing.T) {
	r := newRig(t, func(o *Options) { o.ComparedKey = []byte("\xff\x00\x00\x00\x00\x00\x00\x00") })
	r.load(Accepted, "k1", "old")
	r.tab.Update(func(tx *Tx) { tx.NoteUndecoded(pad("k2", keySize), other, 1) })
	r.refill()
	r.newMap(Accepted, 2*second, "k1", "new")
	if got := r.write(); got != "" {
		t.Errorf("written: got %q, want none", got)
	}
	r.adopt()
	r.want("k1", fmt.Sprintf("new v%d a100", AdoptedVersion))
}

// TestNamedEntryIsSuperseded: an entry of the local map of which peers have named a live owner counts as superseded once another
// record replaces it.
func TestNamedEntryIsSuperseded(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.tab.Update(func(tx *Tx) { tx.NoteOwner(pad("k", keySize), tx.Intern(other), true) })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.setGone("b", true)
	r.local(Restored, 3*second, "delete k - syscall 0")
	r.write()
	r.remote(Accepted, second, other, 20, "k", "w")
	r.setGone("c", true)
	r.local(Accepted, 4*second, "delete k - syscall 0")
}

// TestConvertKeepsSupersededRecords: a collector does not end such an entry in a new map of another layout either.
func TestConvertKeepsSupersededRecords(t *testing.T) {
	r := newRig(t)
	for _, key := range []string{"k", "l"} {
		r.local(Accepted, second, "update "+key+" v packet 0")
	}
	r.supersede("k", Version(2*second), other)
	to := r.changeLayout()
	to.write()
	for key, want := range map[string]Outcome{"k": Restored, "l": Accepted} {
		to.tab.Update(func(tx *Tx) {
			c := Change{Key: pad(key, to.tab.KeySize()), Op: OpDelete, Time: 3 * second, Context: ContextSyscall}
			if o := tx.Local(&c); o != want {
				t.Errorf("delete of %s: got %s, want %s", key, o, want)
			}
		})
	}
}
