package table

import (
	"fmt"
	"math"
	"testing"
)

func withMask(o *Options) { o.ComparedKey = []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0} }

// TestCoverage: up to its limit a coverage is exact, and above it a key covers its bucket. Only compared bits
// count.
func TestCoverage(t *testing.T) {
	r := newRig(t, withMask)
	var c Coverage
	if c.Has(pad("a", keySize)) {
		t.Error("zero coverage: got a key, want none")
	}
	c.Reset(r.tab)
	c.Add(pad("abcdX", keySize))
	for key, want := range map[string]bool{"abcdX": true, "abcdY": true, "abceX": false} {
		if got := c.Has(pad(key, keySize)); got != want {
			t.Errorf("key %s: got %t, want %t", key, got, want)
		}
	}
	for i := range maxCoveredKeys {
		c.Add(pad(fmt.Sprintf("%04x", i), keySize))
	}
	false1 := 0
	for i := range 1 << 16 {
		if c.Has(pad(fmt.Sprintf("%c%03x", 'g'+i>>12, i&0xfff), keySize)) {
			false1++
		}
	}
	if !c.Has(pad("0fff", keySize)) || false1 == 0 || false1 > 640 {
		t.Errorf("keys above the limit: got %d of 65536 other keys covered, want about 64: one bucket of 1024", false1)
	}
	if c.Reset(r.tab); c.Has(pad("abcdX", keySize)) || c.Has(pad("0fff", keySize)) {
		t.Error("after a reset: got a key, want none")
	}
}

// sweepAll sweeps all records of the peer that were not merged since a position.
func (r *rig) sweepAll(before uint64, covered func(key, value []byte) bool) (deleted int) {
	c := r.tab.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		r.tab.Update(func(tx *Tx) {
			var n int
			n, more = tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: before, Covered: covered}, 2*second, c, 2)
			deleted += n
		})
	}
	return deleted
}

// TestCoveredRecordsStay: a sweep leaves the records that Cover has moved, and those that Covered selects. Cover
// moves only live records of the node.
func TestCoveredRecordsStay(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c"} {
		r.remote(Accepted, 0, peer, 1000, k, "v")
	}
	r.remote(Accepted, 0, other, 1000, "o", "v")
	r.remote(Accepted, 0, peer, 1000, "t", "-")
	var before uint64
	r.tab.Update(func(tx *Tx) {
		before = tx.Head() + 1
		for key, want := range map[string]bool{"a": true, "o": false, "t": false, "x": false} {
			if got := tx.Cover(pad(key, keySize), "b", math.MaxUint64); got != want {
				t.Errorf("Cover %s: got %t, want %t", key, got, want)
			}
		}
		if tx.Cover(pad("c", keySize), "b", 1000) {
			t.Error("Cover a record that is not below the limit: got true, want false")
		}
		if tx.Cover([]byte("short"), "b", math.MaxUint64) {
			t.Error("Cover a key of a wrong size: got true, want false")
		}
	})
	if n := r.sweepAll(before, func(key, value []byte) bool { return text(key) == "b" && text(value) == "v" }); n != 1 {
		t.Errorf("swept records: got %d, want 1", n)
	}
	r.want("a", "v v1000 b100 dirty")
	r.want("b", "v v1000 b100 dirty")
	r.want("c", "- v1000 b100 dirty")
}

// inferDelete makes the tombstone of a record of the peer that a sweep concludes.
func (r *rig) inferDelete(key string, version Version) {
	r.Helper()
	r.remote(Accepted, 0, peer, version, key, "v")
	r.write()
	var before uint64
	r.tab.View(func(tx *Tx) { before = tx.Head() + 1 })
	if n := r.sweepAll(before, func(k, _ []byte) bool { return text(k) != key }); n != 1 {
		r.Fatalf("swept records: got %d, want 1", n)
	}
}

func (r *rig) wantInferred(key string, want bool) {
	r.Helper()
	var rec Record
	r.tab.View(func(tx *Tx) {
		if !tx.Get(pad(key, keySize), &rec) || rec.Inferred != want || (want && !rec.Delete) {
			r.Errorf("record %s: got %+v, want inferred %t", key, rec, want)
		}
	})
}

