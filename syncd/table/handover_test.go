package table

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// beginHandover hands over the records of this node.
func (r *rig) beginHandover() (h Handover) {
	r.tab.Update(func(tx *Tx) { h = tx.BeginHandover() })
	return h
}

// setHandover sets what a node has handed over.
func (r *rig) setHandover(node string, h Handover) {
	r.tab.Update(func(tx *Tx) { tx.SetHandover(node, h) })
}

// endHandover ends the handover of this node and checks the number of restored entries.
func (r *rig) endHandover(now int64, want int) {
	r.Helper()
	r.tab.Update(func(tx *Tx) {
		if n := tx.EndHandover(now); n != want {
			r.Errorf("restored entries: got %d, want %d", n, want)
		}
	})
}

// gone enters the delete of an entry. A reread that may be from before syncd's write of the entry is repeated.
func (r *rig) gone(want Outcome, at int64, key, how string) {
	r.Helper()
	c := parseChange(r, "delete "+key+" - "+how+" 0", at)
	r.do(want, func(tx *Tx) Outcome {
		o := tx.Local(c)
		if o == Stale && c.Context == ContextReread {
			for tx.TakeRereads(make([]byte, keySize)) > 0 {
			}
			c.Time++
			o = tx.Local(c)
		}
		return o
	})
}

// writtenKeys lets the writer write all dirty records. It returns their keys in alphabetical order.
func (r *rig) writtenKeys() string {
	keys := []byte(r.write())
	slices.Sort(keys)
	return string(keys)
}

// TestClearOfADrainedNode: the deletes of a load balancer that clears its map after a handover end no record. Deletes by
// packets, and deletes of entries that were written afterwards, do. The end of the drain restores the entries.
func TestClearOfADrainedNode(t *testing.T) {
	for name, options := range map[string][]func(*Options){"": nil, "deletes any": {deletesAny}, "evictions": {evictions}} {
		for _, how := range []string{"syscall", "reread"} {
			t.Run(name+" "+how, func(t *testing.T) {
				r := newRig(t, append(options, sameMap)...)
				for _, key := range []string{"i", "k", "l", "m"} {
					r.local(Accepted, second, "update "+key+" v packet 0")
				}
				r.remote(Accepted, second, other, Version(second), "g", "v") // its owner leaves
				r.remote(Accepted, second, peer, Version(second), "p", "v")
				r.setGone("c", true)
				r.write()
				if h := r.beginHandover(); h != (Handover{self.Incarnation, Version(second)}) {
					t.Fatalf("handover: got %+v, want all records of this incarnation up to 1 s", h)
				}
				r.local(Accepted, 2*second, "update n v packet 0")
				r.local(Accepted, 2*second, "update m w packet 0")
				for _, key := range []string{"g", "i", "k"} {
					r.gone(Ignored, 3*second, key, how)
				}
				r.local(Accepted, 3*second, "delete l - packet 0")
				r.gone(Accepted, 3*second, "m", how)
				r.gone(Accepted, 3*second, "n", how)
				r.gone(Restored, 3*second, "p", how)
				r.wantLive("gklmnp", "gkp")
				r.want("k", "v v1000000000 a100")
				r.write()
				// The load balancer writes an entry again with the same value, and a scan finds others absent once more.
				r.local(Unchanged, 4*second, "update i v packet 0")
				r.gone(Unchanged, 4*second, "k", "reread")
				if n := r.tab.Stats().KeptDeletes; n != 3 {
					t.Errorf("kept deletes: got %d, want 3", n)
				}
				r.endHandover(5*second, 2)
				if keys := r.writtenKeys(); keys != "gk" {
					t.Errorf("written keys: got %q, want gk", keys)
				}
				// The event of a delete during the drain arrives late.
				r.local(Stale, 4*second, "delete k - syscall 0")
				r.want("k", "v v1000000000 a100")
				r.takeRereads()
				r.local(Accepted, 6*second, "delete k - syscall 0")
				r.wantLive("gik", "gi")
			})
		}
	}
}

