package table

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"mapsync/internal/race"
)

// checkDigests verifies that the digests match the records.
func checkDigests(tb interface {
	Helper()
	Fatalf(string, ...any)
}, t *Table,
) {
	tb.Helper()
	want := make(map[string]*digestSums)
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		if m.is(flagFree|flagTombstone) || m.version == 0 {
			continue
		}
		o := t.owners.list[m.owner]
		if want[o.Node] == nil {
			want[o.Node] = &digestSums{}
		}
		h := fold(uint64(m.version)^t.digester.versionSeed, t.digester.hashOwner(o.Owner))
		k := t.digester.hashKey(t.key(s))
		c := want[o.Node]
		*c.bucket(k >> bucketShift) += fold(h^k, t.digester.hashValue(t.key(s), t.value(s))^t.digester.keySeed)
		c.versionSum += h
		c.live++
	}
	for node, n := range t.digester.nodes {
		if want[node] == nil {
			want[node] = &digestSums{}
		}
		var is, should Buckets
		n.copyTo(&is)
		want[node].copyTo(&should)
		if is != should || n.versionSum != want[node].versionSum || n.live != want[node].live {
			tb.Fatalf("digest of %s: got %d records, %x, want %d, %x (computed from the records)", node, n.live, n.versionSum, want[node].live, want[node].versionSum)
		}
		delete(want, node)
	}
	if len(want) > 0 {
		tb.Fatalf("nodes that own records and have no digest: got %d, want 0", len(want))
	}
}

func (r *rig) digest(node string) (g Digest) {
	r.tab.View(func(tx *Tx) { g = tx.Digest(node, nil) })
	return g
}

// TestEqualRecordsHaveEqualDigests: the same records have the same digest, in any order of arrival.
// Any difference changes the digest.
func TestEqualRecordsHaveEqualDigests(t *testing.T) {
	one, two := newRig(t), newRig(t, func(o *Options) { o.Self = other })
	if one.digest("b") != (Digest{}) {
		t.Fatal("digest without records: got a sum, want zero")
	}
	one.remote(Accepted, 1, peer, 10, "k", "v")
	one.remote(Accepted, 1, peer, 11, "l", "w")
	one.remote(Accepted, 1, peer, 12, "m", "x")
	one.remote(Accepted, 1, peer, 13, "m", "-")
	two.remote(Accepted, 1, peer, 11, "l", "w")
	two.remote(Accepted, 1, peer, 3, "k", "old")
	two.remote(Accepted, 1, peer, 10, "k", "v")
	want := one.digest("b")
	if got := two.digest("b"); got != want || got.Live != 2 {
		t.Fatalf("digests %+v and %+v", want, got)
	}
	for name, change := range map[string]func(*rig){
		"value":       func(r *rig) { r.remote(Accepted, 1, peer, 12, "l", "v") },
		"version":     func(r *rig) { r.remote(Accepted, 1, peer, 12, "l", "w") },
		"incarnation": func(r *rig) { r.remote(Accepted, 1, Owner{"b", 101}, 11, "l", "w") },
		"owner":       func(r *rig) { r.remote(Accepted, 1, other, 11, "l", "w") },
		"delete":      func(r *rig) { r.remote(Accepted, 1, peer, 12, "l", "-") },
		"more":        func(r *rig) { r.remote(Accepted, 1, peer, 12, "n", "v") },
	} {
		r := newRig(t)
		r.remote(Accepted, 1, peer, 10, "k", "v")
		r.remote(Accepted, 1, peer, 11, "l", "w")
		if r.digest("b") != want {
			t.Fatalf("%s: digests before the change: got different ones, want equal ones", name)
		}
		change(r)
		if got := r.digest("b"); got.Sum == want.Sum || (name != "value" && got.VersionSum == want.VersionSum) {
			t.Errorf("%s: the digest stays %+v, want a different one", name, got)
		}
	}
}

