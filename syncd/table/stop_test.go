package table

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// stopTime is the time of the records before the stop.
const stopTime = Version(1 << 60 * 3 / 2)

// restored is the version of a record of stopTime+n after the stop.
func restored(n int) Version { return stopTime + Version(n) - RestoredVersions + minRestored }

func restores(o *Options) { o.AdoptVersion = RestoredVersions }

// lastStop returns what a node saves that has records of the owners, with keys k0, k1 and so on, versions from stopTime on,
// and the value v.
func lastStop(t *testing.T, owners ...Owner) func(*Options) {
	t.Helper()
	r := newRig(t, restores)
	for i, o := range owners {
		r.remote(Accepted, int64(stopTime), o, stopTime+Version(i), fmt.Sprint("k", i), "v")
	}
	r.write()
	var s Stop
	r.tab.View(func(tx *Tx) { s = tx.Stop(7) })
	if err := s.Check(); err != nil || s.Len() != len(owners) {
		t.Fatalf("records of the stop: got %d, error %v, want %d", s.Len(), err, len(owners))
	}
	return func(o *Options) { o.AdoptVersion, o.Stop = RestoredVersions, s }
}

// newLoaded returns a table that has loaded entries. changed ones have another value than before.
func newLoaded(t *testing.T, options ...func(*Options)) *rig {
	t.Helper()
	r := newRig(t, options...)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	r.load(Accepted, "k0", "v")
	r.load(Accepted, "k1", "changed")
	r.load(Accepted, "new", "v")
	r.tab.Update(func(tx *Tx) { tx.EndLoad() })
	return r
}

// TestAdoptRestoresRecords: an entry that has not changed since the stop gets its version and its owner back. Others are above
// all restored records.
func TestAdoptRestoresRecords(t *testing.T) {
	r := newLoaded(t, lastStop(t, peer, peer, older))
	r.adopt()
	r.want("k0", fmt.Sprintf("v v%d b100", restored(0)))
	r.want("k1", fmt.Sprintf("changed v%d a100", RestoredVersions+1))
	r.want("new", fmt.Sprintf("v v%d a100", RestoredVersions))
	r.want("k2", "unknown")
	// An adopted entry does not depend on the stop.
	if n := r.tab.opt.Stop.Len(); n != 0 {
		t.Errorf("records of the stop after the initial sync: got %d, want 0", n)
	}
}

// TestStopOfRestoredRecords: records that do not change keep their versions over several stops, also if a stop comes before
// the initial sync has ended.
func TestStopOfRestoredRecords(t *testing.T) {
	r := newLoaded(t, lastStop(t, peer, peer))
	var early, late Stop
	r.tab.View(func(tx *Tx) { early = tx.Stop(8) })
	r.adopt()
	r.tab.View(func(tx *Tx) { late = tx.Stop(8) })
	if early.Len() != 1 || late.Len() != 3 {
		t.Fatalf("records: got %d before the end of the initial sync and %d after it, want 1 and 3", early.Len(), late.Len())
	}
	for _, s := range []Stop{early, late} {
		next := newLoaded(t, restores, func(o *Options) { o.Stop = s })
		next.adopt()
		next.want("k0", fmt.Sprintf("v v%d b100", restored(0)))
	}
}

// TestStopLeavesOutUnwrittenEntries: the kernel map does not hold the content of these records.
func TestStopLeavesOutUnwrittenEntries(t *testing.T) {
	r := newRig(t, restores)
	for _, key := range []string{"written", "refused", "unwritten", "deleted"} {
		r.remote(Accepted, int64(stopTime), peer, stopTime, key, "v")
		if key == "written" || key == "refused" {
			r.applied(r.take(), map[string]error{"refused": errFull}[key])
		}
	}
	r.remote(Accepted, int64(stopTime), peer, stopTime+1, "deleted", "-")
	r.tab.View(func(tx *Tx) {
		if s := tx.Stop(1); s.Len() != 1 {
			t.Errorf("records of the stop: got %d, want the written one", s.Len())
		}
	})
}

// TestStopLeavesOutDeletedEntries: the stop has only live entries, not tombstones.
func TestStopLeavesOutDeletedEntries(t *testing.T) {
	r := newRig(t, restores)
	r.local(Accepted, int64(stopTime), "update k v packet 0")
	r.local(Accepted, int64(stopTime)+second, "delete k - packet 0")
	r.write()
	r.tab.View(func(tx *Tx) {
		if s := tx.Stop(1); s.Len() != 0 {
			t.Errorf("records of the stop: got %d, want 0", s.Len())
		}
	})
}

