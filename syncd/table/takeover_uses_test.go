package table

import (
	"testing"
	"time"
)

// seenUses are the times of the last uses of keys, in nanoseconds of the wall clock.
type seenUses struct {
	now, began int64
	last       map[string]int64
}

// at returns the uses as seen at a time.
func (u *seenUses) at(now int64) *seenUses { u.now = now; return u }

func (u *seenUses) Idle(key []byte) (time.Duration, bool) {
	last, used := u.last[string(key[:1])]
	return time.Duration(u.now - max(last, u.began)), used
}

// TestUsedEntriesDoNotExpire: a data plane that only looks entries up keeps them. The first use takes the record over, so that
// other nodes keep it, too. It expires once the uses end.
func TestUsedEntriesDoNotExpire(t *testing.T) {
	const left = 2000 * second
	r := newRig(t, takeoverExpiry)
	u := &seenUses{began: second, last: map[string]int64{"m": 1000 * second}} // m: before its owner left
	for _, key := range []string{"k", "l", "m"} {
		r.remote(Accepted, second, peer, Version(second), key, "v")
	}
	r.write()
	r.setGone("b", true)
	r.expireUnused(left, u.at(left))
	for now := left + 20*second; now < left+1000*second; now += 20 * second {
		u.last["k"] = now - 5*second
		r.scanUnchangedMap(now - second)
		r.expireUnused(now, u.at(now))
	}
	r.want("k", "v v2020000000000 a100") // once: this node is live
	r.want("l", "- v1000000001 a100 dirty")
	r.want("m", "- v1000000001 a100 dirty")
	if st := r.tab.Stats(); st.TakeoversUsed != 1 || st.TakeoversExpired != 2 {
		t.Errorf("records: got %d taken over and %d expired, want 1 and 2", st.TakeoversUsed, st.TakeoversExpired)
	}
	end := u.last["k"]
	r.scanUnchangedMap(end + 99*second)
	r.expireUnused(end+99*second, u.at(end+99*second))
	r.want("k", "v v2020000000000 a100")
	r.scanUnchangedMap(end + 130*second)
	r.expireUnused(end+130*second, u.at(end+130*second))
	r.want("k", "- v2020000000001 a100 dirty")
}

// TestUsedEntryFoundInTheMapExpires: an entry that syncd has not written since its start is taken over like others, and expires
// once its uses end.
func TestUsedEntryFoundInTheMapExpires(t *testing.T) {
	const left = 2000 * second
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	_, s := r.tab.find(pad("k", keySize))
	r.tab.meta(s).flags &^= flagEntry // the map had it before
	r.setGone("b", true)
	u := &seenUses{began: second, last: map[string]int64{}}
	r.expireUnused(left, u.at(left))
	u.last["k"] = left + 10*second
	r.expireUnused(left+13*second, u.at(left+13*second))
	r.want("k", "v v2013000000000 a100")
	r.scanUnchangedMap(left + 200*second)
	r.expireUnused(left+200*second, u.at(left+200*second))
	r.want("k", "- v2013000000001 a100 dirty")
}

// TestUseOnAnotherNodePostponesExpiry: a node without uses waits longer for entries of owners that have left. The takeover by
// the node that uses the entry therefore arrives first, although that node found the use late.
func TestUseOnAnotherNodePostponesExpiry(t *testing.T) {
	const left = 2000 * second
	delay := func(o *Options) { o.TakeoverDelay = takeoverTTL / 4 }
	idle, user := newRig(t, takeoverExpiry, delay), newRig(t, takeoverExpiry, delay)
	for _, r := range []*rig{idle, user} {
		r.remote(Accepted, second, peer, Version(second), "k", "v")
		r.remote(Accepted, second, peer, Version(second), "l", "v")
		r.write()
		r.setGone("b", true)
		r.expireUnused(left, &seenUses{now: left, began: second})
	}
	// The first use is as late as possible. The next pass of that node follows within an eighth.
	now := left + 112*second
	user.expireUnused(now, &seenUses{now: now, began: second, last: map[string]int64{"k": left + 99*second}})
	user.want("k", "v v2112000000000 a100")
	idle.scanUnchangedMap(now)
	idle.expireUnused(now, &seenUses{now: now, began: second})
	idle.want("k", "v v1000000000 b100")
	idle.remote(Accepted, now, other, Version(2112*second), "k", "v")
	now = left + 200*second
	idle.scanUnchangedMap(now)
	idle.expireUnused(now, &seenUses{now: now, began: second})
	idle.want("k", "v v2112000000000 c100")
	idle.want("l", "- v1000000001 a100 dirty")
}