// TestDigestMasks: a digest covers only the bits of the masks.
func TestDigestMasks(t *testing.T) {
	masks := func(o *Options) {
		o.ComparedKey = []byte{0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		o.Compared = []byte{0xff, 0x0f, 0, 0, 0, 0, 0, 0}
	}
	one, two := newRig(t, masks), newRig(t, masks)
	one.remote(Accepted, 1, peer, 10, "kAx", "v1xyz")
	two.remote(Accepted, 1, peer, 10, "kBx", "vA123")
	if a, b := one.digest("b"), two.digest("b"); a != b {
		t.Errorf("digests: got %+v and %+v, want equal digests", a, b)
	}
	if !one.tab.EqualCompared(nil, pad("v1xyz", valueSize), pad("vA123", valueSize)) || one.tab.EqualCompared(nil, pad("v1", valueSize), pad("v2", valueSize)) {
		t.Error("EqualCompared: got a wrong result, want masked bits ignored and compared bits significant")
	}
	two.remote(Accepted, 1, peer, 11, "kBx", "v2")
	one.remote(Accepted, 1, peer, 11, "kBx", "v1")
	if a, b := one.digest("b"), two.digest("b"); a.Sum == b.Sum {
		t.Error("digests of different compared bits: got equal ones, want different ones")
	}
	scopes := make(map[uint64]string)
	for name, change := range map[string]func(*Options){
		"none": func(*Options) {}, "masks": masks,
		"key mask": func(o *Options) { o.ComparedKey = slices.Repeat([]byte{0xff}, keySize) },
		"secret":   func(o *Options) { o.DigestKey = []byte("s") },
	} {
		tab := newRig(t, change).tab
		if was, ok := scopes[tab.DigestScope()]; ok {
			t.Errorf("digest scope of %s: got that of %s, want another one", name, was)
		}
		scopes[tab.DigestScope()] = name
		if (tab.DigestID() == one.tab.DigestID()) == (name == "secret") {
			t.Errorf("%s: got digest id %x, want %x: %t", name, tab.DigestID(), one.tab.DigestID(), name != "secret")
		}
	}
	for name, o := range map[string]Options{
		"short key mask":  {ComparedKey: []byte{1}},
		"short mask":      {Compared: []byte{1}},
		"not significant": {Compared: []byte{1, 0, 0, 0, 0, 0, 0, 0}, Significant: make([]byte, valueSize)},
		"not carried":     {Compared: []byte{0, 1, 0, 0, 0, 0, 0, 0}, Carried: make([]byte, valueSize)},
	} {
		o.Self, o.KeySize, o.ValueSize = self, keySize, valueSize
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: got error %v, want ErrOptions", name, err)
		}
	}
}

// TestDigestKeyMask: the hash of a key covers all bits of the mask and no other bits, for keys of any
// size.
func TestDigestKeyMask(t *testing.T) {
	race.SkipSequential(t)
	for _, size := range []int{1, 7, 8, 12, 48, 51} {
		for at := range size {
			mask := slices.Repeat([]byte{0xff}, size)
			hash := func(key, mask []byte) uint64 {
				tab, err := New(Options{Self: self, KeySize: size, ValueSize: 8, ComparedKey: mask})
				if err != nil {
					t.Fatal(err)
				}
				return tab.digester.hashKey(key)
			}
			key, other := make([]byte, size), make([]byte, size)
			other[at] = 0x10
			if hash(key, mask) != hash(key, nil) || hash(other, mask) != hash(other, nil) || hash(key, mask) == hash(other, mask) {
				t.Errorf("a full mask of %d bytes changes the hash", size)
			}
			mask[at] = 0xef
			if hash(key, mask) != hash(other, mask) {
				t.Errorf("byte %d of %d: the hash covers a bit outside the mask", at, size)
			}
			if other[at] = 0x18; hash(key, mask) == hash(other, mask) {
				t.Errorf("byte %d of %d: the hash ignores a bit of the mask", at, size)
			}
		}
	}
}

// TestAudit flips a bit of a record without a change event, while changes continue.
func TestAudit(t *testing.T) {
	for at := range 4 {
		r := newRig(t)
		for i := range 40 {
			r.remote(Accepted, 1, peer, 10, fmt.Sprint("k", i), "v")
		}
		good := r.digest("b")
		flip := func() {
			r.tab.View(func(tx *Tx) { var rec Record; tx.Get(pad("k20", keySize), &rec); rec.Value[3] ^= 1 })
		}
		audit := func(limit int) (more bool) {
			r.tab.View(func(tx *Tx) { more = tx.Audit(limit) })
			return more
		}
		flip()
		for n := 0; audit(13); n++ {
			// These changes are before and behind the position that the audit has reached.
			r.remote(Accepted, 1, peer, Version(20+n), "k1", "w")
			r.remote(Accepted, 1, other, Version(20+n), "k30", fmt.Sprint("x", n, at))
			r.local(Accepted, int64(1000+n), fmt.Sprintf("update n%d v packet 0", n))
		}
		if st := r.tab.Stats(); st.Audits != 1 || st.AuditFound != 1 {
			t.Fatalf("audits: got %d that found %d differences, want 1 and 1", st.Audits, st.AuditFound)
		}
		checkDigests(t, r.tab)
		if r.digest("b") == good {
			t.Error("digest after the flipped bit: got the old one, want a different one")
		}
		flip()
		for audit(1000) {
		}
		if st := r.tab.Stats(); st.AuditFound != 2 {
			t.Errorf("audit: found %d differences, want 2", st.AuditFound)
		}
	}
}