// TestStableBitsOfAStop: bits that the kernel owns do not count.
func TestStableBitsOfAStop(t *testing.T) {
	stable := func(o *Options) { o.Stable = append(make([]byte, 4), 255, 255, 255, 255) }
	r := newRig(t, restores, stable)
	for _, key := range []string{"k0", "k1"} {
		r.remote(Accepted, int64(stopTime), peer, stopTime, key, "vvvvvv")
	}
	r.write()
	var s Stop
	r.tab.View(func(tx *Tx) { s = tx.Stop(1) })
	next := newRig(t, restores, stable, func(o *Options) { o.Stop = s })
	next.load(Accepted, "k0", "wwwwvv")
	next.load(Accepted, "k1", "vvvvvw")
	next.adopt()
	next.want("k0", fmt.Sprintf("wwwwvv v%d b100", restored(0)))
	next.want("k1", fmt.Sprintf("vvvvvw v%d a100", RestoredVersions+1))
}

// TestMergeOverFound: restored records and their deletes against entries that are not adopted yet.
func TestMergeOverFound(t *testing.T) {
	sentBy := func(o Owner) func(*Tx) RemoteOptions {
		return func(tx *Tx) RemoteOptions { return RemoteOptions{Sender: tx.Intern(o)} }
	}
	unchanged, changed, unknown := fmt.Sprintf("v v%d b90", restored(0)), fmt.Sprintf("changed v%d a100", RestoredVersions+1), fmt.Sprintf("v v%d a100", RestoredVersions)
	former := Owner{"b", 90}
	for name, c := range map[string]struct {
		key, value  string
		owner       Owner
		version     Version
		sender      Owner
		want, after string // before and after the end of the initial sync
		outcome     Outcome
	}{
		"unchanged, the same record":    {"k0", "v", former, restored(0), other, unchanged, unchanged, Unchanged},
		"unchanged, an older record":    {"k0", "w", former, restored(-1), other, unchanged, unchanged, Stale},
		"unchanged, a newer record":     {"k0", "w", other, restored(1), other, fmt.Sprintf("w v%d c100 dirty", restored(1)), "", Accepted},
		"unchanged, ended":              {"k0", "-", peer, restored(0) + 1, peer, fmt.Sprintf("- v%d b100 dirty", restored(0)+1), "", Accepted},
		"unchanged, an earlier delete":  {"k0", "-", peer, restored(-1), peer, unchanged, unchanged, Stale},
		"changed, another node's copy":  {"k1", "v", former, restored(1), other, changed, changed, Stale},
		"changed, the owner's record":   {"k1", "v", former, restored(1), peer, changed, changed, Stale},
		"changed, ended":                {"k1", "-", peer, restored(1) + 1, peer, changed, changed, Stale},
		"changed, a record of a run":    {"k1", "v", peer, stopTime, peer, fmt.Sprintf("v v%d b100 dirty", stopTime), "", Accepted},
		"unknown, another node's copy":  {"new", "w", former, restored(1), other, "v v0 a100", unknown, Stale},
		"unknown, the owner's record":   {"new", "w", former, restored(1), peer, fmt.Sprintf("w v%d b90 dirty", restored(1)), "", Accepted},
		"unknown, ended":                {"new", "-", peer, restored(1) + 1, peer, unknown, unknown, Stale},
		"unknown, a delete of a run":    {"new", "-", peer, stopTime, peer, fmt.Sprintf("- v%d b100 dirty", stopTime), "", Accepted},
		"unknown, of the last release":  {"new", "w", other, AdoptedVersion, other, fmt.Sprintf("w v%d c100 dirty", AdoptedVersion), "", Accepted},
		"unknown, an adopted entry":     {"new", "w", other, RestoredVersions, other, fmt.Sprintf("w v%d c100 dirty", RestoredVersions), "", Accepted},
		"unknown, a record of this map": {"new", "v", older, restored(1), other, fmt.Sprintf("v v%d a90", restored(1)), "", Accepted},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLoaded(t, lastStop(t, former, former), sameMap)
			var opt RemoteOptions
			r.tab.Update(func(tx *Tx) { opt = sentBy(c.sender)(tx) })
			r.merge(c.outcome, int64(stopTime), c.owner, c.version, c.key, c.value, opt)
			r.want(c.key, c.want)
			r.adopt()
			if c.after != "" {
				r.want(c.key, c.after)
			}
		})
	}
}

