package table

import "testing"

func TestEviction(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.want("k", "v v1000 a100")
	// Not to find it is no news, and no delete.
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.want("k", "v v1000 a100")
	// A peer's change of it has to be written even with the same content.
	r.remote(Accepted, 4*second, peer, Version(4*second), "k", "v")
	r.want("k", "v v4000000000 b100 dirty")
	r.write()
	// A victim of the daemon's own write is as gone as any.
	r.local(Ignored, 5*second, "evict k - own 0")
	r.local(Unchanged, 6*second, "delete k - reread 0")
	// Until the data plane puts it back.
	r.local(Unchanged, 7*second, "update k v packet 0")
	r.local(Stale, 8*second, "delete k - reread 0")
	r.wantRechecks("k")
	r.local(Restored, 8*second, "delete k - reread 0")
	r.local(Ignored, 9*second, "evict x - packet 0")
	if st := r.tab.Stats(); st.Evictions != 3 {
		t.Fatalf("counted %d evictions", st.Evictions)
	}
}

// An eviction is told of after the daemon has written the key again.
func TestEvictionToldLate(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.wantRechecks("k")
	r.local(Unchanged, 3*second, "delete k - reread 0")
	r.remote(Accepted, 4*second, peer, 2000, "k", "w")
	r.write()
	r.local(Ignored, 2*second, "evict k - packet 1")
	// So it is not known whether the map holds it, and a delete has to be written.
	r.remote(Accepted, 5*second, peer, 3000, "k", "-")
	r.want("k", "- v3000 b100 dirty")
}

func TestEvictionDeletes(t *testing.T) {
	r := newRig(t, evictions)
	// Whose it is, nobody knows yet.
	r.load(Accepted, "u", "v")
	r.local(Accepted, 1000, "evict u - packet 0")
	r.want("u", "- v0 a100")
	r.remote(Accepted, 1000, peer, 1000, "u", "v")
	r.want("u", "v v1000 b100 dirty")
	r.write()
	r.local(Accepted, 1000, "update k v packet 0")
	r.local(Accepted, 2*second, "evict k - packet 0")
	r.want("k", "- v2000000000 a100")
	// It must still not kill what lives elsewhere.
	r.remote(Accepted, 1000, peer, 1000, "p", "v")
	r.write()
	r.local(Ignored, 3*second, "evict p - packet 0")
	r.want("p", "v v1000 b100")
}

// Where no hook tells evictions, what an LRU map does not hold of another node's is left
// alone until that node changes it: to put it back would evict something else.
func TestUnseenEvictionsAreNotPutBack(t *testing.T) {
	r := newRig(t, func(o *Options) { o.EvictionsUnseen = true })
	r.remote(Accepted, 1000, peer, 1000, "k", "v")
	r.write()
	r.local(Stale, 2*second, "delete k - reread 0") // read before it was written, perhaps
	r.wantRechecks("k")
	r.local(Ignored, 3*second, "delete k - reread 0")
	r.want("k", "v v1000 b100")
	r.wantRechecks("")
	r.remote(Accepted, 4*second, peer, 2000, "k", "v")
	r.want("k", "v v2000 b100 dirty")
	// What this node's collector deletes is still put back.
	r.write()
	r.local(Restored, 5*second, "delete k - syscall 0")
	// An own entry counts as evicted, too.
	r.local(Accepted, 1000, "update o v packet 0")
	r.local(Ignored, 6*second, "delete o - reread 0")
	r.want("o", "v v1000 a100")
}
