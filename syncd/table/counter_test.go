package table

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
)

// calls is a Counter that lists its calls as text: key, former value and value. total is what a counter of decimal values
// has, that were reset if they fall below half.
type calls struct {
	list  []string
	total int
}

func (c *calls) Changed(key, from, to []byte) (decreased bool) {
	was, n := "-", number(to)
	if from != nil {
		was = text(from)
		if n >= number(from)/2 {
			n = max(0, n-number(from))
		}
	}
	c.total += n
	c.list = append(c.list, fmt.Sprintf("%s %s>%s", text(key), was, text(to)))
	return from != nil && c.Decreases(from, to)
}

func (c *calls) Decreases(from, to []byte) bool { return number(to) < number(from) }

func number(value []byte) int {
	n, _ := strconv.Atoi(text(value))
	return n
}

func counted(c *calls) func(*Options) { return func(o *Options) { o.Counter = c } }

// insignificant is for values of which no change is significant, as in a map of counters.
func insignificant(o *Options) { o.Significant = make([]byte, valueSize) }

// notCarried is for values of which syncd sends nothing.
func notCarried(o *Options) { o.Carried = make([]byte, valueSize) }

// scanUntil enters a key that a scan read between two times.
func (r *rig) scanUntil(from, to int64, key, value string) {
	scan := r.read(from)
	r.tab.Update(func(tx *Tx) {
		tx.AdvanceClock(to)
		tx.ScannedAll(&scan.Reading, scan.at, pad(key, keySize), pad(value, valueSize))
	})
}

func TestCounterObservesLocalChanges(t *testing.T) {
	var got calls
	r := newRig(t, counted(&got), func(o *Options) {
		o.LRU = true
		o.Significant = slices.Repeat([]byte{0xff}, valueSize)
		o.Significant[1] = 0
	})
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"load", func() { r.load(Accepted, "k", "v1"); r.adopt() }, nil},
		{"change", func() { r.local(Accepted, 2*second, "update k w1 packet 0") }, []string{"k v1>w1"}},
		{"change that is not significant", func() { r.local(Unchanged, 3*second, "update k w2 reread 0") }, []string{"k w1>w2"}},
		{"stale change", func() { r.local(Stale, second, "update k x0 packet 0") }, nil},
		{"own write", func() { r.local(Ignored, 4*second, "update k x0 own 0") }, nil},
		{"delete", func() { r.local(Accepted, 5*second, "delete k - packet 0") }, nil},
		{"creation", func() { r.local(Accepted, 6*second, "update k x1 packet 0") }, []string{"k ->x1"}},
		{"eviction", func() { r.local(Ignored, 7*second, "evict k - packet 0") }, nil},
		{"creation of an evicted entry", func() { r.local(Unchanged, 8*second, "update k x2 packet 0") }, []string{"k x1>x2"}},
		{"creation in a slot that had a record", func() {
			r.remote(Accepted, 9*second, peer, Version(9*second), "n", "n1")
			r.local(Accepted, 9*second, "update m m1 packet 0")
		}, []string{"m ->m1"}},
		{"peer's record", func() { r.remote(Accepted, 9*second, peer, Version(20*second), "k", "y7"); r.write() }, nil},
		{"change of a peer's record", func() { r.local(Unchanged, 30*second, "update k y9 packet 0") }, []string{"k y7>y9"}},
		{"peer's delete", func() { r.remote(Accepted, 31*second, peer, Version(40*second), "k", "-"); r.write() }, nil},
		{"creation after it", func() { r.local(Accepted, 41*second, "update k z1 packet 0") }, []string{"k ->z1"}},
		{"key that is known when it is loaded", func() { r.load(Unchanged, "k", "z5") }, nil},
	} {
		got.list = nil
		step.do()
		if !slices.Equal(got.list, step.want) {
			t.Errorf("%s: got calls %q, want %q", step.name, got.list, step.want)
		}
	}
}

