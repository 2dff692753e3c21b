package table

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// TestDigestCoversTheValue: each bit of the mask changes the hash of a value, for any size. Other bits
// do not.
func TestDigestCoversTheValue(t *testing.T) {
	for _, size := range []int{1, 8, 15, 16, 17, 32, 33, 49, 63, 64, 65, 80, 100, 128, 130} {
		mask := slices.Repeat([]byte{0xff}, size)
		for i := range mask {
			if i%3 == 1 {
				mask[i] = 0xf0
			}
		}
		tab, err := New(Options{Self: self, KeySize: 8, ValueSize: size, Compared: mask})
		if err != nil {
			t.Fatal(err)
		}
		d := &tab.digester
		if n := len(d.pairs); n != (size+15)/16 {
			t.Errorf("pairs of words: got %d for %d bytes, want one per 16 bytes", n, size)
		}
		value := make([]byte, size)
		was := d.hashValue(nil, value)
		for i := range value {
			value[i] = 0x10
			if d.hashValue(nil, value) == was {
				t.Errorf("byte %d of %d: a change leaves the hash unchanged", i, size)
			}
			value[i] = 0x08
			if same := d.hashValue(nil, value) == was; same != (mask[i] == 0xf0) {
				t.Errorf("byte %d of %d: a change outside the mask: got equal hashes %v, want %v", i, size, same, mask[i] == 0xf0)
			}
			value[i] = 0
		}
	}
}

// TestDigestSecret: another digest key changes the buckets of keys and the sums of versions.
func TestDigestSecret(t *testing.T) {
	one, two := newRig(t), newRig(t, func(o *Options) { o.DigestKey = []byte("secret") })
	differ := 0
	for i := range 20 {
		k := pad(fmt.Sprint("k", i), keySize)
		if one.tab.bucket(k) != two.tab.bucket(k) {
			differ++
		}
	}
	if differ < 10 {
		t.Errorf("keys in another bucket: got %d of 20, want at least 10", differ)
	}
	versionSum := func(r *rig) (sum uint64) {
		r.tab.View(func(tx *Tx) { sum = tx.VersionSumOf(peer, 10) })
		return sum
	}
	if versionSum(one) == versionSum(two) {
		t.Error("sums of versions with two keys: got equal sums, want different ones")
	}
}

// TestEqualComparedChecksSizes: values of different sizes are not equal.
func TestEqualComparedChecksSizes(t *testing.T) {
	tab := newRig(t).tab
	value, short, long := pad("v", valueSize), pad("v", valueSize)[:valueSize-1:valueSize-1], append(pad("v", valueSize), 0)
	for _, test := range []struct {
		a, b []byte
		want bool
	}{{value, value, true}, {short, value, false}, {value, short, false}, {short, short, false}, {long, long, false}, {value, long, false}, {nil, nil, false}} {
		if got := tab.EqualCompared(nil, test.a, test.b); got != test.want {
			t.Errorf("values of %d and %d bytes: got equal %v, want %v", len(test.a), len(test.b), got, test.want)
		}
	}
}

// TestDigestSums: the sum of the digest is the sum of its buckets, for few and for many records.
func TestDigestSums(t *testing.T) {
	r := newRig(t)
	for n := 0; n < 200; {
		for range 1 + n/2 {
			r.remote(Accepted, 1, peer, 10, fmt.Sprint("k", n), "v")
			n++
		}
		r.tab.View(func(tx *Tx) {
			var parts Buckets
			g := tx.Digest("b", &parts)
			sum := uint64(0)
			for _, p := range parts {
				sum += p
			}
			if g.Sum != sum || g.Live != n {
				t.Errorf("%d records: got %+v, want the sum of the buckets %x", n, g, sum)
			}
		})
	}
}

