package table

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"mapsync/internal/race"
)

// receipt is a record of the key k that a peer sends.
type receipt struct {
	owner   Owner
	version Version
	value   string
}

// receive merges a record.
func (r *rig) receive(s receipt) {
	r.tab.Update(func(tx *Tx) {
		d := Delta{Key: pad("k", keySize), Value: pad(s.value, valueSize), Delete: s.value == "-", Version: s.version, Owner: tx.Intern(s.owner)}
		tx.Remote(&d, 0, RemoteOptions{})
	})
}

// permutations calls fn with each order of receipts.
func permutations(all []receipt, n int, fn func([]receipt)) {
	if n == len(all) {
		fn(all)
		return
	}
	for i := n; i < len(all); i++ {
		all[n], all[i] = all[i], all[n]
		permutations(all, n+1, fn)
		all[n], all[i] = all[i], all[n]
	}
}

// begin makes the table ready for the load of a map that holds k with a value, "-": that does not hold it.
func (r *rig) begin(value string) {
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	if value != "-" {
		r.load(Accepted, "k", value)
	}
	r.tab.Update(func(tx *Tx) { tx.EndLoad() })
}

// TestInitialSyncInAnyOrder: a syncd restarts, and peers send records of its earlier incarnation and of other nodes. The
// result does not depend on the order. The content of the local map wins if it was changed meanwhile, or is changed during the
// initial sync, unless another node has taken over the key since.
func TestInitialSyncInAnyOrder(t *testing.T) {
	unknown := Owner{"u", 1}
	for _, c := range []struct {
		held  string // by the local map
		event string // of the data plane, before the records of peers
		sent  []receipt
		want  string
	}{
		{"v", "", []receipt{{peer, 1000, "p"}, {older, 2000, "w"}}, "v v2001 a100"},
		{"v", "", []receipt{{peer, 1000, "p"}, {older, 2000, "w"}, {older, 3000, "x"}}, "v v3001 a100"},
		{"v", "", []receipt{{peer, 1000, "p"}, {other, 1500, "q"}, {older, 2000, "-"}}, "v v2001 a100"},
		{"v", "", []receipt{{peer, 1000, "v"}, {other, 1500, "q"}, {older, 2000, "w"}}, "v v2001 a100"},
		{"v", "", []receipt{{unknown, 1000, "-"}, {older, 2000, "w"}}, "v v2001 a100"},
		{"v", "", []receipt{{peer, 1000, "-"}, {older, 2000, "w"}, {older, 3000, "v"}}, "v v3000 a90"},
		{"v", "update k x packet 0", []receipt{{peer, 3000, "q"}, {older, 4000, "w"}}, "x v4001 a100"},
		{"v", "delete k - packet 0", []receipt{{peer, 3000, "q"}, {older, 4000, "w"}}, "- v4001 a100"},
		{"v", "delete k - syscall 0", []receipt{{peer, 3000, "q"}, {older, 4000, "w"}}, "- v4001 a100"},
		// Nothing was changed.
		{"v", "", []receipt{{peer, 1000, "p"}, {older, 2000, "v"}}, "v v2000 a90"},
		{"-", "", []receipt{{peer, 1000, "p"}, {older, 2000, "-"}}, "- v2000 a90"},
		// Another node has taken over the key.
		{"v", "", []receipt{{peer, 3000, "p"}, {older, 2000, "w"}}, "p v3000 b100"},
		{"-", "", []receipt{{peer, 3000, "p"}, {older, 2000, "w"}}, "p v3000 b100"},
	} {
		permutations(c.sent, 0, func(sent []receipt) {
			for _, written := range []bool{false, true} {
				r := newRig(t, sameMap)
				r.begin(c.held)
				if c.event != "" {
					r.tab.Update(func(tx *Tx) { tx.Local(parseChange(t, c.event, 2000)) })
				}
				for _, s := range sent {
					r.receive(s)
					if written {
						r.write()
					}
				}
				keys := r.write()
				if r.want("k", c.want); t.Failed() {
					t.Fatalf("the map holds %s, sent %v, written between: %v, then %q", c.held, sent, written, keys)
				}
				r.adopt()
				r.want("k", c.want)
			}
		})
	}
}

