package table

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func minute(o *Options) { o.TombstoneTTL = time.Minute }

// TestLifetimeOfALateDelete: the lifetime begins with the delete. If the event arrives more than a
// second later, the lifetime begins with the arrival.
func TestLifetimeOfALateDelete(t *testing.T) {
	for late, begin := range map[int64]int64{0: 10 * second, second / 2: 10*second - second/2, lateDelete: 9 * second, lateDelete + 1: 10 * second, 5 * second: 10 * second} {
		r := newRig(t, minute)
		r.local(Accepted, second, "update k v packet 0")
		r.expire(10*second, 9) // sets the clock
		r.local(Accepted, 10*second-late, "delete k - packet 0")
		_, s := r.tab.find(pad("k", keySize))
		if seen := r.tab.meta(s).seen; seen != begin {
			t.Errorf("%d ns late: the lifetime begins at %d, want %d", late, seen, begin)
		}
	}
}

// TestTombstonesWithPendingRereadAreBounded: the table keeps at most twice Options.MaxTombstones
// tombstones with pending rereads.
func TestTombstonesWithPendingRereadAreBounded(t *testing.T) {
	for _, test := range []struct {
		cpu          int // CPU of the delete; if it differs from the CPU of the update, the key is reread
		deletes, end int
	}{{0, 4, 4}, {0, 5, 4}, {0, 20, 4}, {1, 5, 5}, {1, 7, 7}, {1, 8, 8}, {1, 9, 8}, {1, 20, 8}} {
		r := newRig(t, func(o *Options) { o.MaxTombstones = 4 })
		for i := range test.deletes {
			r.local(Accepted, second, fmt.Sprintf("update k%d v packet 0", i))
			r.local(Accepted, second+1, fmt.Sprintf("delete k%d - packet %d", i, test.cpu))
		}
		if st := r.tab.Stats(); st.Tombstones != test.end || st.ExpiredEarly != uint64(test.deletes-test.end) {
			t.Errorf("%+v: got %d tombstones, %d forgotten, want %d and %d",
				test, st.Tombstones, st.ExpiredEarly, test.end, test.deletes-test.end)
		}
		if forgotten := r.state("k0") == "unknown"; test.cpu == 0 && forgotten != (test.deletes > test.end) {
			t.Errorf("%+v: the oldest is forgotten: got %v, want %v", test, forgotten, !forgotten)
		}
	}
}

// TestExpireAtExtremeTimes: Expire forgets no tombstone at the lowest time, and all at the highest
// time.
func TestExpireAtExtremeTimes(t *testing.T) {
	r := newRig(t, minute)
	r.remote(Accepted, second, peer, 10, "k", "-")
	if r.expire(math.MinInt64, 9) {
		t.Error("Expire: got more true, want false")
	}
	r.want("k", "- v10 b100")
	r.expire(math.MaxInt64, 9)
	r.want("k", "unknown")
}

// TestSecondDeleteExtendsGrace: a second delete of the key prolongs the grace of an acknowledged
// tombstone.
func TestSecondDeleteExtendsGrace(t *testing.T) {
	r := newRig(t, minute, func(o *Options) { o.TombstoneGrace = 5 * time.Second })
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "delete k - packet 0")
	r.queueTombstone(second, "k")
	r.local(Unchanged, 9*second, "delete k - reread 0")
	r.write()
	r.acknowledge(9)
	for _, now := range []int64{10 * second, 14*second - 1} {
		r.expire(now, 9)
		r.want("k", "- v1000000001 a100")
	}
	r.expire(14*second, 9)
	r.want("k", "unknown")
	if st := r.tab.Stats(); st.Acknowledged != 1 || st.Expired != 0 {
		t.Errorf("tombstones: got %d acknowledged, %d expired, want 1 and 0", st.Acknowledged, st.Expired)
	}
}

// TestUnwrittenTombstone: a dirty tombstone stays beyond its lifetime. Expire examines it again at
// least 1 ns later.
func TestUnwrittenTombstone(t *testing.T) {
	r := newRig(t, minute)
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "k", "-")
	end := 61 * second
	r.expire(end-1, 9)
	if r.expire(end, 1) {
		t.Error("Expire: got more true, want false")
	}
	r.want("k", "- v11 b100 dirty")
	r.write()
	r.expire(end, 9)
	r.want("k", "- v11 b100")
	r.expire(end+1, 9)
	r.want("k", "unknown")
}

// TestExpireReturnsMore: Expire returns true if it forgot a tombstone and reached the limit, even if
// the last tombstone stays.
func TestExpireReturnsMore(t *testing.T) {
	for limit, want := range map[int]bool{1: true, 2: true, 3: false} {
		r := newRig(t, minute)
		r.remote(Accepted, second, peer, 10, "first", "-")
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("first", keySize)) })
		r.remote(Accepted, second, peer, 10, "last", "v")
		r.write()
		r.remote(Accepted, second, peer, 11, "last", "-")
		r.expire(60*second, 9)
		if n := r.tab.tombs.len(); n != 2 {
			t.Fatalf("queued tombstones: got %d, want 2", n)
		}
		r.takeRereads()
		if more := r.expire(61*second, limit); more != want {
			t.Errorf("limit %d: got more %v, want %v", limit, more, want)
		}
		r.want("first", "unknown")
		r.want("last", "- v11 b100 dirty")
	}
}

// TestExpireUnwritten: ExpireUnwritten forgets dirty and released tombstones at the end of their
// lifetime.
func TestExpireUnwritten(t *testing.T) {
	r := newRig(t, minute, lru(8, 8))
	for _, k := range []string{"released", "deleted"} {
		r.remote(Accepted, second, peer, 10, k, "v")
	}
	r.write()
	r.expired(Accepted, second, peer, 10, "released")
	r.remote(Accepted, second, peer, 11, "deleted", "-")
	for _, test := range []struct {
		now  int64
		left int
	}{{60 * second, 2}, {61*second - 1, 2}, {61 * second, 0}} {
		r.tab.Update(func(tx *Tx) { tx.ExpireUnwritten(test.now, 9) })
		if st := r.tab.Stats(); st.Tombstones != test.left || st.Released != test.left/2 || st.Dirty != test.left/2 {
			t.Errorf("at %d: got %d tombstones, %d released, %d dirty, want %d, %d, %d", test.now, st.Tombstones, st.Released, st.Dirty, test.left, test.left/2, test.left/2)
		}
	}
}
