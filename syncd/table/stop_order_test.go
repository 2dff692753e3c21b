package table

import (
	"fmt"
	"testing"
)

// TestRestoredRecordsAreNotDefended: the owner of a newer restored record may start after this node. The version decides, as
// with a live owner, if the node owned records at the last stop. Other names may be invented.
func TestRestoredRecordsAreNotDefended(t *testing.T) {
	invented := Owner{"x", 5}
	for name, c := range map[string]struct {
		key     string // k0 is an own record, k1 one of the live node b
		owner   Owner
		version Version
		want    Outcome
		state   string
	}{
		"own record":                        {"k0", other, restored(9), Accepted, fmt.Sprintf("w v%d c100 dirty", restored(9))},
		"own record, older":                 {"k0", other, restored(-9), Stale, fmt.Sprintf("v v%d a90", restored(0))},
		"own record, delete":                {"k0", other, restored(9), Accepted, fmt.Sprintf("- v%d c100 dirty", restored(9))},
		"own record, invented owner":        {"k0", invented, restored(9), Defended, fmt.Sprintf("v v%d a100", restored(9)+1)},
		"own record, another run":           {"k0", other, stopTime, Defended, fmt.Sprintf("v v%d a100", stopTime+1)},
		"record of a live node":             {"k1", other, restored(9), Accepted, fmt.Sprintf("w v%d c100 dirty", restored(9))},
		"record of a live node, invented":   {"k1", invented, restored(9), Defended, fmt.Sprintf("v v%d b100", restored(1))},
		"changed while stopped":             {"changed", other, restored(9), Stale, fmt.Sprintf("w v%d a100", RestoredVersions+1)},
		"changed while stopped, run before": {"changed", other, stopTime, Defended, fmt.Sprintf("w v%d a100", stopTime+1)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, lastStop(t, older, peer, other))
			r.tab.Update(func(tx *Tx) {
				tx.SetMembers([]string{"b"}, nil)
				tx.BeginLoad()
				tx.Load(pad("k0", keySize), pad("v", valueSize))
				tx.Load(pad("k1", keySize), pad("v", valueSize))
				tx.Load(pad("k2", keySize), pad("w", valueSize))
				tx.EndLoad()
			})
			r.adopt()
			key, value := c.key, "w"
			if key == "changed" {
				key = "k2"
			}
			if c.state[0] == '-' {
				value = "-"
			}
			r.merge(c.want, int64(stopTime), c.owner, c.version, key, value, RemoteOptions{})
			r.want(key, c.state)
		})
	}
}

// TestRestoredRecordsOfThisNodeAfterAdoption: once the entries of the start are adopted, a restored record in the name of an earlier
// incarnation of this node replaces no record of a live node. Any member may send such a record.
func TestRestoredRecordsOfThisNodeAfterAdoption(t *testing.T) {
	for _, value := range []string{"w", "-"} {
		r := newRig(t, lastStop(t, older, peer, other))
		r.tab.Update(func(tx *Tx) {
			tx.SetMembers([]string{"b", "c"}, nil)
			tx.BeginLoad()
			tx.Load(pad("k0", keySize), pad("v", valueSize))
			tx.Load(pad("k1", keySize), pad("v", valueSize))
			tx.EndLoad()
		})
		r.adopt()
		var sender OwnerID
		r.tab.Update(func(tx *Tx) { sender = tx.Intern(other) })
		r.merge(Defended, int64(stopTime), older, restored(9), "k1", value, RemoteOptions{Sender: sender})
		r.want("k1", fmt.Sprintf("v v%d a100", restored(9)+1))
	}
}