// TestDigestManyNodes: the table keeps a digest of each node, for any number of nodes. The memory of a
// digest is proportional to the number of records of the node.
func TestDigestManyNodes(t *testing.T) {
	const nodes = 3000
	r := newRig(t)
	before := r.tab.Stats().MemoryBytes
	for i := range nodes {
		r.remote(Accepted, 1, Owner{fmt.Sprint("n", i), 1}, 10, fmt.Sprint("k", i), "v")
	}
	for i := range nodes {
		if g := r.digest(fmt.Sprint("n", i)); g.Live != 1 || g.Sum == 0 {
			t.Fatalf("digest of node %d: got %+v, want 1 record", i, g)
		}
	}
	if each := (r.tab.Stats().MemoryBytes - before) / nodes; each > 1000 {
		t.Errorf("memory per node with one record: got %d bytes, want at most 1000", each)
	}
	for i := range 1000 {
		r.remote(Accepted, 1, peer, 10, fmt.Sprint("m", i), "v") // more records than a short list can store
	}
	if g := r.digest(peer.Node); g.Live != 1000 {
		t.Errorf("digest: got %d records, want 1000", g.Live)
	}
}

// TestOwnersAreReclaimedOverTime: thousands of nodes join and leave. The table frees the data about a
// node with its last record.
func TestOwnersAreReclaimedOverTime(t *testing.T) {
	r := newRig(t, shortLived)
	now := second
	for i := range 100_000 {
		now += second
		o := Owner{fmt.Sprint("n", i), uint64(i)}
		r.remote(Accepted, now, o, Version(now), "k", "v")
		if i%100 > 0 {
			continue
		}
		r.tab.Update((*Tx).ReclaimOwners)
		if n := len(r.tab.owners.list); n > 210 {
			t.Fatalf("owner ids: got %d after %d owners, want at most 210", n, i+1)
		}
		if n := len(r.tab.digester.nodes); n > 2 {
			t.Fatalf("digests: got %d, want at most 2", n)
		}
		if got := r.state("k"); got != fmt.Sprintf("v v%d n%d%d dirty", now, i, i) {
			t.Fatalf("record k: got %q, want \"v v%d n%d%d dirty\"", got, now, i, i)
		}
	}
	if n := len(r.tab.owners.ids); n > 210 {
		t.Errorf("owners with ids: got %d, want at most 210", n)
	}
}

// TestInventedOwners: a peer sends records of 66,000 invented owners. The owners of records get ids,
// up to a limit. Nodes that membership has verified get ids beyond that limit.
func TestInventedOwners(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
	for i := range 66_000 {
		r.tab.Update(func(tx *Tx) {
			id := tx.Intern(Owner{"invented", uint64(i + 1)})
			tx.Remote(&Delta{Key: pad(fmt.Sprint(i), keySize), Value: pad("v", valueSize), Version: 1, Owner: id}, 1, RemoteOptions{})
		})
	}
	r.tab.Update((*Tx).ReclaimOwners)
	if st := r.tab.Stats(); st.Live != maxNotLiveOwners-1 || st.Refused == 0 {
		t.Errorf("records of invented owners: got %d, %d refused, want %d and at least one", st.Live, st.Refused, maxNotLiveOwners-1)
	}
	for i := range 1000 {
		r.remote(Accepted, 2, Owner{"b", uint64(i)}, Version(i+2), "b", "v")
	}
	r.remote(Accepted, 2, other, 2, "c", "v")
	r.local(Accepted, 2, "update own v packet 0")
	if g := r.digest("c"); g.Live != 1 {
		t.Errorf("digest of a verified node: got %+v, want 1 record", g)
	}
}

// TestDigestOf: the sum of the parts of the single records is the digest.
func TestDigestOf(t *testing.T) {
	r := newRig(t)
	for i, k := range []string{"k", "l", "m", "n"} {
		r.remote(Accepted, 1, peer, Version(10+i), k, "v"+k)
	}
	r.remote(Accepted, 1, other, 20, "m", "w") // another owner
	r.remote(Accepted, 1, peer, 21, "n", "-")
	want, parts := r.digest("b"), Buckets{}
	var sum Digest
	r.tab.View(func(tx *Tx) {
		var whole Buckets
		tx.Digest("b", &whole)
		for _, k := range []string{"k", "l", "m", "n", "absent"} {
			node, g, bucket, ok := tx.DigestOf(pad(k, keySize))
			if ok != (k == "k" || k == "l" || k == "m") {
				t.Errorf("DigestOf %s: got %t, want %t", k, ok, k == "k" || k == "l" || k == "m")
			}
			if node != "b" {
				continue
			}
			sum.Sum, sum.VersionSum, sum.Live = sum.Sum+g.Sum, sum.VersionSum+g.VersionSum, sum.Live+1
			parts[bucket] += g.Sum
		}
		if parts != whole {
			t.Error("DigestOf: the parts of the records differ from the parts of the digest")
		}
		if got := tx.VersionSumOf(peer, 10) + tx.VersionSumOf(peer, 11); got != want.VersionSum {
			t.Errorf("version sum: got %x, want %x", got, want.VersionSum)
		}
	})
	if sum != want {
		t.Errorf("sum of the records' digests: got %+v, want %+v", sum, want)
	}
}
