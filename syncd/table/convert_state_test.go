package table

import (
	"bytes"
	"errors"
	"testing"
)

// changeLayout converts a table to a layout whose values are one byte longer. Keys and values that begin with ! do not fit.
func (r *rig) changeLayout(change ...func(*Options)) *rig {
	r.Helper()
	o, _ := wider("")
	o.ValueSize = len(r.tab.value(0)) + 1
	for _, fn := range change {
		fn(&o)
	}
	fit := func(dst, src []byte) error {
		copy(dst, append(bytes.Clone(src), 0))
		if bytes.HasPrefix(src, []byte("!")) {
			return errors.New("it does not fit")
		}
		return nil
	}
	tab, _, err := r.tab.Convert(o, Conversion{Key: fit, Value: fit})
	if err != nil {
		r.Fatal(err)
	}
	checkInvariants(r, tab)
	return &rig{T: r.T, tab: tab, writer: tab.NewCursor(0)}
}

// receiveAny merges a record into a table with any layout.
func (r *rig) receiveAny(o Owner, v Version, key, value string) {
	r.Helper()
	r.tab.Update(func(tx *Tx) {
		d := Delta{Key: pad(key, keySize), Value: pad(value, r.tab.ValueSize()), Delete: value == "-", Version: v, Owner: tx.Intern(o)}
		tx.Remote(&d, second, RemoteOptions{})
	})
}

// TestConvertKeepsNamedOwner: the entry of which peers have only named the owner is not sent after a conversion. If the owner lacks
// it, it becomes a record of this node.
func TestConvertKeepsNamedOwner(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.tab.Update(func(tx *Tx) { tx.NoteOwner(pad("k", keySize), tx.Intern(peer), true) })
	to := r.changeLayout()
	var rec Record
	var before uint64
	to.tab.View(func(tx *Tx) { tx.Get(pad("k", keySize), &rec); before = tx.Head() + 1 })
	if !rec.Named {
		t.Errorf("record after the conversion: got %+v, want a named one", rec)
	}
	if n := to.sweepAll(before, nil); n != 0 {
		t.Errorf("inferred deletes: got %d, want 0", n)
	}
	to.want("k", "v v2 a100 dirty")
}

// TestConvertKeepsContentOfTheLoad: an entry of a new kernel map stays after a conversion if a late peer has a delete of an earlier
// incarnation, also one whose record another node had replaced.
func TestConvertKeepsContentOfTheLoad(t *testing.T) {
	for name, test := range map[string]struct {
		before func(r *rig)
		want   string
	}{
		"equal record":       {func(r *rig) { r.remote(Accepted, second, older, 10, "k", "v") }, "v v21 a100 dirty"},
		"replaced by a peer": {func(r *rig) { r.remote(Accepted, second, peer, 10, "k", "w") }, "v v21 a100 dirty"},
		"deleted by the data plane": {func(r *rig) {
			r.local(Accepted, 3, "delete k - packet 0")
			r.remote(Accepted, second, peer, 10, "k", "w")
		}, "- v21 a100 dirty"},
		"unversioned": {func(*rig) {}, "v v21 a100 dirty"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.begin("v")
			test.before(r)
			to := r.changeLayout()
			to.receiveAny(older, 20, "k", "-")
			to.want("k", test.want)
		})
	}
}

// TestConvertKeepsDeleteWithoutRecord: a delete that a hook has reported during the initial sync counts after a conversion.
func TestConvertKeepsDeleteWithoutRecord(t *testing.T) {
	r := newRig(t)
	r.begin("-")
	r.local(Unchanged, 2, "delete k - packet 0")
	to := r.changeLayout()
	to.receiveAny(older, 20, "k", "v")
	to.want("k", "- v21 a100")
	// Content that does not fit is forgotten.
	r.tab.Update(func(tx *Tx) {
		tx.t.replaced.note(pad("!k", keySize), nil, false)
		tx.t.replaced.note(pad("l", keySize), pad("!v", valueSize), true)
	})
	if n := len(r.changeLayout().tab.replaced.of); n != 1 {
		t.Errorf("keys with replaced content: got %d, want 1", n)
	}
	r.adopt()
	if to := r.changeLayout(); to.tab.replaced.of != nil {
		t.Error("replaced content after the initial sync: got some, want none")
	}
}