// TestConvertedRestoredRecordsAreNotDefended: the same after a conversion to another layout.
func TestConvertedRestoredRecordsAreNotDefended(t *testing.T) {
	r := newRig(t, lastStop(t, older, peer, other))
	r.load(Accepted, "k0", "v")
	r.adopt()
	o, how := wider("")
	o.Self, o.AdoptVersion = self, RestoredVersions
	tab, _, err := r.tab.Convert(o, how)
	if err != nil {
		t.Fatalf("convert: got error %v, want nil", err)
	}
	tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	to := &rig{T: t, tab: tab}
	to.merge(Accepted, int64(stopTime), other, restored(9), "k0", "-", RemoteOptions{})
	to.want("k0", fmt.Sprintf("- v%d c100 dirty", restored(9)))
}

// TestFoundEntriesStayNewest: entries that a start has found stay above the records that it has restored, when the node
// stops again.
func TestFoundEntriesStayNewest(t *testing.T) {
	start := func(o *Options) { o.Self.Incarnation = uint64(stopTime) + 100 }
	r := newLoaded(t, lastStop(t, peer, peer), start)
	r.adopt()
	var s Stop
	r.tab.View(func(tx *Tx) { s = tx.Stop(8) })
	next := newLoaded(t, restores, func(o *Options) { o.Stop, o.Self.Incarnation = s, uint64(stopTime)+200 })
	next.adopt()
	at := uint64(stopTime) + 100
	next.want("k0", fmt.Sprintf("v v%d b100", restored(0)))
	next.want("new", fmt.Sprintf("v v%d a%d", restored(100), at))
	next.want("k1", fmt.Sprintf("changed v%d a%d", restored(101), at))
	r.tab.View(func(tx *Tx) {
		if got := OriginalVersion(restored(100)); got != Version(at) {
			t.Errorf("time of an entry that was found: got %d, want that of the start, %d", got, at)
		}
	})
}

// TestNamedEntriesAreNotStopped: whether the named owner has an entry shows only after the start.
func TestNamedEntriesAreNotStopped(t *testing.T) {
	r := newLoaded(t, restores)
	r.tab.Update(func(tx *Tx) { tx.NoteOwner(pad("new", keySize), tx.Intern(peer), true) })
	r.adopt()
	r.tab.View(func(tx *Tx) {
		if s := tx.Stop(1); s.Len() != 2 {
			t.Errorf("records of the stop: got %d, want two without the named one", s.Len())
		}
	})
}

// TestFoundEntryThatChangedTwice: a node has found an entry, another one a changed copy of it, and a third one another change. It
// is above all restored records when its node stops again.
func TestFoundEntryThatChangedTwice(t *testing.T) {
	r := newRig(t, restores, sameMap, func(o *Options) { o.Self.Incarnation = uint64(stopTime) })
	r.load(Accepted, "k", "third")
	r.remote(Accepted, int64(stopTime), older, RestoredVersions+1, "k", "second")
	r.adopt()
	r.want("k", fmt.Sprintf("third v%d a%d", RestoredVersions+2, stopTime))
	r.tab.View(func(tx *Tx) {
		s := tx.Stop(1)
		if e := s.at(0); e.version != restored(2) {
			t.Errorf("version of the entry: got %d, want that of the start, %d", e.version, restored(2))
		}
	})
	if got := OriginalVersion(RestoredVersions + 2); got != 0 {
		t.Errorf("time of the entry: got %d, want none", got)
	}
}

// TestUndecidedRecordInANewMap: the load balancer replaces its map before a node has decided about an absent entry. The record was only
// named before, and is sent now.
func TestUndecidedRecordInANewMap(t *testing.T) {
	r := clearRig{newRig(t, restores, holdClears, sameMap)}
	r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad(); tx.EndLoad() })
	r.adopt()
	for i := range 2 {
		r.remote(Accepted, int64(stopTime), older, restored(i), fmt.Sprint("k", i), "v")
	}
	r.remote(Accepted, int64(stopTime), peer, stopTime, "other", "v")
	r.refill()
	r.wantOrder("otherk0k1")
	if got := r.write(); got != "k0k1other" && got != "otherk0k1" {
		t.Errorf("entries written: got %q, want all", got)
	}
}
