package table

import "testing"

// TestSetDigestKey: a table that takes another key over has the digests of one that
// was made with it, also when the records change afterwards, and in the middle of an audit.
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
		t.Fatal("the key makes no difference")
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
				t.Errorf("%s: digests of %s are %+v and %+v", when, node, a, b)
			}
		}
		if old.tab.DigestID() != made.tab.DigestID() || old.tab.DigestScope() != made.tab.DigestScope() {
			t.Errorf("%s: the tables do not compare", when)
		}
		checkDigests(t, old.tab)
	}
	same("at once")
	if n := old.tab.Stats().AuditFound; n != 0 {
		t.Errorf("the audit found %d", n)
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

// A digest that the table keeps is there even with none of a node's records left.
func TestDigestOfNoRecords(t *testing.T) {
	r := newRig(t, func(o *Options) { o.DigestKey = []byte("secret") })
	var buckets Buckets
	buckets[3] = 7
	r.tab.View(func(tx *Tx) {
		if g := tx.Digest("nobody", &buckets); g != (Digest{}) || buckets != (Buckets{}) {
			t.Errorf("%+v", g)
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
			t.Errorf("%+v, buckets add up to %d", g, sum)
		}
	})
}

func TestDigestOfAnUnversionedRecord(t *testing.T) {
	r := newRig(t, func(o *Options) { o.DigestKey = []byte("secret") })
	r.load(Accepted, "u", "v")
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.tab.View(func(tx *Tx) {
		if _, _, _, ok := tx.DigestOf(pad("u", simKey)); ok {
			t.Error("an unversioned record has a digest")
		}
		if node, g, _, ok := tx.DigestOf(pad("k", simKey)); !ok || node != peer.Node || g.Live != 1 {
			t.Errorf("%s, %+v, %v", node, g, ok)
		}
	})
}