// TestInferredDelete: the tombstone of a sweep loses against the record with its version and owner, against a
// delete and an expiry with them, and against newer records. In a repair, it also loses against an older live record.
func TestInferredDelete(t *testing.T) {
	for name, test := range map[string]struct {
		merge    func(r *rig)
		want     string
		inferred bool
	}{
		"nothing":      {func(*rig) {}, "- v10 b100 dirty", true},
		"its record":   {func(r *rig) { r.remote(Accepted, 3*second, peer, 10, "k", "v") }, "v v10 b100 dirty", false},
		"its delete":   {func(r *rig) { r.remote(Accepted, 3*second, peer, 10, "k", "-") }, "- v10 b100 dirty", false},
		"its expiry":   {func(r *rig) { r.expired(Accepted, 3*second, peer, 10, "k") }, "- v10 b100 dirty", false},
		"older record": {func(r *rig) { r.remote(Stale, 3*second, peer, 9, "k", "v") }, "- v10 b100 dirty", true},
		"lower owner":  {func(r *rig) { r.remote(Stale, 3*second, Owner{"a", 1}, 10, "k", "v") }, "- v10 b100 dirty", true},
		"newer record": {func(r *rig) { r.remote(Accepted, 3*second, other, 11, "k", "w") }, "w v11 c100 dirty", false},
		"older record in a repair": {func(r *rig) {
			r.merge(Accepted, 3*second, other, 9, "k", "w", RemoteOptions{Repair: true})
		}, "w v9 c100 dirty", false},
		"older delete in a repair": {func(r *rig) {
			r.merge(Stale, 3*second, other, 9, "k", "-", RemoteOptions{Repair: true})
		}, "- v10 b100 dirty", true},
		"delete by the data plane": {func(r *rig) { r.local(Accepted, startTime, "delete k - packet 0") }, "- v1000000000000000 a100", false},
		"delete by bpf(2)":         {func(r *rig) { r.local(Unchanged, startTime, "delete k - syscall 0") }, "- v10 b100 dirty", true},
		"write by the data plane":  {func(r *rig) { r.local(Accepted, startTime, "update k w packet 0") }, "w v1000000000000000 a100", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.inferDelete("k", 10)
			test.merge(r)
			r.want("k", test.want)
			r.wantInferred("k", test.inferred)
		})
	}
}

