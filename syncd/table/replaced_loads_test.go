package table

import (
	"fmt"
	"testing"
)

// receipt is a record of the key k that a peer sends.
type receipt struct {
	owner   Owner
	version Version
	value   string
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
// result does not depend on the order. The content of the local map wins if it was changed meanwhile, unless another node
// has taken over the key since.
func TestInitialSyncInAnyOrder(t *testing.T) {
	unknown := Owner{"u", 1}
	for _, c := range []struct {
		held string // by the local map
		sent []receipt
		want string
	}{
		{"v", []receipt{{peer, 1000, "p"}, {older, 2000, "w"}}, "v v2001 a100"},
		{"v", []receipt{{peer, 1000, "p"}, {older, 2000, "w"}, {older, 3000, "x"}}, "v v3001 a100"},
		{"v", []receipt{{peer, 1000, "p"}, {other, 1500, "q"}, {older, 2000, "-"}}, "v v2001 a100"},
		{"v", []receipt{{unknown, 1000, "-"}, {older, 2000, "w"}}, "v v2001 a100"},
		{"-", []receipt{{peer, 1000, "p"}, {older, 2000, "w"}}, "- v2001 a100"},
		{"-", []receipt{{peer, 1000, "-"}, {older, 2000, "w"}}, "- v2001 a100"},
		// Nothing was changed.
		{"v", []receipt{{peer, 1000, "p"}, {older, 2000, "v"}}, "v v2000 a90"},
		{"-", []receipt{{peer, 1000, "p"}, {older, 2000, "-"}}, "- v2000 a90"},
		// Another node has taken over the key.
		{"v", []receipt{{peer, 3000, "p"}, {older, 2000, "w"}}, "p v3000 b100"},
		{"-", []receipt{{peer, 3000, "p"}, {older, 2000, "w"}}, "p v3000 b100"},
	} {
		permutations(c.sent, 0, func(sent []receipt) {
			for _, written := range []bool{false, true} {
				r := newRig(t, sameMap)
				r.begin(c.held)
				for _, s := range sent {
					r.tab.Update(func(tx *Tx) {
						tx.Remote(&Delta{Key: pad("k", keySize), Value: pad(s.value, valueSize), Delete: s.value == "-", Version: s.version, Owner: tx.Intern(s.owner)}, 0, RemoteOptions{})
					})
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

// TestReplacedLoadIsWrittenAgain: the writer has written another node's record, and then restores the content that
// the map held.
func TestReplacedLoadIsWrittenAgain(t *testing.T) {
	for _, held := range []string{"v", "-"} {
		r := newRig(t, sameMap)
		r.begin(held)
		r.remote(Accepted, 0, peer, 1000, "k", "p")
		r.write()
		r.remote(Accepted, 0, older, 2000, "k", "w")
		r.want("k", held+" v2001 a100 dirty")
		if keys := r.write(); keys != "k" {
			t.Errorf("map that held %s, written keys: got %q, want k", held, keys)
		}
	}
}

// TestReplacedLoadEnds: content that a record has replaced is forgotten when the data plane changes the key, when the
// initial sync ends, and in an LRU map for absent keys, whose entries may be evicted.
func TestReplacedLoadEnds(t *testing.T) {
	changed := newRig(t, sameMap)
	changed.begin("v")
	changed.remote(Accepted, 0, peer, 1000, "k", "p")
	changed.local(Accepted, 2000, "update k x packet 0")
	changed.remote(Accepted, 0, peer, 3000, "k", "q")
	changed.remote(Accepted, 0, older, 4000, "k", "w")
	changed.want("k", "w v4000 a90 dirty")

	ended := newRig(t, sameMap)
	ended.begin("v")
	ended.remote(Accepted, 0, peer, 1000, "k", "p")
	ended.adopt()
	ended.remote(Accepted, 0, older, 4000, "k", "w")
	ended.want("k", "w v4000 a90 dirty")

	evicting := newRig(t, sameMap, lru(8, 8))
	evicting.begin("-")
	evicting.remote(Accepted, 0, peer, 1000, "k", "p")
	evicting.remote(Accepted, 0, older, 4000, "k", "w")
	evicting.want("k", "w v4000 a90 dirty")
}

// TestReplacedLoadsAreBounded: the memory of replaced content has a limit, and counts.
func TestReplacedLoadsAreBounded(t *testing.T) {
	r := newRig(t, sameMap)
	r.begin("-")
	before := r.tab.Stats().MemoryBytes
	for i := range 64 {
		r.remote(Accepted, 0, peer, Version(1000+i), fmt.Sprint("k", i), "p")
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