// TestUnsentChangesBeforeAHandover: a scan finds a use of an entry before the handover, and it is too early to send that. Later
// scans do not make the record one that this node has written after the handover. A later use does.
func TestUnsentChangesBeforeAHandover(t *testing.T) {
	for _, owner := range []Owner{self, peer, other} {
		r := newRig(t, significant)
		r.setGone("c", true)
		if owner == self {
			r.do(Accepted, func(tx *Tx) Outcome { return tx.Local(tail(t, 1, second)) })
		} else {
			r.remote(Accepted, second, owner, Version(second), "k", "v")
			r.write()
		}
		r.do(Unchanged, func(tx *Tx) Outcome { return tx.Local(tail(t, 2, 5*second)) })
		h := r.beginHandover()
		r.rereadTail(Unchanged, 60*second, 2)
		want := Ignored
		if owner == peer {
			want = Restored // it is live
		}
		r.gone(want, 90*second, "k", "syscall")
		r.do(Accepted, func(tx *Tx) Outcome { return tx.Local(tail(t, 3, 120*second)) })
		if v := r.versionOf("k"); v <= h.Version {
			t.Errorf("record of %s that is used after the handover: got version %d, want one above %d", owner.Node, v, h.Version)
		}
		r.gone(Accepted, 150*second, "k", "syscall")
	}
}

// TestClearOfADrainedLRUMap: evictions, deletes and absences of handed over entries of an LRU map neither end nor expire
// a record.
func TestClearOfADrainedLRUMap(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.LRU = true })
	for _, key := range []string{"i", "k", "l"} {
		r.local(Accepted, second, "update "+key+" v packet 0")
	}
	r.local(Ignored, 2*second, "evict i - packet 0") // queued for its expiry before the handover
	r.beginHandover()
	r.local(Ignored, 3*second, "delete k - syscall 0")
	r.gone(Ignored, 3*second, "l", "reread")
	r.tab.Update(func(tx *Tx) {
		for tx.ExpireEvicted(1000*second, 100) {
		}
	})
	r.wantLive("ikl", "ikl")
	r.endHandover(1001*second, 3)
	if keys := r.writtenKeys(); keys != "ikl" {
		t.Errorf("written keys: got %q, want ikl", keys)
	}
}

// TestWriteAfterAHandoverOfARecordAhead: a peer's clock is ahead, and this node has taken its record over. A record that this node writes
// after the handover is not handed over.
func TestWriteAfterAHandoverOfARecordAhead(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = 30 * time.Second })
	r.remote(Accepted, startTime, peer, Version(startTime+50*second), "k", "v")
	r.write()
	r.local(Accepted, startTime+1, "update k w packet 0")
	r.tab.Update(func(tx *Tx) { tx.AdvanceClock(startTime + second) })
	r.takeRereads()
	h := r.beginHandover()
	r.local(Accepted, startTime+2*second, "update new v packet 0")
	r.want("new", fmt.Sprintf("v v%d a100", h.Version+1))
	r.tab.Update(func(tx *Tx) { tx.FollowClock(startTime+3*second, -second) })
	r.local(Accepted, startTime+4*second, "update l v packet 0")
	r.want("l", fmt.Sprintf("v v%d a100", h.Version+1))
	r.local(Accepted, startTime+5*second, "delete new - syscall 0")
	r.local(Accepted, startTime+60*second, "update l w packet 0")
	r.want("l", fmt.Sprintf("w v%d a100", startTime+75*second+3*second/4)) // the clock has reached the handover
}

// TestOwnerReturnsDuringADrain: the entry of a node that was away, or drained too, returns with the end of the drain. An LRU
// map that cannot hold all records gets back its own entries only.
func TestOwnerReturnsDuringADrain(t *testing.T) {
	for entries, want := range map[int]string{0: "bk", 3: "bk", 2: "k"} {
		r := newRig(t, func(o *Options) { o.LRU, o.MaxEntries = entries > 0, entries })
		r.remote(Accepted, second, peer, Version(second), "b", "v")
		r.local(Accepted, second, "update k v packet 0")
		r.local(Accepted, second, "update l v packet 0")
		r.write()
		r.setHandover("b", Handover{peer.Incarnation, Version(second)})
		r.beginHandover()
		r.local(Ignored, 2*second, "delete b - syscall 0")
		r.local(Ignored, 2*second, "delete k - syscall 0")
		r.setHandover("b", Handover{})
		r.endHandover(3*second, len(want))
		if keys := r.writtenKeys(); keys != want {
			t.Errorf("written keys with %d entries: got %q, want %q", entries, keys, want)
		}
	}
}