// TestInferredDeleteIsCompacted: a compact tombstone and a converted table keep the state.
func TestInferredDeleteIsCompacted(t *testing.T) {
	r := newRig(t)
	r.inferDelete("k", 10)
	r.write()
	r.compact(9*second, 1)
	r.wantInferred("k", true)
	converted, _, err := r.tab.Convert(Options{KeySize: keySize, ValueSize: valueSize, Seed: 1}, Conversion{
		Key: func(dst, src []byte) error { copy(dst, src); return nil }, Value: func(dst, src []byte) error { copy(dst, src); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	(&rig{T: t, tab: converted}).wantInferred("k", true)
	r.remote(Accepted, 10*second, peer, 10, "k", "v")
	r.want("k", "v v10 b100 dirty")
}

// TestInferredDeleteRaisesNoFloor: no peer misses a forgotten tombstone that was never sent.
func TestInferredDeleteRaisesNoFloor(t *testing.T) {
	for _, compact := range []bool{false, true} {
		r := newRig(t)
		r.inferDelete("k", 10)
		r.write()
		if compact {
			r.compact(9*second, 1)
		}
		r.tab.Update(func(tx *Tx) {
			for tx.Expire(2*second+int64(DefaultTombstoneTTL)+1, 1) {
			}
			if tx.Floor() != 0 {
				t.Errorf("floor, compact %t: got %d, want 0", compact, tx.Floor())
			}
		})
		r.want("k", "unknown")
	}
}

// TestEntriesOfOneNamedOwner: two nodes have different entries of a key, and have named the same owner, which has left. Both
// keep the same entry.
func TestEntriesOfOneNamedOwner(t *testing.T) {
	values := []string{"v", "w"}
	kept := make([]string, 2)
	for i, own := range values {
		r := newRig(t)
		r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
		r.load(Accepted, "k", own)
		r.tab.Update(func(tx *Tx) {
			tx.EndLoad()
			tx.NoteOwner(pad("k", keySize), tx.Intern(peer), true)
			tx.Remote(&Delta{Key: pad("k", keySize), Value: pad(values[1-i], valueSize), Version: NamedVersion, Owner: tx.Intern(peer)}, second, RemoteOptions{})
			var rec Record
			tx.Get(pad("k", keySize), &rec)
			kept[i] = string(rec.Value)
		})
	}
	if kept[0] != kept[1] {
		t.Errorf("kept entries: got %q and %q, want the same", kept[0], kept[1])
	}
}

// TestEntryOfNamedOwnerThatIsBack: two nodes have different entries of a key, and have named the same owner, which is back and sends
// one of them. All nodes take that one.
func TestEntryOfNamedOwnerThatIsBack(t *testing.T) {
	for _, values := range [][2]string{{"v", "w"}, {"w", "v"}} {
		r := newRig(t)
		r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
		r.load(Accepted, "k", values[0])
		r.tab.Update(func(tx *Tx) {
			tx.EndLoad()
			tx.NoteOwner(pad("k", keySize), tx.Intern(peer), true)
		})
		back := r.intern(Owner{peer.Node, 50})
		r.merge(Accepted, second, peer, NamedVersion, "k", values[1], RemoteOptions{Sender: back})
		r.want("k", values[1]+" v1 b100 dirty")
		r.merge(Unchanged, second, peer, NamedVersion, "k", values[1], RemoteOptions{Sender: back})
	}
}

// TestNamedOwnerLacksEntry: while this node has an entry that it has not adopted, a third node names a peer as its owner. If
// that peer does not have the key, the entry is a new one of this node, and no delete is inferred.
func TestNamedOwnerLacksEntry(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	r.load(Accepted, "k0", "v")
	r.load(Accepted, "k1", "v")
	r.tab.Update(func(tx *Tx) {
		tx.EndLoad()
		tx.NoteOwner(pad("k0", keySize), tx.Intern(peer), true)
	})
	r.want("k0", "v v1 b100")
	r.tab.Update(func(tx *Tx) {
		var rec Record
		if named := tx.Get(pad("k0", keySize), &rec) && rec.Named; !named {
			t.Error("entry: got a record of its owner, want one that is only named")
		}
	})
	r.sweepAll(math.MaxUint64, nil)
	r.want("k0", "v v2 a100")
	// The owner has adopted the key, too, with another value.
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	r.load(Accepted, "k2", "v")
	r.tab.Update(func(tx *Tx) {
		tx.EndLoad()
		tx.NoteOwner(pad("k2", keySize), tx.Intern(peer), true)
	})
	r.remote(Accepted, second, peer, AdoptedVersion, "k2", "w")
	r.want("k2", "w v2 b100 dirty")
	// An earlier incarnation of this node had the entry with another value. The entry has changed since.
	r.tab.Update(func(tx *Tx) { tx.NoteOwner(pad("k1", keySize), tx.Intern(peer), true) })
	r.remote(Accepted, second, older, 7, "k1", "old")
	r.want("k1", "v v8 a100 dirty")
}

// TestNamedOwnerAdoptsAnotherValue: a third node names a peer as the owner of an entry of the local map. The peer has adopted
// its own entry of the key, with another value. The value of the owner counts.
func TestNamedOwnerAdoptsAnotherValue(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	r.load(Accepted, "k", "v")
	r.tab.Update(func(tx *Tx) {
		tx.EndLoad()
		tx.NoteOwner(pad("k", keySize), tx.Intern(peer), true)
	})
	r.want("k", "v v1 b100")
	r.remote(Accepted, 1, peer, AdoptedVersion, "k", "w")
	r.want("k", "w v2 b100 dirty")
	r.remote(Stale, 1, peer, NamedVersion, "k", "v")
	r.remote(Unchanged, 1, peer, AdoptedVersion, "k", "w")
}

// TestNamedOwnersTakeNoMemory: entries of which a third node has named the owner keep their content, without a copy. Records of
// the owner that have the same content add none. One with another content does.
func TestNamedOwnersTakeNoMemory(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	const keys = 100
	for i := range keys {
		r.load(Accepted, fmt.Sprint("k", i), "v")
	}
	r.load(Accepted, "own", "v") // it stays unadopted
	r.tab.Update(func(tx *Tx) {
		tx.EndLoad()
		for i := range keys {
			tx.NoteOwner(pad(fmt.Sprint("k", i), keySize), tx.Intern(peer), true)
		}
	})
	for i := range keys / 2 {
		r.remote(Accepted, 1, peer, 5, fmt.Sprint("k", i), "v")
	}
	if n := r.tab.replaced.bytes; n != 0 {
		t.Errorf("memory of replaced content: got %d bytes, want 0", n)
	}
	r.remote(Accepted, 1, peer, 5, "k99", "w")
	if n := len(r.tab.replaced.of); n != 1 {
		t.Errorf("replaced content: got %d entries, want 1", n)
	}
	// The earlier incarnation had them with another value. The map has changed since.
	for _, key := range []string{"k0", "k98", "k99"} {
		r.remote(Accepted, second, older, 7, key, "old")
		r.want(key, "v v8 a100 dirty")
	}
}
