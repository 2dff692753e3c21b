package table

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// followClock sets the wall clock minus the time of the table.
func (r *rig) followClock(at, offset int64) (withdraw bool) {
	r.tab.Update(func(tx *Tx) { withdraw = tx.FollowClock(at, offset) })
	return withdraw
}

// withdraw makes a whole pass of Withdraw, one record at a time.
func (r *rig) withdraw(at int64) {
	c := r.tab.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		r.tab.Update(func(tx *Tx) { more = tx.Withdraw(at, c, 1) })
	}
}

// The versions follow a step of the wall clock ahead, as after a resume. An event from before the step
// keeps its order.
func TestVersionsFollowTheClockAhead(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = 30 * time.Second })
	r.local(Accepted, 1000, "update k v1 packet 0")
	if r.followClock(2000, 1200*second) {
		t.Error("step ahead: got records to withdraw, want none")
	}
	r.local(Accepted, 1500, "update j late packet 1")
	r.want("j", fmt.Sprintf("late v%d a100", 1500))
	r.local(Accepted, 3000, "update k v2 packet 0")
	r.want("k", fmt.Sprintf("v2 v%d a100", 1200*second+3000))
}

// After a step back that peers accept, versions keep their lead and shrink it, so none goes backwards, and the
// key of a tombstone that is no longer stored gets a version above it.
func TestVersionsDoNotGoBackwards(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = 30 * time.Second })
	r.followClock(0, 100*second)
	last := r.tab.versionAt(10 * second)
	if r.followClock(10*second, 41*second) {
		t.Error("step back by 59 s: got records to withdraw, want none")
	}
	for at := 10*second + 1; at < 300*second; at += 7 * second {
		if v := r.tab.versionAt(at); v <= last {
			t.Fatalf("version at %d: got %d, want it above %d", at, v, last)
		} else {
			last = v
		}
	}
	if v := r.tab.versionAt(300 * second); v != Version(341*second) {
		t.Errorf("version 290 s after a step back by 59 s: got %d, want the wall clock", v)
	}
}

// Peers refuse versions that are too far ahead. After the clock is right, the records get versions that
// peers accept: live records and tombstones. Those of other nodes stay.
func TestWithdrawRenewsRefusedVersions(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxSkew = 30 * time.Second })
	r.local(Accepted, 1*second, "update early v1 packet 0")
	r.followClock(1*second+1, 40*second)
	r.local(Accepted, 2*second, "update accepted v1 packet 0") // ahead, but not too far
	r.followClock(2*second, 1200*second)
	r.local(Accepted, 3*second, "update k v1 packet 0")
	r.local(Accepted, 3*second, "update gone v1 packet 0")
	r.local(Accepted, 4*second, "delete gone - packet 0")
	r.remote(Accepted, 4*second, peer, Version(1204*second), "p", "x")
	if first := r.followClock(5*second, 0); !first || !r.followClock(5*second, 0) {
		t.Fatal("step back by 20 min: got nothing to withdraw, want a pass until one has ended")
	}
	// A write before the pass reaches the record gets a version that peers accept, too.
	r.local(Accepted, 6*second, "update j v1 packet 0")
	r.local(Accepted, 6*second, "update k v2 packet 0")
	r.want("k", fmt.Sprintf("v2 v%d a100", r.tab.versionAt(6*second)))
	r.withdraw(7 * second)
	v := r.tab.versionAt(7 * second)
	if limit := Version(5*second + 60*second); v > limit {
		t.Errorf("version after the step: got %d, want at most %d", v, limit)
	}
	r.want("early", fmt.Sprintf("v1 v%d a100", 1*second))
	r.want("accepted", fmt.Sprintf("v1 v%d a100", 42*second))
	r.want("gone", fmt.Sprintf("- v%d a100", v))
	if got := r.versionOf("p"); got != Version(1204*second) {
		t.Errorf("record of a peer: got version %d, want it unchanged", got)
	}
	if r.followClock(8*second, 0) {
		t.Error("after the pass: got records to withdraw, want none")
	}
	r.local(Accepted, 9*second, "update gone v2 packet 0")
	if got := r.versionOf("gone"); got <= v {
		t.Errorf("write after the pass: got version %d, want it above %d", got, v)
	}
}

// Random changes and steps: local changes of a key win in the order of the monotonic clock. Versions of a node
// do not go backwards, except after a step back that makes peers refuse them, and apart from versions that only follow
// that of their key.
func TestVersionsUnderRandomSteps(t *testing.T) {
	rapid.Check(t, func(p *rapid.T) {
		limit := int64(rapid.SampledFrom([]time.Duration{0, 5 * time.Second, 30 * time.Second}).Draw(p, "max skew"))
		r := newRig(t, func(o *Options) { o.MaxSkew = time.Duration(limit) })
		now, offset := 1000*second, int64(0)
		highest, lastOf := Version(0), map[string]Version{}
		for i := range rapid.IntRange(5, 40).Draw(p, "steps") {
			now += rapid.Int64Range(2*timestampMargin, 20*second).Draw(p, "pass")
			if rapid.Bool().Draw(p, "step") {
				offset += rapid.Int64Range(-120*second, 120*second).Draw(p, "by")
				if r.followClock(now, offset) {
					r.withdraw(now)
					highest, lastOf = 0, map[string]Version{}
				}
				continue
			}
			key, value := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(p, "key"), fmt.Sprint("v", i)
			next := r.versionOf(key) + 1 // at least, also of a key whose version was not withdrawn
			r.local(Accepted, now, fmt.Sprintf("update %s %s packet 0", key, value))
			v := r.versionOf(key)
			// A version that follows that of its key at the limit is a nanosecond above it.
			switch accepted := now + offset + 2*limit + int64(i); {
			case v <= lastOf[key]:
				p.Fatalf("version of %s: got %d, want it above %d", key, v, lastOf[key])
			case v < highest:
				p.Fatalf("version of %s: got %d, want none below %d", key, v, highest)
			case v < Version(now+offset):
				p.Fatalf("version of %s: got %d, want at least the wall clock %d", key, v, now+offset)
			case limit > 0 && v > Version(accepted):
				p.Fatalf("version of %s: got %d, want at most %d", key, v, accepted)
			}
			if lastOf[key] = v; v > next {
				highest = v
			}
			// An event that is older than the newest of the key changes nothing.
			r.local(Stale, now-2*timestampMargin, fmt.Sprintf("update %s old packet 1", key))
		}
	})
}