// TestConvertKeepsUnsentChange: a change of volatile fields that was not sent is sent once it is due, as without a conversion.
func TestConvertKeepsUnsentChange(t *testing.T) {
	r := newRig(t, visibleUse)
	r.local(Accepted, startTime, "update k v packet 0")
	r.local(Unchanged, startTime+second, "update k v\x00\x00\x00\x00\x00\x00x packet 0")
	to := r.changeLayout(visibleUse, func(o *Options) { o.Significant = append(o.Significant, 0) })
	to.write()
	to.do(Accepted, func(tx *Tx) Outcome {
		value := pad("v\x00\x00\x00\x00\x00\x00x", valueSize+1)
		return tx.Scanned(&Change{Key: pad("k", keySize), Value: value, Time: startTime + 20*second, Op: OpUpdate, Context: ContextReread, Read: new(Reading)})
	})
}

// TestConvertKeepsClear: the load balancer clears its map, and replaces it. The entries stay, and an operator can still decide.
func TestConvertKeepsClear(t *testing.T) {
	for _, during := range []bool{true, false} {
		r := newClearRig(t, 200)
		r.clear(0, 200, idle, young)
		if during {
			r.tab.Update(func(tx *Tx) { tx.SettleDeletes(idle+3*second, nil, 10) })
		} else {
			r.settle(idle+second, idle+6*second, nil)
		}
		to := clearRig{r.changeLayout(holdClears)}
		to.wantLive(200, 200, 0)
		to.tab.Update(func(tx *Tx) {
			if c := tx.LatestClear(); c.Entries != 200 || !c.Restored {
				t.Errorf("clear after the conversion: got %+v, want 200 restored entries", c)
			}
			if n, _ := tx.DecideClear(true, idle+8*second, 0, 1000); n != 200 {
				t.Errorf("entries that were released: got %d, want 200", n)
			}
		})
	}
}

// TestConvertForgetsDecidedClear: an operator has decided that the entries of a clear stay. A conversion before they are restored
// asks again for no decision.
func TestConvertForgetsDecidedClear(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, idle, young)
	r.tab.Update(func(tx *Tx) {
		tx.SettleDeletes(idle+3*second, nil, 10)
		tx.DecideClear(false, idle+3*second, 0, 1000)
	})
	to := r.changeLayout(holdClears)
	to.tab.Update(func(tx *Tx) {
		c := tx.LatestClear()
		n, _ := tx.DecideClear(true, idle+4*second, 0, 1000)
		if c.At != 0 || n != 0 {
			t.Errorf("clear after the conversion: got %+v with %d entries, want none", c, n)
		}
	})
}

// TestConvertKeepsRefusedDelete: a delete of an unverified owner that the table has refused is accepted once the key is deleted.
func TestConvertKeepsRefusedDelete(t *testing.T) {
	r := withMembers(t)
	withRecord(peer, "v")(r)
	r.remote(Defended, 1, Owner{"x", 5}, 5000, "k", "-")
	to := r.changeLayout()
	to.receiveAny(peer, 2000, "k", "-")
	to.write()
	for _, at := range []int64{second, 11 * second} {
		to.tab.Update(func(tx *Tx) { tx.Expire(at, 9) })
	}
	to.want("k", "- v5000 x5")
}

// TestConvertDuringDecisionAboutAbsence: the writer restores absent entries in the new map. Further ones count as restored, too: a
// part of a clear would not look like one. Before the first, all wait for DecideAbsent in the new table.
func TestConvertDuringDecisionAboutAbsence(t *testing.T) {
	for _, first := range []string{"k", ""} {
		r := newRig(t, sameMap, holdClears)
		r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.DelayAbsent(); tx.EndLoad() })
		if first != "" {
			r.remote(Accepted, second, older, 10, first, "v")
		}
		to := clearRig{r.changeLayout(holdClears)}
		to.receiveAny(older, 11, "l", "w")
		to.adopt()
		to.settle(2*second, 3*second, nil)
		to.want("l", map[bool]string{true: "w v11 a90 dirty", false: "w v11 a90"}[first != ""])
		if first != "" {
			to.want("k", "v v10 a90 dirty")
			continue
		}
		to.tab.Update((*Tx).DecideAbsent)
		to.settle(4*second, 5*second, nil)
		to.want("l", "- v12 a100")
	}
}

// TestRefillDuringDecisionAboutAbsence: the same holds for a new map of the same layout.
func TestRefillDuringDecisionAboutAbsence(t *testing.T) {
	r := clearRig{newRig(t, sameMap, holdClears)}
	r.remote(Accepted, second, older, 10, "k", "v")
	r.tab.Update((*Tx).Refill)
	r.remote(Accepted, second, older, 11, "l", "w")
	r.settle(2*second, 3*second, nil)
	r.want("k", "v v10 a90 dirty")
	r.want("l", "w v11 a90 dirty")
}