// TestHandedOverRecordsOfAPeer: a peer's handed over records end like those of an owner that has left: by a collector, by
// an absence, by takeover-expiry. Records that the peer writes afterwards, and those of later incarnations, do not.
func TestHandedOverRecordsOfAPeer(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	for _, key := range []string{"k", "l", "m", "n"} {
		r.remote(Accepted, second, peer, Version(second), key, "v")
	}
	r.remote(Accepted, second, Owner{peer.Node, 90}, Version(5*second), "e", "v") // of an earlier incarnation
	r.remote(Accepted, second, Owner{peer.Node, 110}, Version(second)/2, "f", "v")
	r.remote(Accepted, second, other, Version(second), "o", "v")
	r.write()
	r.local(Restored, 2*second, "delete k - syscall 0")
	r.setHandover("b", Handover{peer.Incarnation, Version(second)})
	r.remote(Accepted, 3*second, peer, Version(3*second), "n", "w")
	r.write()
	r.local(Accepted, 10*second, "delete k - syscall 0")
	r.local(Accepted, 10*second, "delete e - syscall 0")
	r.gone(Accepted, 10*second, "l", "reread")
	for _, key := range []string{"f", "n", "o"} {
		r.local(Restored, 10*second, "delete "+key+" - syscall 0")
	}
	r.write()
	r.expireTakenOver(2000 * second)
	r.expireTakenOver(2112 * second)
	r.want("m", "- v1000000001 a100 dirty")
	r.wantLive("efklmno", "fno")
	// The end of the drain makes the records those of a live owner again.
	r.remote(Accepted, 2113*second, peer, Version(1500*second), "m", "v")
	r.setHandover("b", Handover{peer.Incarnation, Version(1500 * second)})
	r.setHandover("b", Handover{})
	r.write()
	r.local(Restored, 2200*second, "delete m - syscall 0")
	r.expireTakenOver(9000 * second)
	r.wantLive("m", "m")
}

// TestHandedOverRecordsStayTheOwners: the owner sends a record that it has handed over. An eviction on another node
// therefore does not expire it, and a write of the same value takes it over.
func TestHandedOverRecordsStayTheOwners(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.Refresh = 1 })
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.remote(Accepted, second, peer, Version(second), "l", "v")
	r.setHandover("b", Handover{peer.Incarnation, Version(second)})
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.tab.Update(func(tx *Tx) {
		for tx.ExpireEvicted(5000*second, 100) {
		}
	})
	r.want("k", "v v1000000000 b100")
	r.local(Accepted, 20*second, "update l v packet 0")
	r.want("l", "v v20000000000 a100")
}

// TestRestartOfADrainedNode: the entries that the load balancer has removed while syncd was stopped stay handed over. An
// entry that it has changed is a new one. The delete of an entry before the peer's record has arrived counts as made by
// the control plane.
func TestRestartOfADrainedNode(t *testing.T) {
	for name, options := range map[string][]func(*Options){
		"same map": {sameMap}, "new map": nil, "deletes any": {sameMap, deletesAny}, "deletes wait": {sameMap, holdClears},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options...)
			r.setHandover("a", Handover{older.Incarnation, Version(second)})
			r.load(Accepted, "l", "v")
			r.load(Accepted, "m", "new")
			r.load(Accepted, "n", "v")
			r.load(Accepted, "o", "v")
			r.local(Accepted, 2*second, "delete n - syscall 0")
			for _, key := range []string{"k", "l", "m", "n"} {
				r.remote(Accepted, 3*second, older, Version(second), key, "v")
			}
			r.adopt()
			clearRig{r}.settle(3*second, 3*second, nil)
			r.want("k", map[bool]string{true: "v v1000000000 a90 dirty", false: "v v1000000000 a90"}[name == "new map"])
			r.want("l", "v v1000000000 a90")
			r.want("m", "new v1000000001 a100")
			r.want("n", "v v1000000000 a90")
			r.want("o", "v v2 a100")
			r.write()
			r.local(Ignored, 5*second, "delete l - syscall 0")
			r.local(Accepted, 5*second, "delete m - syscall 0")
			r.local(Accepted, 5*second, "delete o - syscall 0")
			r.takeRereads()
			r.gone(Unchanged, 6*second, "n", "reread")
			if name == "new map" {
				r.endHandover(7*second, 2)
				r.wantLive("klmno", "kln")
				return
			}
			r.endHandover(7*second, 3)
			if keys := r.writtenKeys(); keys != "kln" {
				t.Errorf("written keys: got %q, want kln", keys)
			}
		})
	}
}