// TestDigestIsAListUpTo32Buckets: a digest of more than 32 buckets has a place for each bucket.
func TestDigestIsAListUpTo32Buckets(t *testing.T) {
	var c digestSums
	for b := range uint64(40) {
		c.add(recordHash{bucket: 3 * b, sum: b + 1})
		c.add(recordHash{bucket: 3 * b, sum: 1})
		if list := c.dense == nil; list != (b < maxSparse) || (list && len(c.sparse) != int(b)+1) {
			t.Errorf("%d buckets: got %d in a list, all buckets %v, want all in a list up to %d buckets, and no list above",
				b+1, len(c.sparse), !list, maxSparse)
		}
	}
	var parts Buckets
	c.copyTo(&parts)
	for b := range uint64(40) {
		if parts[3*b] != b+2 || parts[3*b+1] != 0 {
			t.Errorf("bucket %d: got %d, and %d in the next one, want %d and 0", 3*b, parts[3*b], parts[3*b+1], b+2)
		}
	}
}

// TestDigestNodes: the table keeps digests of this node and of nodes that own records.
func TestDigestNodes(t *testing.T) {
	r := newRig(t)
	nodes := func() (all []string) {
		r.tab.View(func(tx *Tx) {
			tx.DigestOfNodes(func(n string) bool {
				all = append(all, n)
				return false
			}, nil)
		})
		slices.Sort(all)
		return all
	}
	r.intern(other)
	r.remote(Accepted, 1, peer, 10, "k", "v")
	r.remote(Accepted, 1, Owner{"b", 101}, 11, "l", "v")
	if got := nodes(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("nodes with a digest: got %q, want a, b and c", got)
	}
	r.tab.View((*Tx).ReclaimOwners)
	if got := nodes(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("nodes with a digest: got %q, want a and b", got)
	}
	r.tab.Update(func(tx *Tx) { tx.SetDigestKey([]byte("next")) })
	if got := nodes(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("nodes with a digest under another key: got %q, want a and b", got)
	}
}

// TestDigestOfNodes: the digest of several nodes is the sum of the digests of these nodes, for few and
// for many records.
func TestDigestOfNodes(t *testing.T) {
	r := newRig(t)
	for i := range 3 * maxSparse {
		r.remote(Accepted, 1, peer, 10, fmt.Sprint("k", i), "v")
	}
	for i := range 3 {
		r.remote(Accepted, 1, other, 10, fmt.Sprint("l", i), "v")
		r.remote(Accepted, 1, Owner{fmt.Sprint("n", i), 1}, 10, fmt.Sprint("m", i), "v")
	}
	for name, include := range map[string]func(node string) bool{
		"none":   func(string) bool { return false },
		"one":    func(node string) bool { return node == "b" },
		"others": func(node string) bool { return node != "b" },
		"all":    func(string) bool { return true },
	} {
		var want Digest
		var parts Buckets
		r.tab.View(func(tx *Tx) {
			tx.DigestOfNodes(func(node string) bool {
				if include(node) {
					var each Buckets
					g := tx.Digest(node, &each)
					want.Sum, want.VersionSum, want.Live = want.Sum+g.Sum, want.VersionSum+g.VersionSum, want.Live+g.Live
					for b := range each {
						parts[b] += each[b]
					}
				}
				return false
			}, nil)
			got := Buckets{1, 2, 3}
			if g := tx.DigestOfNodes(include, &got); g != want || got != parts {
				t.Errorf("%s: %+v, want %+v; the same parts: %t", name, g, want, got == parts)
			}
			if g := tx.DigestOfNodes(include, nil); g != want {
				t.Errorf("%s: %+v without parts, want %+v", name, g, want)
			}
		})
	}
}