// TestDroppedRecordsAreUnheld: a conversion has dropped records of this node. Peers have them. Their absence proves nothing, neither
// at the next start nor after another conversion.
func TestDroppedRecordsAreUnheld(t *testing.T) {
	r := newRig(t, sameMap)
	r.remote(Accepted, second, peer, 10, "p", "!v")
	r.local(Accepted, 10, "update k !v packet 0")
	to := r.changeLayout()
	to.receiveAny(older, 20, "k", "w")
	to.receiveAny(older, 20, "l", "w")
	to.want("k", "w v20 a90 dirty")
	to.want("l", "- v21 a100")
	if k := len(to.tab.unheld.of); k != 1 || to.tab.unheld.overflow {
		t.Errorf("unheld keys: got %d, want 1", k)
	}

	r = newRig(t, sameMap)
	r.local(Accepted, 10, "update !k v packet 0")
	to = r.changeLayout()
	to.receiveAny(older, 20, "l", "w")
	to.want("l", "- v21 a100")
	again := to.changeLayout()
	again.receiveAny(older, 20, "!k", "w")
	again.want("!k", "w v20 a90 dirty")
	if !again.tab.unheld.overflow {
		t.Error("unheld keys after two conversions: got known, want unknown")
	}
}

// TestKeysOfAnotherLayout: a peer has a record of this node whose key fits only after a conversion. The map could not hold its entry
// at start.
func TestKeysOfAnotherLayout(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update((*Tx).NoteOtherLayout)
	to := r.changeLayout()
	to.receiveAny(older, 20, "k", "w")
	to.want("k", "w v20 a90 dirty")
}

// TestConvertDropsUnheldOfOptions: the unheld keys in the options are those of the former map.
func TestConvertDropsUnheldOfOptions(t *testing.T) {
	r := newRig(t, sameMap)
	to := r.changeLayout(func(o *Options) { o.Unheld = Unheld{Seed: 1, Hashes: make([]byte, 8)} })
	if some := to.tab.unheld.some(); some {
		t.Error("unheld keys: got some, want none")
	}
	// The content of the map at start does not count for a key whose record the table has merged since.
	r.tab.Update(func(tx *Tx) { tx.t.addUnheld(pad("k", keySize), 10) })
	if !r.changeLayout().tab.unheld.overflow {
		t.Error("unheld keys: got known, want unknown")
	}
	r.tab.Update(func(tx *Tx) { tx.t.unheld.noteChanged(pad("k", keySize)) })
	to = r.changeLayout()
	to.receiveAny(older, 20, "k", "w")
	to.want("k", "w v20 a90 dirty")
	if to.tab.unheld.overflow {
		t.Error("unheld keys: got unknown, want none")
	}
}

// TestSweepReturnsDroppedRecord: the map of the owner cannot hold a record, so the owner has dropped it. Its absence proves nothing,
// also once the map of the owner can hold it again. It then becomes a record of this node, unless the owner has it again.
func TestSweepReturnsDroppedRecord(t *testing.T) {
	for name, test := range map[string]struct {
		between func(r *rig) *rig
		want    string
	}{
		"dropped":           {func(r *rig) *rig { return r }, "v v11 a100 dirty"},
		"converted":         {func(r *rig) *rig { return r.changeLayout() }, "v v11 a100 dirty"},
		"the owner has it":  {func(r *rig) *rig { r.remote(Unchanged, 0, peer, 10, "k", "v"); return r }, "- v10 b100 dirty"},
		"newer of the same": {func(r *rig) *rig { r.remote(Accepted, 0, peer, 12, "k", "w"); return r }, "- v12 b100 dirty"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.remote(Accepted, 0, peer, 10, "k", "v")
			sweep := func(unfit bool) {
				c := r.tab.NewCursor(0)
				defer c.Close()
				r.tab.Update(func(tx *Tx) {
					tx.Sweep(&Absence{Peer: peer, Before: tx.Head() + 1, Unfit: func(key, value []byte) bool { return unfit }}, second, c, 10)
				})
			}
			sweep(true)
			r.want("k", "v v10 b100 dirty")
			r = test.between(r)
			sweep(false)
			r.want("k", test.want)
		})
	}
}