// TestRandomInitialSyncInAnyOrder is TestInitialSyncInAnyOrder with random records, maps and writes between them.
func TestRandomInitialSyncInAnyOrder(t *testing.T) {
	race.SkipSequential(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		options := Options{SameMap: random.IntN(2) == 0, LRU: random.IntN(3) == 0, EvictionDeletes: random.IntN(3) == 0}
		versions := random.Perm(20)
		sent := make([]receipt, 2+random.IntN(2))
		for i := range sent {
			sent[i] = receipt{
				[]Owner{peer, other, older, {"a", 80}}[random.IntN(4)], Version(10 * (1 + versions[i])),
				[]string{"-", "v", "w", "p"}[random.IntN(4)],
			}
		}
		first, firstOrder := "", ""
		permutations(sent, 0, func(sent []receipt) {
			r := newRig(t, func(o *Options) {
				o.SameMap, o.LRU, o.EvictionDeletes = options.SameMap, options.LRU, options.EvictionDeletes
			})
			r.begin("v")
			for _, s := range sent {
				r.receive(s)
				if random.IntN(2) == 0 {
					r.write()
				}
			}
			r.write()
			switch state := r.state("k"); {
			case first == "":
				first, firstOrder = state, fmt.Sprint(sent)
			case state != first:
				t.Fatalf("options %+v, %v: got %q, want %q as for %s", options, sent, state, first, firstOrder)
			}
		})
	}
}

// TestReplacedLoadIsWrittenAgain: the writer has written another node's record, and then restores the content that
// the map held, with the bytes that peers do not compare.
func TestReplacedLoadIsWrittenAgain(t *testing.T) {
	for _, older2000 := range []string{"w", "v"} {
		r := newRig(t, sameMap, volatileTail)
		held := append(pad("v", valueSize-1), 9)
		r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.Load(pad("k", keySize), held); tx.EndLoad() })
		r.remote(Accepted, 0, peer, 1000, "k", "p")
		r.write()
		r.remote(Accepted, 0, older, 2000, "k", older2000)
		r.tab.View(func(tx *Tx) {
			var rec Record
			if !tx.Get(pad("k", keySize), &rec) || !rec.Dirty || !bytes.Equal(rec.Value, held) {
				t.Errorf("after %s of an earlier incarnation: got %v, dirty %v, want %v, dirty", older2000, rec.Value, rec.Dirty, held)
			}
		})
	}
}

// TestReplacedLoadFollowsChanges: the data plane, or a call of bpf(2), changes a key whose content a record has replaced.
func TestReplacedLoadFollowsChanges(t *testing.T) {
	for _, c := range []struct {
		outcome     Outcome
		event, want string
	}{
		{Unchanged, "update k p packet 0", "p v2001 a100"},
		{Restored, "delete k - syscall 0", "- v2001 a100"},
	} {
		r := newRig(t, sameMap)
		r.begin("v")
		r.remote(Accepted, 0, peer, 1000, "k", "p")
		r.write()
		r.local(c.outcome, 5*second, c.event)
		r.remote(Accepted, 0, older, 2000, "k", "w")
		if r.write(); r.state("k") != c.want {
			t.Errorf("after %q: got %q, want %q", c.event, r.state("k"), c.want)
		}
	}
}

