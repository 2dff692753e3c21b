package table

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"mapsync/internal/race"
)

// TestFullTableOfAnLRUMap makes a kernel map evict entries. Peers write, delete and expire records of
// a table that is mostly full, in any order. The invariants of the table hold after each step. Evicted
// records never cause the rejection of a peer's record.
func TestFullTableOfAnLRUMap(t *testing.T) {
	race.SkipSequential(t)
	const limit, keys = 24, 60
	rejected, expired := uint64(0), uint64(0)
	for seed := range uint64(300) {
		r := newRig(t, lru(8, 12), func(o *Options) { o.MaxLive, o.MaxTombstones = limit, 4 })
		r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, []string{"departed"}) })
		random := rand.New(rand.NewPCG(seed, 1))
		for now := second; now < 300*second; now += second {
			r.step(random, now, keys)
			checkInvariants(t, r.tab)
		}
		st := r.tab.Stats()
		rejected, expired = rejected+st.Rejected, expired+st.EvictionsExpired
		r.tab.Update(func(tx *Tx) {
			for tx.Audit(100) {
			}
		})
		if n := r.tab.Stats().AuditFound; n > 0 {
			t.Fatalf("seed %d: wrong digest buckets: got %d, want 0", seed, n)
		}
	}
	if rejected == 0 || expired == 0 {
		t.Errorf("random changes: got %d rejected and %d expired records, want some of each", rejected, expired)
	}
}

// step makes one random change.
func (r *rig) step(random *rand.Rand, now int64, keys int) {
	key := pad(fmt.Sprint("k", random.IntN(keys)), keySize)
	owner := []Owner{peer, other, older, {"departed", 1}}[random.IntN(4)]
	r.tab.Update(func(tx *Tx) {
		remote := Delta{Key: key, Value: pad("w", valueSize), Version: Version(now), Owner: tx.Intern(owner)}
		local := Change{Key: key, Value: pad("v", valueSize), Time: now}
		switch x := random.IntN(100); {
		case x < 20:
			tx.Local(&local)
		case x < 45:
			local.Op, local.Value = OpEvict, nil
			tx.Local(&local)
		case x < 50:
			local.Op, local.Value = OpDelete, nil
			tx.Local(&local)
		case x < 80:
			full := !tx.t.canExpireForRoom() && tx.t.stats.Live >= tx.t.opt.MaxLive/2
			if tx.Remote(&remote, now, RemoteOptions{}) == Refused && !full {
				r.Errorf("record of %s: got rejected, want accepted: an evicted record could expire", owner.Node)
			}
		case x < 87:
			remote.Delete, remote.Value = true, nil
			tx.Remote(&remote, now, RemoteOptions{})
		case x < 92:
			remote.Delete, remote.Expired, remote.Value = true, true, nil
			tx.Remote(&remote, now, RemoteOptions{})
		case x < 96:
			tx.ExpireEvicted(now, 4)
		default:
			tx.Expire(now, 4)
		}
	})
	if random.IntN(3) > 0 {
		r.write()
		r.takeRereads()
	}
}

// canExpireForRoom reports whether this node may expire an evicted record immediately.
func (t *Table) canExpireForRoom() bool {
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		if m.is(flagFree) || !t.expirable(m) || m.is(pendingEvicted) || !m.is(flagInEvicted) {
			continue
		}
		if !t.ours(m.owner) || t.owners.list[selfID].digest.live > t.share() {
			return true
		}
	}
	return false
}
