package table

import (
	"testing"
	"time"
)

// TestRestoredDeleteIsOver: a call of bpf(2) deletes a peer's entry of an LRU map, and the writer restores it. A later absence
// is that of an eviction again, also after the owner has left.
func TestRestoredDeleteIsOver(t *testing.T) {
	for _, gone := range []bool{false, true} {
		r := newRig(t, lru(8, 8))
		r.remote(Accepted, second, peer, 1000, "k", "p")
		r.write()
		r.tab.Update(func(tx *Tx) { tx.RequestRereadOfDelete(pad("k", keySize)) })
		r.wantRereads("k")
		r.local(Restored, 2*second, "delete k - reread 0")
		r.write()
		r.setGone("b", gone)
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
		r.wantRereads("k")
		r.local(Ignored, 100*second, "delete k - reread 0")
	}
}

// TestLateDeleteIsNoEviction: a scan of an LRU map finds an entry gone, and the event of its delete arrives later. The record is
// above the time of the event, so that a reread decides: the entry was deleted.
func TestLateDeleteIsNoEviction(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.MaxSkew = 30 * time.Second })
	r.remote(Accepted, 100*second, peer, Version(150*second), "k", "p")
	r.write()
	r.local(Accepted, 101*second, "update k w packet 0")
	r.wantRereads("k")
	r.local(Unchanged, 101*second+second/100, "update k w reread 0")
	r.local(Ignored, 103*second+second/10, "delete k - reread 0") // the scan
	r.local(Stale, 103*second, "delete k - packet 0")
	r.wantRereads("k")
	r.local(Accepted, 104*second, "delete k - reread 0")
}

// TestDeleteByCallDuringLoad: a call of bpf(2) deletes an entry of an LRU map after the load has read it. It was not evicted.
func TestDeleteByCallDuringLoad(t *testing.T) {
	for _, reread := range []bool{false, true} {
		r := newRig(t, sameMap, lru(8, 8))
		r.tab.Update(func(tx *Tx) {
			tx.BeginLoad()
			if reread {
				tx.RequestRereadOfDelete(pad("k", keySize))
			}
		})
		if reread {
			r.wantRereads("k")
		}
		r.local(Unchanged, second, "delete k - "+map[bool]string{false: "syscall", true: "reread"}[reread]+" 0")
		r.load(Accepted, "k", "v")
		r.tab.Update((*Tx).EndLoad)
		r.wantRereads("k")
		r.local(Accepted, 2*second, "delete k - reread 0")
		r.remote(Accepted, 3*second, older, 1000, "k", "v")
		if r.state("k") != "- v1001 a100" {
			t.Errorf("record of the deleted key: got %q, want - v1001 a100", r.state("k"))
		}
	}
}

// TestEvictionDeletesNeedsOneReread: with Options.EvictionDeletes, an absence is a delete, and needs no second reread.
func TestEvictionDeletesNeedsOneReread(t *testing.T) {
	r := newRig(t, lru(8, 8), evictions)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - reread 0")
	r.wantRereads("")
}