// TestCounterCountsNothingTwice has cases in which a value is not newer, or not of this host.
func TestCounterCountsNothingTwice(t *testing.T) {
	for name, tt := range map[string]struct {
		options []func(*Options)
		do      func(r *rig)
		want    int
	}{
		"a scan enters an older value than a reread": {[]func(*Options){insignificant}, func(r *rig) {
			scan := r.read(10 * second)
			again := r.read(10*second + 2_000_000)
			r.tab.Update(func(tx *Tx) { tx.Local(again.change("k", "1010")) })
			r.tab.Update(func(tx *Tx) { tx.Scanned(scan.change("k", "1000")) })
			next := r.read(20 * second)
			r.tab.Update(func(tx *Tx) { tx.Scanned(next.change("k", "1010")) })
		}, 1010},
		"a peer's record is not written": {nil, func(r *rig) {
			r.remote(Accepted, 2*second, peer, Version(2*second), "k", "5")
			r.local(Accepted, 3*second, "update k 1001 packet 0")
		}, 1000},
		"a peer's record was written after a change": {nil, func(r *rig) {
			r.remote(Accepted, 2*second, peer, Version(2*second), "k", "9000000")
			rec := r.take()
			r.local(Accepted, 3*second, "update k 1001 packet 0")
			r.applied(rec, nil)
			r.wantRereads("k")
			r.read(4*second).found(Accepted, "k", "9000000")
			r.local(Accepted, 5*second, "update k 9000002 packet 0")
		}, 1002},
		"a peer's expired entry is in the map": {[]func(*Options){lru(8, 8)}, func(r *rig) {
			r.remote(Accepted, 2*second, peer, Version(2*second), "n", "500000")
			r.write()
			r.takeRereads()
			r.expired(Accepted, 3*second, peer, Version(2*second)+1, "n")
			r.wantExpired("n", true)
			r.local(Accepted, 5*second, "update n 500001 packet 0")
		}, 1001},
		"an entry changes before it is read": {nil, func(r *rig) {
			r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
			r.local(Accepted, 2*second, "update n 1000001 packet 0")
			r.load(Unchanged, "n", "1000001")
			r.tab.Update(func(tx *Tx) { tx.EndLoad() })
			r.local(Accepted, 3*second, "update n 1000003 packet 0")
		}, 1002},
		"a scan finds an entry that the first read skipped": {nil, func(r *rig) {
			r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
			scan := r.read(2 * second)
			r.tab.Update(func(tx *Tx) { tx.Scanned(scan.change("n", "1000001")) })
			r.local(Accepted, 3*second, "update n 1000003 packet 0")
		}, 1002},
		"events of two CPUs are in the reverse order": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 1002 packet 0")
			r.local(Accepted, 2*second+1000, "update k 1001 packet 1")
			r.wantRereads("k")
			r.read(3*second).found(Accepted, "k", "1002")
		}, 1002},
		"events of two CPUs are in the reverse order, and the value is not significant": {[]func(*Options){insignificant}, func(r *rig) {
			r.local(Unchanged, 2*second, "update k 1002 packet 0")
			r.local(Unchanged, 2*second+1000, "update k 1001 packet 1")
			r.wantRereads("k")
			r.read(3*second).found(Unchanged, "k", "1005")
		}, 1005},
		"a counter is reset, and its event may be the earlier one": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 1002 packet 0")
			r.local(Accepted, 2*second+1000, "update k 1 packet 1")
			r.local(Accepted, 2*second+2000, "update k 3 packet 0")
			r.wantRereads("k")
			r.read(3*second).found(Unchanged, "k", "3")
			r.local(Accepted, 4*second, "update k 5 packet 0")
		}, 1007},
		"a counter is reset, and deleted before its reread": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 1002 packet 0")
			r.local(Accepted, 2*second+1000, "update k 900 packet 1")
			r.local(Accepted, 3*second, "delete k - packet 1")
			r.takeRereads()
			r.local(Accepted, 4*second, "update k 7 packet 1")
		}, 1009},
		"a counter rises while its order is not known, and is deleted": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 1002 packet 0")
			r.local(Accepted, 2*second+1000, "update k 1001 packet 1")
			r.local(Accepted, 2*second+2000, "update k 1010 packet 0")
			r.local(Accepted, 3*second, "delete k - packet 1")
		}, 1010},
		"a value before a reset arrives after it, and the entry is deleted": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 20 packet 0")
			r.local(Accepted, 2*second+1000, "update k 1001 packet 1")
			r.local(Accepted, 3*second, "delete k - packet 1")
		}, 1020},
		"a scan reads an inserted entry that grew before its event arrives": {[]func(*Options){insignificant}, func(r *rig) {
			r.scanUntil(2*second, 2*second+9_000_000, "n", "9000")
			r.local(Unchanged, 2*second+2_000_000, "update n 0 packet 0")
			r.wantRereads("n")
			r.read(3*second).found(Unchanged, "n", "9500")
			r.local(Unchanged, 4*second, "update n 3 packet 0") // a reset
		}, 10503},
		"a reread reads an entry that grew before its event arrives": {nil, func(r *rig) {
			again := r.read(2 * second)
			r.tab.Update(func(tx *Tx) {
				tx.AdvanceClock(2*second + 9_000_000)
				tx.Local(again.change("k", "9000"))
			})
			r.local(Accepted, 2*second+2_000_000, "update k 1001 packet 0")
			r.wantRereads("k")
			r.read(3*second).found(Accepted, "k", "9002")
		}, 9002},
		"a scan reads the same value, and the event of an earlier one arrives": {[]func(*Options){insignificant}, func(r *rig) {
			r.scanUntil(2*second, 2*second+9_000_000, "k", "1000")
			r.local(Unchanged, 2*second+2_000_000, "update k 900 packet 0")
			r.wantRereads("k")
			r.read(3*second).found(Unchanged, "k", "1001")
		}, 1001},
		"a peer's record replaces an entry with a pending reread": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 1002 packet 0")
			r.local(Accepted, 2*second+1000, "update k 1001 packet 1")
			r.remote(Accepted, 3*second, peer, Version(20*second), "k", "5000")
			r.write()
			r.takeRereads()
			r.local(Accepted, 30*second, "update k 5003 packet 0")
		}, 1005},
		"a scan reads an entry, and two earlier events arrive": {nil, func(r *rig) {
			r.scanUntil(2*second, 2*second+9_000_000, "k", "9000")
			r.local(Accepted, 2*second+2_000_000, "update k 1001 packet 0")
			r.local(Accepted, 2*second+4_000_000, "update k 1002 packet 0")
			r.wantRereads("k")
			r.read(3*second).found(Accepted, "k", "9500")
		}, 9500},
		"a scan reads an entry, and its earlier delete and creation arrive": {nil, func(r *rig) {
			r.scanUntil(2*second, 2*second+9_000_000, "k", "9000")
			r.local(Accepted, 2*second+2_000_000, "delete k - packet 0")
			r.local(Accepted, 2*second+4_000_000, "update k 0 packet 0")
			r.wantRereads("k")
			r.read(3*second).found(Accepted, "k", "9500")
		}, 9500}, // nothing shows the increase before the delete
		"a delete after a scan, and a creation": {nil, func(r *rig) {
			r.scanUntil(2*second, 2*second+9_000_000, "k", "9000")
			r.local(Accepted, 2*second+2_000_000, "delete k - packet 0")
			r.wantRereads("k")
			r.read(3*second).found(Unchanged, "k", "-")
			r.local(Accepted, 4*second, "update k 9500 packet 0")
		}, 18500},
		"a delete that another CPU made before an update": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 50 packet 0")
			r.local(Accepted, 2*second+5000, "delete k - packet 1")
			r.wantRereads("k")
			r.read(3*second).found(Accepted, "k", "50")
		}, 1050},
		"the deleted entry of a peer is restored": {[]func(*Options){insignificant}, func(r *rig) {
			r.remote(Accepted, 2*second, peer, Version(20*second), "k", "5000")
			r.write()
			r.local(Unchanged, 3*second, "update k 900 packet 0")
			r.local(Restored, 5*second, "delete k - syscall 0")
			r.write()
			r.takeRereads()
			r.local(Unchanged, 30*second, "update k 5003 packet 0")
		}, 1003},
		"the event of a write before the first read arrives": {nil, func(r *rig) {
			r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
			r.load(Accepted, "n", "9000")
			r.tab.Update(func(tx *Tx) { tx.AdvanceClock(2*second + 9_000_000); tx.EndLoad() })
			r.local(Accepted, 2*second, "update n 400 packet 0")
			r.wantRereads("n")
			r.read(3*second).found(Accepted, "n", "9001")
		}, 1001},
		"the event of a write before the first read arrives during it": {nil, func(r *rig) {
			r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
			r.load(Accepted, "n", "9000")
			r.local(Accepted, 2*second, "update n 400 packet 0")
			r.tab.Update(func(tx *Tx) { tx.AdvanceClock(2*second + 9_000_000); tx.EndLoad() })
			r.read(3*second).found(Accepted, "n", "9001")
		}, 1001},
		"a peer's record was written after two changes": {nil, func(r *rig) {
			r.remote(Accepted, 2*second, peer, Version(2*second), "k", "90000")
			rec := r.take()
			r.local(Accepted, 3*second, "update k 1001 packet 0")
			r.applied(rec, nil)
			r.local(Accepted, 3*second+1000, "update k 1002 packet 0")
			r.wantRereads("k")
			r.read(4*second).found(Accepted, "k", "90000")
			r.local(Accepted, 5*second, "update k 90002 packet 0")
		}, 1002},
		"a reread is entered after a later scan": {[]func(*Options){insignificant, notCarried}, func(r *rig) {
			scan, again := r.read(2*second), r.read(2*second+2_000_000)
			r.tab.Update(func(tx *Tx) { tx.AdvanceClock(2*second + 9_000_000); tx.Scanned(scan.change("k", "2000")) })
			again.found(Unchanged, "k", "1010")
			r.wantRereads("k")
			r.read(3*second).found(Unchanged, "k", "2100")
		}, 2100},
		"the map is replaced before the reread of an entry": {nil, func(r *rig) {
			r.local(Accepted, 2*second, "update k 1002 packet 0")
			r.local(Accepted, 2*second+1000, "update k 700 packet 1")
			r.tab.Update(func(tx *Tx) { tx.Refill() })
			r.writer = r.tab.NewCursor(0)
			r.write()
			r.takeRereads()
			r.local(Accepted, 3*second, "update k 900 packet 0")
		}, 1202},
		"the event of an eviction is late": {[]func(*Options){lru(8, 8)}, func(r *rig) {
			r.local(Accepted, 2*second+5_000_000, "update k 7000 packet 0")
			r.local(Ignored, 2*second, "evict k - packet 1")
			r.wantRereads("k")
			found := r.read(3*second).change("k", "7000")
			r.tab.Update(func(tx *Tx) { tx.Local(found) })
		}, 7000},
	} {
		t.Run(name, func(t *testing.T) {
			var got calls
			r := newRig(t, append(tt.options, counted(&got))...)
			r.local(Accepted, second, "update k 1000 packet 0")
			r.takeRereads()
			tt.do(r)
			if got.total != tt.want {
				t.Errorf("total: got %d, want %d, calls %q", got.total, tt.want, got.list)
			}
		})
	}
}

// TestRereadEndsBase: rereads at intervals below timestampMargin end, although each may be older than the former one. The slot
// of a record that is forgotten has no base.
func TestRereadEndsBase(t *testing.T) {
	var got calls
	r := newRig(t, counted(&got))
	r.local(Accepted, second, "update k 1000 packet 0")
	r.local(Accepted, second+1000, "update k 400 packet 1")
	rounds := 0
	for at := second + timestampMargin/2; r.takeRereads() != ""; at += timestampMargin - 1 {
		if rounds++; rounds > 5 {
			t.Fatalf("rereads: got %d, want an end", rounds)
		}
		again := r.read(at).change("k", "400")
		r.tab.Update(func(tx *Tx) { tx.Local(again) })
	}
	if got.total != 1400 {
		t.Errorf("total: got %d, want 1400, calls %q", got.total, got.list)
	}
	r.local(Accepted, 2*second, "update k 100 packet 0")
	r.local(Accepted, 2*second+1000, "delete k - packet 1")
	r.takeRereads()
	r.tab.Update(func(tx *Tx) { tx.Expire(1000*second, 1000) })
	if n := len(r.tab.bases); n != 0 {
		t.Errorf("bases of forgotten records: got %d, want 0", n)
	}
}