// TestPeersHoldDifferentHandedOverRecords: after a restart, the map lacks an entry of which two peers hold different
// versions. The newer one wins, in either order.
func TestPeersHoldDifferentHandedOverRecords(t *testing.T) {
	for _, order := range [][]Version{{10, 20}, {20, 10}} {
		r := newRig(t, sameMap)
		r.setHandover("a", Handover{older.Incarnation, 20})
		for _, v := range order {
			want := Accepted
			if v < order[0] {
				want = Stale
			}
			r.remote(want, second, older, v, "k", map[Version]string{10: "old", 20: "new"}[v])
		}
		r.adopt()
		r.write()
		r.want("k", "new v20 a90")
	}
}

// TestPeerEndsHandedOverRecord: the drained node accepts a delete of a handed over record, and deletes its entry.
func TestPeerEndsHandedOverRecord(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "update l v packet 0")
	r.beginHandover()
	r.local(Ignored, 2*second, "delete l - syscall 0")
	r.remote(Accepted, 3*second, peer, Version(2*second), "k", "-")
	r.remote(Accepted, 3*second, peer, Version(2*second), "l", "-")
	r.want("k", "- v2000000000 b100 dirty")
	r.want("l", "- v2000000000 b100")
	r.endHandover(4*second, 0)
}

// TestHandoversOfForgottenNodes: a table keeps the handovers of members and former members only, and a conversion keeps
// them.
func TestHandoversOfForgottenNodes(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	h := Handover{peer.Incarnation, Version(second)}
	r.setHandover("b", h)
	r.setHandover("c", h)
	r.setHandover("a", Handover{self.Incarnation, 1})
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"d"}, []string{"b"}) })
	converted, _, err := r.tab.Convert(r.tab.opt, Conversion{
		Key:   func(dst, src []byte) error { copy(dst, src); return nil },
		Value: func(dst, src []byte) error { copy(dst, src); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tab := range []*Table{r.tab, converted} {
		tab.View(func(tx *Tx) {
			if got := tx.Handover("b"); got != h || tx.Handover("c") != (Handover{}) || tx.Handover("a") == (Handover{}) {
				t.Errorf("handovers: got b %+v, c %+v and a %+v, want those of b and a", got, tx.Handover("c"), tx.Handover("a"))
			}
		})
	}
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"d"}, nil) })
	r.write()
	r.local(Restored, 2*second, "delete k - syscall 0")
}

// TestTimersOfADrainedNode: the timers of handed over entries run out on the drained node, because packets restart them on
// another one. Their callbacks look like packets, and end no record. Entries that were written later end by their timers.
func TestTimersOfADrainedNode(t *testing.T) {
	r := newRig(t, func(o *Options) { o.HasTimer = true })
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "update l v packet 0")
	r.local(Accepted, 2*second, "delete l - packet 0")
	r.beginHandover()
	r.local(Accepted, 3*second, "update m v packet 0")
	r.local(Ignored, 4*second, "delete k - packet 0")
	r.local(Accepted, 4*second, "delete m - packet 0")
	r.wantLive("klm", "k")
	r.endHandover(5*second, 1)
	r.write()
	r.local(Accepted, 6*second, "delete k - packet 0")
}