// TestReplacedLoadEnds: content that a record has replaced is forgotten when the initial sync ends. An absence is none, and
// a record of a live node is defended against one that was made after the start.
func TestReplacedLoadEnds(t *testing.T) {
	ended := newRig(t, sameMap)
	ended.begin("v")
	ended.remote(Accepted, 0, peer, 1000, "k", "p")
	ended.adopt()
	ended.remote(Accepted, 0, older, 4000, "k", "w")
	ended.want("k", "w v4000 a90 dirty")

	absent := newRig(t, sameMap)
	absent.begin("-")
	absent.remote(Accepted, 0, peer, 1000, "k", "p")
	absent.remote(Accepted, 0, older, 4000, "k", "w")
	absent.want("k", "w v4000 a90 dirty")

	// A change in a new map stays a record of this incarnation, also if a peer has the same value.
	changed := newRig(t)
	changed.begin("v")
	changed.local(Accepted, 500, "update k x packet 0")
	changed.remote(Accepted, 0, peer, 1000, "k", "p")
	changed.remote(Accepted, 0, older, 4000, "k", "x")
	changed.want("k", "x v4001 a100 dirty")

	// The record of a change has expired after an eviction.
	expired := newRig(t, sameMap, lru(8, 0))
	expired.begin("v")
	expired.remote(Accepted, 0, peer, 1000, "k", "p")
	expired.write()
	expired.local(Accepted, second, "update k x packet 0")
	expired.local(Ignored, 2*second, "evict k - packet 0")
	expired.wantRereads("k")
	expired.local(Unchanged, 3*second, "delete k - reread 0")
	expired.expireEvicted(100 * second)
	expired.remote(Accepted, 0, peer, Version(5*second), "k", "q")
	expired.remote(Accepted, 0, older, Version(6*second), "k", "w")
	expired.want("k", "w v6000000000 a90 dirty")

	defended := withMembers(t, sameMap)
	defended.begin("v")
	defended.remote(Accepted, 0, peer, 1000, "k", "p")
	defended.remote(Defended, 0, older, 4000, "k", "w")
	defended.want("k", "p v4001 a100 dirty")
}

// TestReplacedLoadsAreBounded: the memory of replaced content has a limit, and counts. Content that a peer sends
// as it is needs none.
func TestReplacedLoadsAreBounded(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update(func(tx *Tx) {
		tx.BeginLoad()
		for i := range 64 {
			tx.Load(pad(fmt.Sprint("k", i), keySize), pad("v", valueSize))
		}
		tx.Load(pad("l", keySize), pad("v", valueSize))
		tx.EndLoad()
	})
	for i := range 64 {
		r.remote(Accepted, 0, peer, Version(1000+i), fmt.Sprint("k", i), "v")
	}
	if n := r.tab.replaced.bytes; n != 0 {
		t.Errorf("memory of content that peers have: got %d bytes, want 0", n)
	}
	before := r.tab.Stats().MemoryBytes
	for i := range 64 {
		r.remote(Accepted, 0, other, Version(2000+i), fmt.Sprint("k", i), "p")
	}
	if n := r.tab.replaced.bytes; n < 64*replacedLoadBytes || r.tab.Stats().MemoryBytes < before+uint64(n) {
		t.Errorf("memory of replaced content: got %d bytes, want at least %d, and it counts", n, 64*replacedLoadBytes)
	}
	r.tab.replaced.bytes = maxReplacedLoads
	r.remote(Accepted, 0, peer, 5000, "l", "p")
	if _, known := r.tab.replaced.of[string(pad("l", keySize))]; known {
		t.Error("content above the limit: got it stored, want it forgotten")
	}
	r.adopt()
	if n := r.tab.replaced.bytes; n != 0 {
		t.Errorf("memory after the initial sync: got %d bytes, want 0", n)
	}
}

// TestRestartWithLRUMap: keys that an LRU map does not hold at start are evicted, also if peers have several records of
// the earlier incarnation.
func TestRestartWithLRUMap(t *testing.T) {
	for _, c := range []struct {
		sent []receipt
		want string
	}{
		{[]receipt{{older, 1000, "w"}, {older, 2000, "-"}}, "- v2000 a90"},
		{[]receipt{{older, 1000, "-"}, {older, 2000, "w"}}, "w v2000 a90"},
		{[]receipt{{older, 1000, "-"}, {peer, 1500, "p"}, {older, 2000, "w"}}, "w v2000 a90"},
	} {
		permutations(c.sent, 0, func(sent []receipt) {
			r := newRig(t, sameMap, lru(8, 8))
			r.begin("-")
			for _, s := range sent {
				r.receive(s)
			}
			if r.write(); r.state("k") != c.want {
				t.Errorf("sent %v: got %q, want %q", sent, r.state("k"), c.want)
			}
		})
	}
}
