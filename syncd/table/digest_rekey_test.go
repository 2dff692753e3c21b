package table

import "testing"

// TestSetDigestKey: a table that changes its digest key has the digests of a table that was created
// with that key. This also holds after later changes of the records, and in the middle of an audit.
func TestSetDigestKey(t *testing.T) {
	fill := func(r *rig, from int64) {
		r.remote(Accepted, 1, peer, Version(from), "k", "v")
		r.remote(Accepted, 1, peer, Version(from+1), "l", "w")
		r.remote(Accepted, 1, other, Version(from+2), "m", "x")
		r.remote(Accepted, 1, other, Version(from+3), "n", "y")
		r.remote(Accepted, 1, other, Version(from+4), "n", "-")
	}
	key := []byte("next")
	old, made := newRig(t), newRig(t, func(o *Options) { o.DigestKey = key })
	fill(old, 10)
	fill(made, 10)
	if old.tab.DigestID() == made.tab.DigestID() || old.digest("b") == made.digest("b") {
		t.Fatal("digest with another key: got the same, want a different one")
	}
	old.tab.Update(func(tx *Tx) {
		tx.Audit(2)
		tx.SetDigestKey(key)
		for tx.Audit(1) {
		}
	})
	same := func(when string) {
		t.Helper()
		for _, node := range []string{"b", "c"} {
			if a, b := old.digest(node), made.digest(node); a != b || a.Live == 0 {
				t.Errorf("%s: digests of %s: got %+v and %+v, want equal digests", when, node, a, b)
			}
		}
		if old.tab.DigestID() != made.tab.DigestID() || old.tab.DigestScope() != made.tab.DigestScope() {
			t.Errorf("%s: DigestID: got different ids, want equal ids", when)
		}
		checkDigests(t, old.tab)
	}
	same("at once")
	if n := old.tab.Stats().AuditFound; n != 0 {
		t.Errorf("audit: found %d differences, want 0", n)
	}
	fill(old, 20)
	fill(made, 20)
	same("after changes")
}

func BenchmarkSetDigestKey(b *testing.B) {
	const records = 1 << 20
	tab, err := New(Options{Self: self, KeySize: 16, ValueSize: 64})
	if err != nil {
		b.Fatal(err)
	}
	key, value := make([]byte, 16), make([]byte, 64)
	tab.Update(func(tx *Tx) {
		for i := range records {
			key[0], key[1], key[2] = byte(i), byte(i>>8), byte(i>>16)
			tx.Remote(&Delta{Key: key, Value: value, Version: Version(i + 1), Owner: tx.Intern(peer)}, 1, RemoteOptions{})
		}
	})
	b.ResetTimer()
	for i := range b.N {
		tab.Update(func(tx *Tx) { tx.SetDigestKey([]byte{byte(i), byte(i >> 8), 1}) })
	}
}

// The table keeps the digest of a node that has no records left.
func TestDigestOfNoRecords(t *testing.T) {
	r := newRig(t, func(o *Options) { o.DigestKey = []byte("secret") })
	var buckets Buckets
	buckets[3] = 7
	r.tab.View(func(tx *Tx) {
		if g := tx.Digest("absent", &buckets); g != (Digest{}) || buckets != (Buckets{}) {
			t.Errorf("digest of an absent node: got %+v, want zero", g)
		}
	})
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.tab.View(func(tx *Tx) {
		var sum uint64
		g := tx.Digest(peer.Node, &buckets)
		for _, s := range buckets {
			sum += s
		}
		if g.Sum == 0 || g.Sum != sum || g.Live != 1 {
			t.Errorf("digest: got %+v, want the sum of the buckets %d", g, sum)
		}
	})
}

func TestDigestOfAnUnversionedRecord(t *testing.T) {
	r := newRig(t, func(o *Options) { o.DigestKey = []byte("secret") })
	r.load(Accepted, "u", "v")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.tab.View(func(tx *Tx) {
		if _, _, _, ok := tx.DigestOf(pad("u", keySize)); ok {
			t.Error("digest of an unversioned record: got one, want none")
		}
		if node, g, _, ok := tx.DigestOf(pad("k", keySize)); !ok || node != peer.Node || g.Live != 1 {
			t.Errorf("DigestOf: got node %s, %+v, %v, want b with 1 record", node, g, ok)
		}
	})
}
