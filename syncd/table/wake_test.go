package table

import "testing"

// TestUpdateWakes: Update wakes subscribers if there is work for the writer or a key to reread.
func TestUpdateWakes(t *testing.T) {
	r := newRig(t)
	ch := make(chan struct{}, 1)
	defer r.tab.Subscribe(ch)()
	woken := func(what string, want bool, fn func()) {
		t.Helper()
		fn()
		select {
		case <-ch:
			if !want {
				t.Errorf("%s: got a wake-up, want none", what)
			}
		default:
			if want {
				t.Errorf("%s: got no wake-up, want one", what)
			}
		}
	}
	woken("a refill of an empty table", true, func() { r.tab.Update((*Tx).Refill) })
	woken("a reread of an unknown key", true, func() { r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("x", keySize)) }) })
	woken("a reread that was taken", false, func() { r.wantRereads("x") })
	woken("a key of another size", false, func() { r.tab.Update(func(tx *Tx) { tx.RequestReread([]byte("short")) }) })
	if n := r.tab.Stats().Refused; n != 1 {
		t.Errorf("%d refused, want the key of another size", n)
	}
	r.wantRereads("")
	woken("a record", true, func() { r.remote(Accepted, second, peer, 10, "k", "v") })
	rec := r.take()
	drain(ch)
	woken("a write that failed", true, func() { r.applied(rec, errFull) })
	woken("a retry", true, func() {
		r.tab.Update(func(tx *Tx) {
			if n := tx.RequeueFailed(1); n != 1 {
				t.Errorf("requeued writes: got %d, want 1", n)
			}
		})
	})
	woken("no retry", false, func() { r.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) }) })
	woken("the applied position", true, func() { r.tab.Update(func(tx *Tx) { tx.SetApplied(1) }) })
	woken("the same applied position", false, func() { r.tab.Update(func(tx *Tx) { tx.SetApplied(1) }) })
	woken("a reread", true, func() {
		r.write()
		drain(ch)
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	})
	woken("a reread that waits already", false, func() { r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) }) })
}

func drain(ch chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

// TestRereadsOfUnknownKeys: TakeRereads returns each key once, in order, up to the size of the buffer.
// Stats counts the keys above maxUnknownBytes as dropped.
func TestRereadsOfUnknownKeys(t *testing.T) {
	r := newRig(t)
	reread := func(keys ...string) {
		for _, k := range keys {
			r.tab.Update(func(tx *Tx) { tx.RequestReread(pad(k, keySize)) })
		}
	}
	take := func(n int, want string) {
		t.Helper()
		buf, got := make([]byte, n*keySize), ""
		r.tab.Update(func(tx *Tx) { n = tx.TakeRereads(buf) })
		for i := range n {
			got += text(buf[i*keySize:][:keySize])
		}
		if got != want {
			t.Errorf("rereads: got %q, want %q", got, want)
		}
	}
	reread("k", "l", "m", "n")
	take(1, "k")
	reread("o")
	wait := func(keys, taken int) {
		t.Helper()
		if q := &r.tab.unknownRereads; len(q.keys) != keys*keySize || q.head != taken*keySize {
			t.Errorf("queue: got %d bytes, %d taken, want %d keys and %d", len(q.keys), q.head, keys, taken)
		}
	}
	wait(5, 1)
	take(2, "lm")
	take(0, "")
	reread("p")
	wait(3, 0) // more than half was taken
	reread("q")
	take(2, "no")
	reread("r")
	wait(5, 2) // half was taken
	take(5, "pqr")
	r.tab.Update(func(tx *Tx) {
		for range maxUnknownBytes / keySize {
			tx.RequestReread(pad("q", keySize))
		}
	})
	if n := r.tab.Stats().RereadsDropped; n != 0 {
		t.Errorf("dropped rereads below the limit: got %d, want 0", n)
	}
	reread("r", "s")
	if n := r.tab.Stats().RereadsDropped; n != 2 || r.tab.unknownRereads.waiting() != maxUnknownBytes {
		t.Errorf("rereads: got %d dropped, %d bytes pending, want 2 and %d", n, r.tab.unknownRereads.waiting(), maxUnknownBytes)
	}
}

// TestDisplaceWakes: Update wakes subscribers if Displace has found a victim, if the refused record waits for
// others, and if a displaced entry must be written again.
func TestDisplaceWakes(t *testing.T) {
	ch := make(chan struct{}, 1)
	wakes := func(what string, r *rig, fn func(*Tx)) {
		t.Helper()
		defer r.tab.Subscribe(ch)()
		r.tab.Update(fn)
		select {
		case <-ch:
		default:
			t.Errorf("%s: got no wake-up, want one", what)
		}
	}
	r, m := fullMap(t)
	var victim Record
	wakes("a victim", r, func(tx *Tx) { search(tx, &m, &victim) })
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 3000) })
	wakes("an earlier update of the victim", r, func(tx *Tx) { tx.Local(parseChange(t, "update k w packet 0", 3000)) })
	r = withMembers(t)
	r.remote(Accepted, 1, other, 1000, "o", "v")
	for _, key := range []string{"k", "l"} {
		r.remote(Accepted, 1, peer, 2000, key, "v")
	}
	o := r.take()
	r.applied(o, errFull)
	wakes("a record that waits for others", r, func(tx *Tx) { search(tx, &o, &victim) })
}
