package table

import (
	"fmt"
	"hash/fnv"
	"testing"
)

// firstByte has the meanings of the first byte of a value, by number. It implements Meanings.
type firstByte []string

func (f firstByte) Sum(_, value []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(f[value[0]-'0']))
	return h.Sum64()
}

func (f firstByte) Append(dst, key, value []byte) []byte {
	dst = append(dst, key...)
	if value == nil {
		return dst
	}
	return append(append(dst, f[value[0]-'0']...), value[1:]...)
}

func (firstByte) FromKernel([]byte, []byte) {}

// meaning sets the meanings of the first byte of values, which is then in no mask.
func meaning(f firstByte) func(*Options) {
	return func(o *Options) {
		o.Meanings, o.Compared = f, allOnes(valueSize)
		o.Compared[0] = 0
	}
}

func allOnes(n int) []byte {
	mask := make([]byte, n)
	for i := range mask {
		mask[i] = 0xff
	}
	return mask
}

// TestDigestsOfMeanings: digests of two nodes are equal if entries mean the same, and only then.
func TestDigestsOfMeanings(t *testing.T) {
	digest := func(f firstByte, value string) Digest {
		r := newRig(t, meaning(f))
		r.remote(Accepted, 0, peer, 1000, "k", value)
		var g Digest
		r.tab.View(func(tx *Tx) { g = tx.Digest(peer.Node, nil) })
		return g
	}
	a := digest(firstByte{"", "m", "n"}, "1x")
	if b := digest(firstByte{"", "n", "m"}, "2x"); a != b {
		t.Errorf("other numbers: got the digests %x and %x, want equal ones", a.Sum, b.Sum)
	}
	for name, value := range map[string]string{"another meaning": "1x", "no meaning": "0x", "another value": "2y"} {
		if b := digest(firstByte{"", "n", "m"}, value); a.Sum == b.Sum {
			t.Errorf("%s: got equal digests, want different ones", name)
		}
	}
	r := newRig(t, meaning(firstByte{"", "m", "n"}))
	if r.tab.EqualCompared(pad("k", keySize), pad("1x", valueSize), pad("2x", valueSize)) || !r.tab.EqualCompared(pad("k", keySize), pad("1x", valueSize), pad("1x", valueSize)) {
		t.Error("comparison of values with different meanings, and with equal ones: want different and equal")
	}
}

// TestStopOfMeanings: after a stop, an entry counts as unchanged if it means the same, whatever its number is.
func TestStopOfMeanings(t *testing.T) {
	r := newRig(t, restores, meaning(firstByte{"", "m", "n"}))
	r.remote(Accepted, int64(stopTime), peer, stopTime, "k", "1x")
	r.remote(Accepted, int64(stopTime), peer, stopTime+1, "l", "1x")
	r.write()
	var s Stop
	r.tab.View(func(tx *Tx) { s = tx.Stop(7) })
	next := newRig(t, restores, meaning(firstByte{"", "n", "m"}), func(o *Options) { o.Stop = s })
	next.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	next.load(Accepted, "k", "2x")
	next.load(Accepted, "l", "1x")
	next.tab.Update(func(tx *Tx) { tx.EndLoad() })
	next.adopt()
	_, k := next.tab.find(pad("k", keySize))
	_, l := next.tab.find(pad("l", keySize))
	if got := next.tab.meta(k); got.version != restored(0) || next.tab.owners.list[got.owner].Owner != peer {
		t.Errorf("entry with the same meaning: got version %d, want %d of the peer", got.version, restored(0))
	}
	if got := next.tab.meta(l).version; got != RestoredVersions+1 {
		t.Errorf("entry with another meaning: got version %d, want %d", got, RestoredVersions+1)
	}
}

// TestRewrite has the writer write an entry again, while reads of it prove nothing.
func TestRewrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1001, "l", "v")
	r.remote(Accepted, 0, peer, 1002, "m", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2002, "m", "-")
	r.write()
	r.tab.Update(func(tx *Tx) {
		for _, key := range []string{"k", "m"} {
			_, s := tx.t.find(pad(key, keySize))
			tx.Rewrite(Ref(s))
		}
		tx.Rewrite(Ref(1 << 30))
		tx.Rewrite(0)
	})
	r.local(Ignored, second, "update k w reread 0")
	if got := r.write(); got != "k" {
		t.Errorf("written keys: got %q, want k", got)
	}
	r.want("k", "v v1000 b100")
	if n := r.tab.Stats().Dirty; n != 0 {
		t.Errorf("records to write: got %d, want 0", n)
	}
}

// keyMeaning is Meanings with an id in keys, in no byte of the tests: what it means is appended.
type keyMeaning struct{}

func (keyMeaning) Sum(_, _ []byte) uint64 { return 1 }
func (keyMeaning) Append(dst, key, value []byte) []byte {
	return append(append(append(dst, key...), value...), "\x05vip=1"...)
}
func (keyMeaning) FromKernel([]byte, []byte) {}

// The entries of a map with references in keys are found at a start after a clean stop. A few have ended meanwhile: no clear.
func TestStopOfKeysWithMeanings(t *testing.T) {
	for name, m := range map[string]Meanings{"none": nil, "in keys": keyMeaning{}} {
		means := func(o *Options) { o.Meanings = m }
		before := newRig(t, restores, means)
		for i := range 400 {
			before.remote(Accepted, int64(stopTime), older, stopTime+Version(i), fmt.Sprint("k", i), "v")
		}
		before.write()
		var s Stop
		before.tab.View(func(tx *Tx) { s = tx.Stop(7) })
		r := clearRig{newRig(t, restores, means, holdClears, sameMap, func(o *Options) { o.Stop = s })}
		r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad() })
		for i := range 280 {
			r.load(Accepted, fmt.Sprint("k", i), "v")
		}
		r.tab.Update(func(tx *Tx) { tx.AdvanceClock(int64(stopTime) + second); tx.EndLoad() })

		r.receive("k", 280, 400, stopTime)
		r.decideAbsent(int64(stopTime) + 2*second)
		st := r.tab.Stats()
		if st.Live != 280 || st.Clears != 0 {
			t.Errorf("%s: got %d live entries and %d clears, want 280 and none: 120 of 400 have ended", name, st.Live, st.Clears)
		}
	}
}