// TestExpiryOverFound: the expiry of a restored record deletes no entry that is not adopted yet.
func TestExpiryOverFound(t *testing.T) {
	r := newLoaded(t, restores)
	r.do(Accepted, func(tx *Tx) Outcome {
		return tx.Remote(&Delta{Key: pad("new", keySize), Version: restored(0), Owner: tx.Intern(peer), Delete: true, Expired: true}, int64(stopTime), RemoteOptions{})
	})
	if keys := r.write(); keys != "" {
		t.Errorf("entries written: got %q, want none", keys)
	}
}

// TestEndedEntryIsDeleted: the owner lacks an entry that a peer has restored. Its delete wins over restored records only.
func TestEndedEntryIsDeleted(t *testing.T) {
	r := newLoaded(t, restores, sameMap)
	r.adopt()
	r.remote(Accepted, int64(stopTime), older, restored(0), "k", "v")
	r.want("k", fmt.Sprintf("- v%d a100", restored(0)+1))
	r.remote(Accepted, int64(stopTime), peer, RestoredVersions, "k", "w")
	r.want("k", fmt.Sprintf("w v%d b100 dirty", RestoredVersions))
}

// TestDelayAbsent: the decision about absent entries waits until peers have sent all of them.
func TestDelayAbsent(t *testing.T) {
	r := clearRig{newRig(t, restores, holdClears, sameMap)}
	r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad(); tx.EndLoad() })
	r.adopt()
	wait := func(want bool) {
		t.Helper()
		r.tab.View(func(tx *Tx) {
			if got := tx.AbsentWait(); got != want {
				t.Errorf("absent entries wait: got %t, want %t", got, want)
			}
		})
	}
	wait(false)
	for i := range 200 {
		r.remote(Accepted, int64(stopTime), older, restored(i), fmt.Sprint("k", i), "v")
		r.settle(int64(stopTime), int64(stopTime), nil)
	}
	wait(true)
	undecided := func() bool {
		var rec Record
		r.tab.View(func(tx *Tx) { tx.Get(pad("k7", keySize), &rec) })
		return rec.Undecided
	}
	if !undecided() {
		t.Error("record without an entry: got it decided, want it undecided, so that it is not sent")
	}
	r.local(Unchanged, int64(stopTime)+second, "update k8 v reread 0") // the entry is there again, and is sent
	if order := r.order(); !strings.HasSuffix(order, "k199k8") {
		t.Errorf("end of the order: got %q, want the entry that is there again", order[max(0, len(order)-9):])
	}
	r.tab.Update(func(tx *Tx) { tx.DecideAbsent() })
	wait(false)
	r.settle(int64(stopTime), int64(stopTime), nil)
	if undecided() {
		t.Error("record after the decision: got it undecided, want it decided")
	}
	r.wantLive(200, 199, 1) // a clear
	// Those of a peer that starts later wait again.
	r.remote(Accepted, int64(stopTime), older, restored(0), "late", "v")
	wait(true)
}

// TestNewMapEndsStop: another kernel map proves nothing about its entries.
func TestNewMapEndsStop(t *testing.T) {
	r := newLoaded(t, lastStop(t, peer, peer))
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.adopt()
	r.want("k0", fmt.Sprintf("v v%d a100 dirty", RestoredVersions))
}

// TestRestoredOwnersAreBounded: without an id for its owner, an entry is one of this node.
func TestRestoredOwnersAreBounded(t *testing.T) {
	r := newLoaded(t, lastStop(t, Owner{"unheard", 1}, peer))
	r.tab.Update(func(tx *Tx) {
		tx.SetMembers(nil, nil)
		for i := uint64(1); tx.Intern(Owner{"invented", i}) != NoOwner; i++ {
		}
	})
	r.adopt()
	r.want("k0", fmt.Sprintf("v v%d a100", RestoredVersions))
}