// TestAuditLimit: an audit examines at most limit records, and returns false with the last one.
func TestAuditLimit(t *testing.T) {
	for name, test := range map[string]struct {
		limits []int
		more   []bool
	}{
		"one by one": {[]int{1, 1, 1, 1, 1}, []bool{true, true, true, true, false}},
		"all":        {[]int{5}, []bool{false}},
		"nearly all": {[]int{4, 1}, []bool{true, false}},
		"none":       {[]int{0, 5}, []bool{true, false}},
		"parts":      {[]int{2, 2, 2}, []bool{true, true, false}},
		"again":      {[]int{5, 2, 3}, []bool{false, true, false}},
	} {
		r := newRig(t)
		for i := range 5 {
			r.remote(Accepted, 1, peer, 10, fmt.Sprint("k", i), "v")
		}
		audits := uint64(0)
		for i, limit := range test.limits {
			var more bool
			r.tab.View(func(tx *Tx) { more = tx.Audit(limit) })
			if more != test.more[i] {
				t.Errorf("%s: call %d: got more %v, want %v", name, i, more, test.more[i])
			}
			if !more {
				audits++
			}
		}
		if st := r.tab.Stats(); st.Audits != audits || st.AuditFound != 0 {
			t.Errorf("%s: got %d audits that found %d, want no differences", name, st.Audits, st.AuditFound)
		}
	}
}

// TestChangeDuringAnAudit: an audit finds no difference after a change at any place, by an owner with
// or without earlier records.
func TestChangeDuringAnAudit(t *testing.T) {
	const records = 5
	for done := range records {
		for changed := range records {
			for _, o := range []Owner{peer, other, {"new", 1}} {
				r := newRig(t)
				for i := range records {
					r.remote(Accepted, 1, []Owner{peer, other}[i%2], 10, fmt.Sprint("k", i), "v")
				}
				r.tab.View(func(tx *Tx) { tx.Audit(done) })
				r.remote(Accepted, 1, o, 11, fmt.Sprint("k", changed), "w")
				r.tab.View(func(tx *Tx) {
					for tx.Audit(1) {
					}
				})
				if n := r.tab.Stats().AuditFound; n != 0 {
					t.Errorf("change of record %d after %d audited records: found %d differences, want 0", changed, done, n)
				}
			}
		}
	}
}

// TestDigestKeyDuringAnAudit: the audit restarts after a change of the digest key. It continues if the
// key stays the same.
func TestDigestKeyDuringAnAudit(t *testing.T) {
	for key, want := range map[string]bool{"": false, "another": true} {
		r := newRig(t)
		for i := range 4 {
			r.remote(Accepted, 1, peer, 10, fmt.Sprint("k", i), "v")
		}
		var more bool
		r.tab.Update(func(tx *Tx) {
			tx.Audit(2)
			tx.SetDigestKey([]byte(key))
			more = tx.Audit(2)
		})
		if more != want {
			t.Errorf("key %q: got more %v, want %v", key, more, want)
		}
	}
}

// TestDigestOfUnversioned: an unversioned record is part of no digest.
func TestDigestOfUnversioned(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.local(Accepted, 1, "update l v packet 0")
	r.tab.View(func(tx *Tx) {
		for key, want := range map[string]bool{"k": false, "l": true, "absent": false} {
			node, g, bucket, ok := tx.DigestOf(pad(key, keySize))
			if ok != want || (!ok && (node != "" || g != (Digest{}) || bucket != 0)) {
				t.Errorf("DigestOf %s: got node %q, %+v, bucket %d, %v, want %v, and zero values if false", key, node, g, bucket, ok, want)
			}
		}
		if _, _, _, ok := tx.DigestOf([]byte("short")); ok {
			t.Error("digest of a key of another size: got one, want none")
		}
	})
}

// TestDigestOfAReusedSlot: the next key in the slot of a deleted record has its own hash.
func TestDigestOfAReusedSlot(t *testing.T) {
	r := newRig(t, shortLived)
	r.remote(Accepted, second, peer, 10, "k", "v")
	_, slot := r.tab.find(pad("k", keySize))
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: tx.Head() + 1}, second, c, 9)
	})
	r.write()
	r.expire(9*second, 9)
	r.remote(Accepted, second, peer, 10, "l", "v")
	if _, s := r.tab.find(pad("l", keySize)); s != slot {
		t.Fatalf("reused slot: got %d, want %d", s, slot)
	}
	checkDigests(t, r.tab)
}