// TestUnobservedTimePostponesExpiry: no observation, no expiry. The time begins anew when uses may have been missed.
func TestUnobservedTimePostponesExpiry(t *testing.T) {
	const left = 2000 * second
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.setGone("b", true)
	u := &seenUses{began: left + 300*second} // syncd has started to observe late
	r.expireUnused(left, u.at(left))
	r.scanUnchangedMap(left + 399*second)
	r.expireUnused(left+399*second, u.at(left+399*second))
	r.want("k", "v v1000000000 b100")
	missed := left + 399*second
	r.tab.Update(func(tx *Tx) { tx.PostponeTakeover(missed) })
	r.scanUnchangedMap(missed + 99*second)
	r.expireUnused(missed+99*second, u.at(missed+99*second))
	r.want("k", "v v1000000000 b100")
	r.scanUnchangedMap(missed + 113*second)
	r.expireUnused(missed+113*second, u.at(missed+113*second))
	r.want("k", "- v1000000001 a100 dirty")
}

// TestRemoveUnused: an operator removes unused records of owners that have left, also if takeover-expiry is not set. Records of live owners, of
// this node's data plane, and used or changed ones stay.
func TestRemoveUnused(t *testing.T) {
	const left = 2000 * second
	r := newRig(t)
	for _, key := range []string{"k", "l", "m"} {
		r.remote(Accepted, second, peer, Version(second), key, "v")
	}
	r.remote(Accepted, second, other, Version(second), "n", "v")
	r.local(Accepted, second, "update o v packet 0")
	r.write()
	r.setGone("b", true)
	r.expireUnused(left, nil)
	r.local(Accepted, left+150*second, "update m w packet 0")
	now := left + 200*second
	remove := func(now int64, sel Unused) (removed int) {
		c := r.tab.NewCursor(0)
		defer c.Close()
		r.tab.Update(func(tx *Tx) {
			for more := true; more; {
				var n int
				n, more = tx.Remove(&Selection{Unused: &sel}, now, c, 2)
				removed += n
			}
		})
		return removed
	}
	uses := &seenUses{now: now, began: second, last: map[string]int64{"k": now - 60*second}}
	if n := remove(now, Unused{For: 100 * time.Second, Uses: uses}); n != 0 {
		t.Errorf("records removed without a scan: got %d, want 0", n)
	}
	r.scanUnchangedMap(now)
	if n := remove(now, Unused{For: 201 * time.Second, Uses: uses}); n != 0 {
		t.Errorf("records removed that their owner may have used: got %d, want 0", n)
	}
	if n := remove(now, Unused{For: 100 * time.Second, Uses: uses}); n != 1 {
		t.Errorf("unused records removed: got %d, want 1", n)
	}
	r.want("l", "- v1000000001 a100 dirty")
	r.tab.Update(func(tx *Tx) { tx.PostponeTakeover(now) })
	if n := remove(now, Unused{For: 100 * time.Second, Uses: uses}); n != 0 {
		t.Errorf("records removed without an observation: got %d, want 0", n)
	}
	if n := remove(now, Unused{For: 201 * time.Second, Changes: true}); n != 0 {
		t.Errorf("unchanged records removed that their owner may have used: got %d, want 0", n)
	}
	if n := remove(now, Unused{For: 100 * time.Second, Changes: true}); n != 1 {
		t.Errorf("unchanged records removed: got %d, want 1", n)
	}
	r.wantLive("klmno", "mno")
}