// TestStopCheck refuses what Tx.Stop cannot return.
func TestStopCheck(t *testing.T) {
	whole := func() Stop {
		var o Options
		lastStop(t, peer, other, older)(&o)
		return o.Stop
	}
	for name, change := range map[string]func(*Stop){
		"a part of an entry":     func(s *Stop) { s.Entries = s.Entries[1:] },
		"an owner without name":  func(s *Stop) { s.Owners[0].Node = "" },
		"no owners":              func(s *Stop) { s.Owners = nil },
		"entries out of order":   func(s *Stop) { s.Entries = append(s.Entries, s.Entries[:StopEntrySize]...) },
		"a version of zero":      func(s *Stop) { clear(s.Entries[16:24]) },
		"a version of any clock": func(s *Stop) { s.Entries[23] = 0x10 },
	} {
		s := whole()
		if err := s.Check(); err != nil {
			t.Fatalf("whole: got error %v, want none", err)
		}
		if change(&s); !errors.Is(s.Check(), ErrStop) {
			t.Errorf("%s: got error %v, want ErrStop", name, s.Check())
		}
	}
	// Two keys with one hash: neither is known.
	s := whole()
	first := s.Entries[:StopEntrySize]
	s.Entries = append(append([]byte{}, first...), s.Entries...)
	if _, found := s.find(s.at(0).key); s.Check() != nil || found {
		t.Errorf("hash of two keys: got found %t, error %v, want it not found and no error", found, s.Check())
	}
}

// TestRestoredVersionsKeepTheirOrder: restored versions are below RestoredVersions until 2043.
func TestRestoredVersionsKeepTheirOrder(t *testing.T) {
	for _, v := range []Version{1, 2, 5, RestoredVersions, RestoredVersions + 1, stopTime, 2*RestoredVersions - minRestored - 1} {
		low := restoredVersion(v)
		if low < minRestored || low >= RestoredVersions || restoredVersion(low) != low {
			t.Errorf("restored version of %d: got %d, then %d, want one below %d that stays", v, low, restoredVersion(low), RestoredVersions)
		}
		if v > RestoredVersions+1 && OriginalVersion(low) != v {
			t.Errorf("original of restored version %d: got %d, want %d", low, OriginalVersion(low), v)
		}
	}
	for v, want := range map[Version]Version{0: 0, AdoptedVersion: 0, RestoredVersions: 0, RestoredVersions + 1: 0, stopTime: stopTime} {
		if got := OriginalVersion(v); got != want {
			t.Errorf("original of version %d: got %d, want %d", v, got, want)
		}
	}
	if restoredVersion(2*RestoredVersions) < RestoredVersions {
		t.Error("version of 2043: got it restored, want it left out")
	}
}

// TestStopLeavesOutOpenEntries: the kernel map lacks these entries, or has them with another value.
func TestStopLeavesOutOpenEntries(t *testing.T) {
	at := int64(stopTime)
	for name, c := range map[string]struct {
		opt func(*Options)
		end func(r *rig)
	}{
		"evicted":       {lru(8, 8), func(r *rig) { r.local(Ignored, at+second, "evict k - packet 0") }},
		"being written": {restores, func(r *rig) { r.remote(Accepted, at+second, peer, Version(at+second), "k", "w") }},
	} {
		r := newRig(t, restores, c.opt)
		r.local(Accepted, at, "update k v packet 0")
		c.end(r)
		var rec Record
		r.tab.View(func(tx *Tx) {
			s := tx.Stop(1)
			if live := tx.Get(pad("k", keySize), &rec) && !rec.Delete; !live || s.Len() != r.tab.stats.Live-1 {
				t.Errorf("%s: got live %t, %d records of the stop and %d live ones, want it live and left out", name, live, s.Len(), r.tab.stats.Live)
			}
		})
	}
}

// TestNamedEntryThatItsOwnerLacks: the entry is one of this node. It may have changed since the stop, so that it is above all
// restored records.
func TestNamedEntryThatItsOwnerLacks(t *testing.T) {
	r := newLoaded(t, restores)
	r.tab.Update(func(tx *Tx) { tx.NoteOwner(pad("new", keySize), tx.Intern(peer), true) })
	r.want("new", fmt.Sprintf("v v%d b100", NamedVersion))
	r.sweepAll(math.MaxUint64, nil)
	r.want("new", fmt.Sprintf("v v%d a100", RestoredVersions))
}
