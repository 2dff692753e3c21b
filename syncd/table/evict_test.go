package table

import "testing"

func TestEviction(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.want("k", "v v1000 a100")
	// A reread that does not find the key changes nothing, and is not a delete.
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.want("k", "v v1000 a100")
	// A change by a peer must be written even with the same content.
	r.remote(Accepted, 4*second, peer, Version(4*second), "k", "v")
	r.want("k", "v v4000000000 b100 dirty")
	r.write()
	// An eviction that a write of syncd causes counts like any other eviction.
	r.local(Ignored, 5*second, "evict k - own 0")
	r.local(Unchanged, 6*second, "delete k - reread 0")
	// The record counts as evicted until the data plane writes the key again.
	r.local(Unchanged, 7*second, "update k v packet 0")
	r.local(Stale, 8*second, "delete k - reread 0")
	r.wantRereads("k")
	r.local(Restored, 8*second, "delete k - reread 0")
	r.local(Ignored, 9*second, "evict x - packet 0")
	if st := r.tab.Stats(); st.Evictions != 3 {
		t.Fatalf("evictions: got %d, want 3", st.Evictions)
	}
}

// The event of an eviction arrives after syncd has written the key again.
func TestLateEvictionEvent(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.wantRereads("k")
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.remote(Accepted, 4*second, peer, 2000, "k", "w")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 1")
	// It is therefore uncertain whether the map holds the key, and the table must write a delete.
	r.remote(Accepted, 5*second, peer, 3000, "k", "-")
	r.want("k", "- v3000 b100 dirty")
}

func TestEvictionDeletes(t *testing.T) {
	r := newRig(t, evictions)
	// The key has no owner yet.
	r.load(Accepted, "u", "v")
	r.local(Accepted, 1000, "evict u - packet 0")
	r.want("u", "- v0 a100")
	r.remote(Accepted, 1000, peer, 1000, "u", "v")
	r.want("u", "v v1000 b100 dirty")
	r.write()
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Accepted, 2*second, "evict k - packet 0")
	r.want("k", "- v2000000000 a100")
	// The eviction must not delete the record of a peer.
	r.remote(Accepted, 1000, peer, 1000, "p", "v")
	r.write()
	r.local(Ignored, 3*second, "evict p - packet 0")
	r.want("p", "v v1000 b100")
}

// If an LRU map does not hold the key of a peer, the table does not restore it until the peer changes it. A restored
// entry would evict another entry.
func TestUnseenEvictionsAreNotRestored(t *testing.T) {
	r := newRig(t, func(o *Options) { o.LRU = true })
	r.remote(Accepted, 1000, peer, 1000, "k", "v")
	r.write()
	r.local(Stale, 2*second, "delete k - reread 0") // the read may be older than the write
	r.wantRereads("k")
	r.local(Ignored, 3*second, "delete k - reread 0")
	r.want("k", "v v1000 b100")
	r.wantRereads("")
	r.remote(Accepted, 4*second, peer, 2000, "k", "v")
	r.want("k", "v v2000 b100 dirty")
	// The table still restores an entry that a collector of this node deletes.
	r.write()
	r.local(Restored, 5*second, "delete k - syscall 0")
	// An entry of this node also counts as evicted.
	r.local(Accepted, 1000, "update o v packet 0")
	r.local(Ignored, 6*second, "delete o - reread 0")
	r.want("o", "v v1000 a100")
}
