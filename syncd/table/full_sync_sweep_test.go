package table

import (
	"fmt"
	"math"
	"testing"
)

func TestTouch(t *testing.T) {
	r := newRig(t)
	for i, k := range []string{"a", "b", "c", "d", "e"} {
		o := []Owner{peer, other, {"b", 1}}[i%3]
		r.remote(Accepted, 0, o, Version(i+1), k, "v")
	}
	r.remote(Accepted, 0, peer, 9, "t", "-")
	c := r.tab.NewCursor(0)
	defer c.Close()
	var chunks int
	for more := true; more; chunks++ {
		r.tab.Update(func(tx *Tx) { more = tx.Touch("b", c, 2) })
		r.local(Accepted, second+int64(chunks), fmt.Sprintf("update x%d v packet 0", chunks))
	}
	if chunks != 4 {
		t.Fatalf("chunks: got %d, want 4", chunks)
	}
	r.wantOrder("beax0cdx1tx2x3")
}

func TestSweep(t *testing.T) {
	r := newRig(t)
	for _, k := range []string{"a", "b", "c", "d"} {
		r.remote(Accepted, 0, peer, 1000, k, "v")
	}
	r.remote(Accepted, 0, Owner{"b", 1}, 1000, "e", "v")
	r.remote(Accepted, 0, peer, 1000, "t", "-")
	r.remote(Accepted, 0, other, 1000, "o", "v")
	r.write()
	r.local(Accepted, 1*second, "update d w packet 0")
	var begin uint64
	r.tab.View(func(tx *Tx) { begin = tx.Head() + 1 })
	// The full sync: a is unchanged, b is newer, and f is new.
	r.merge(Unchanged, 0, peer, 1000, "a", "v", RemoteOptions{Touch: true})
	r.merge(Accepted, 0, peer, 2000, "b", "w", RemoteOptions{Touch: true})
	r.merge(Accepted, 0, peer, 1000, "f", "v", RemoteOptions{Touch: true})
	c := r.tab.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		r.tab.Update(func(tx *Tx) {
			_, more = tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: begin}, 2*second, c, 2)
		})
	}
	r.want("c", "- v1000 b100 dirty")
	r.want("e", "- v1000 b1 dirty")
	for _, k := range []string{"a", "b", "d", "f", "o"} {
		if s := r.state(k); s[0] == '-' {
			t.Errorf("%s: got swept: %s, want it kept", k, s)
		}
	}
	if st := r.tab.Stats(); st.Swept != 2 {
		t.Fatalf("swept records: got %d, want 2", st.Swept)
	}
	if keys := r.write(); keys != "bfce" {
		t.Fatalf("written keys: got %q, want bfce", keys)
	}
	// The tombstone is inferred: it wins over older records, and not over that record.
	r.remote(Stale, 0, peer, 999, "c", "v")
	r.remote(Accepted, 0, peer, 1000, "c", "v")
}

// TestSweepKeepsRecordsThatThePeerMayLack: records of earlier incarnations stay if the peer has not
// acknowledged them. It may have lost its map.
func TestSweepKeepsRecordsThatThePeerMayLack(t *testing.T) {
	r := newRig(t)
	earlier := Owner{"b", 1}
	for _, rec := range []struct {
		key   string
		owner Owner
	}{{"a", earlier}, {"b", earlier}, {"c", peer}} {
		r.remote(Accepted, 0, rec.owner, 1000, rec.key, "v")
	}
	var rec Record
	r.tab.View(func(tx *Tx) { tx.Get(pad("a", keySize), &rec) })
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		tx.Sweep(&Absence{Peer: peer, Acknowledged: rec.Position, Before: tx.Head() + 1}, 2*second, c, 9)
	})
	r.want("a", "- v1000 b1 dirty")
	r.want("b", "v v1000 b1 dirty")
	r.want("c", "- v1000 b100 dirty")
}

// A record with a change that was not replicated is swept. When its entry is in the map again, the
// table does not treat it as the write of syncd.
func TestSweptAndWrittenAgain(t *testing.T) {
	r := newRig(t, volatileTail)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.do(Unchanged, func(tx *Tx) Outcome { return tx.Local(tail(t, 7, second)) })
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: tx.Head() + 1}, 2*second, c, 2)
	})
	r.write()
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.wantRereads("k")
	r.rereadTail(Accepted, 3*second, 7)
}

// TestTouchAndSweepOfCompactTombstones: Touch moves only the compact tombstones of the node, and Sweep
// deletes none. A reread moves a compact tombstone back into a slot.
func TestTouchAndSweepOfCompactTombstones(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "own")
	r.remote(Accepted, 2*second, peer, 10, "theirs", "-")
	r.remote(Accepted, 2*second, peer, 10, "live", "v")
	r.write()
	r.compact(9*second, 2)
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		for more := true; more; {
			_, more = tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: tx.Head() + 1}, 9*second, c, 1)
		}
	})
	r.wantOrder("owntheirslive")
	r.want("theirs", "- v10 b100")
	r.want("live", "- v10 b100 dirty")
	touch := r.tab.NewCursor(0)
	defer touch.Close()
	r.tab.Update(func(tx *Tx) {
		for tx.Touch("a", touch, 1) {
		}
	})
	r.wantOrder("theirsliveown")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("theirs", keySize)) })
	checkInvariants(t, r.tab)
	r.wantRereads("theirs")
	r.wantOrder("liveowntheirs")
}

// TestSweepHasNoCPU: the order of a sweep and of events at about the same time is uncertain, also if the last
// event before was of the same CPU. The table rereads the key after each of them.
func TestSweepHasNoCPU(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.write()
	r.local(Unchanged, 2*second, "update k v packet 0")
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: tx.Head() + 1}, 3*second, c, 2)
	})
	r.local(Accepted, 3*second+1, "update k w packet 0")
	r.wantRereads("k")
	r.local(Accepted, 3*second+2, "update k x packet 0")
	r.wantRereads("k")
}
