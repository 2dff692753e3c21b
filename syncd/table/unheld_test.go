package table

import (
	"fmt"
	"testing"
)

// TestUnheld: the absence of an unheld key from the map of an earlier incarnation proves nothing. The set survives
// in Options.Unheld, until the table has merged the record and the map has its entry.
func TestUnheld(t *testing.T) {
	first := newRig(t, withMask)
	first.tab.Update(func(tx *Tx) {
		for _, k := range []string{"abcdX", "efgh"} {
			tx.NoteUnheld(pad(k, keySize), 10)
			tx.NoteUnheld(pad(k, keySize), 10)
		}
	})
	var u Unheld
	first.tab.View(func(tx *Tx) {
		if serial, some := tx.UnheldSerial(); serial != 2 || !some {
			t.Errorf("unheld keys: got serial %d, some %t, want 2 and true", serial, some)
		}
		u = tx.Unheld()
	})
	r := newRig(t, withMask, sameMap, func(o *Options) { o.Unheld = u })
	r.remote(Accepted, second, older, 10, "abcdY", "v") // the same compared bits
	r.remote(Accepted, second, older, 10, "held", "v")
	r.want("abcdY", "v v10 a90 dirty")
	r.want("held", "- v11 a100")
	// The record came from a peer, so a later one wins.
	r.remote(Accepted, second, older, 11, "abcdY", "w")
	r.want("abcdY", "w v11 a90 dirty")
	want := func(what string, keys int) (serial uint64) {
		t.Helper()
		r.tab.View(func(tx *Tx) {
			if rest := tx.Unheld(); len(rest.Hashes) != 8*keys || rest.Seed != u.Seed {
				t.Errorf("unheld keys %s: got %d bytes, want %d", what, len(rest.Hashes), 8*keys)
			}
			serial, _ = tx.UnheldSerial()
		})
		return serial
	}
	was := want("after the merge", 2)
	r.write()
	if now := want("after the write", 1); now == was {
		t.Errorf("serial: got %d before and after the write, want a change", now)
	}
	r.tab.Update(func(tx *Tx) { tx.NoteUnheld(pad("abcdY", keySize), 10) })
	want("filtered again", 2)
}

// TestUnheldKeyOfTheDataPlane: once the data plane has changed an entry, the map is evidence for its key.
func TestUnheldKeyOfTheDataPlane(t *testing.T) {
	r := newRig(t)
	note := func() {
		r.tab.Update(func(tx *Tx) { tx.NoteUnheld(pad("k", keySize), 10) })
	}
	for i, step := range []struct {
		do   func()
		some bool
	}{
		{func() {
			r.tab.Update(func(tx *Tx) { tx.Load(pad("l", keySize), pad("v", valueSize)); tx.NoteUnheld(pad("l", keySize), 10) })
		}, false},
		{note, true},
		{func() { r.local(Accepted, second, "update k v packet 0") }, false},
		{note, false},
		{func() { r.local(Accepted, 2*second, "delete k - packet 0") }, false},
		{note, false},
		{func() { r.remote(Accepted, 3*second, peer, Version(3*second), "k", "w") }, false},
		{note, true}, // a peer has taken the key over since
	} {
		step.do()
		r.tab.View(func(tx *Tx) {
			if _, some := tx.UnheldSerial(); some != step.some {
				t.Errorf("step %d: unheld keys: got %t, want %t", i, some, step.some)
			}
		})
	}
}

// TestUnheldIsBounded: above the limit, no absence is a delete.
func TestUnheldIsBounded(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) {
		for i := range maxUnheld + 1 {
			if tx.UnheldOverflow() {
				t.Fatalf("overflow after %d keys, want %d", i, maxUnheld+1)
			}
			tx.NoteUnheld(pad(fmt.Sprint(i), keySize), 10)
		}
		if u := tx.Unheld(); !u.Overflow || len(u.Hashes) != 8*maxUnheld {
			t.Errorf("unheld: got %d bytes, overflow %t, want %d bytes and overflow", len(u.Hashes), u.Overflow, 8*maxUnheld)
		}
	})
	next := newRig(t, sameMap, func(o *Options) { o.Unheld = Unheld{Overflow: true} })
	next.remote(Accepted, second, older, 10, "k", "v")
	next.want("k", "v v10 a90 dirty")
}

// TestOwnNotHeld counts the records of this node that the map has refused.
func TestOwnNotHeld(t *testing.T) {
	r := newRig(t)
	for k, o := range map[string]Owner{"own": older, "theirs": peer} {
		r.remote(Accepted, second, o, 10, k, "v")
	}
	r.applied(r.take(), errFull)
	r.applied(r.take(), errFull)
	for _, when := range []string{"after the refusal", "after a change of the digest key"} {
		r.tab.Update(func(tx *Tx) {
			if n := tx.OwnNotHeld(); n != 1 {
				t.Errorf("%s: own records that are not held: got %d, want 1", when, n)
			}
			tx.SetDigestKey([]byte("other"))
		})
	}
}

// TestOwnRecordWithAVictimIsNotHeld: the map has refused a record of this node, and the writer has deleted a victim for it, but has
// not written it.
func TestOwnRecordWithAVictimIsNotHeld(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, peer, 1001, "l", "v")
	r.write()
	r.remote(Accepted, second, older, 2000, "own", "v")
	m := r.refuse()
	want := func(when string, want int) {
		t.Helper()
		r.tab.View(func(tx *Tx) {
			if n := tx.OwnNotHeld(); n != want {
				t.Errorf("%s: own records that are not held: got %d, want %d", when, n, want)
			}
		})
	}
	want("after the refusal", 1)
	victim, key := r.displace(m[0])
	if key == "" {
		t.Fatal("Displace: got no victim, want one")
	}
	want("with a victim", 1)
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, second) })
	want("before the write", 1)
	taken := r.take()
	want("during the write", 1)
	r.applied(taken, nil)
	want("after the write", 0)
}

// TestOlderRecordsOfUnheldKeys: a delete that is older than the filtered record does not show that the map has held its
// entry. A live record does, because the map has held that one.
func TestOlderRecordsOfUnheldKeys(t *testing.T) {
	const filtered = 10
	for _, test := range []struct {
		what   string
		stored bool // the key comes from the state file
		d      Delta
		want   bool
	}{
		{"older delete", false, Delta{Version: 9, Delete: true}, true},
		{"its delete", false, Delta{Version: 11, Delete: true}, false},
		{"older record", false, Delta{Version: 9, Value: pad("v", valueSize)}, false},
		{"its record", false, Delta{Version: 10, Value: pad("v", valueSize)}, false},
		{"delete of a stored key", true, Delta{Version: 11, Delete: true}, true},
		{"record of a stored key", true, Delta{Version: 9, Value: pad("v", valueSize)}, false},
	} {
		r := newRig(t)
		note := func() { r.tab.Update(func(tx *Tx) { tx.NoteUnheld(pad("k", keySize), filtered) }) }
		note()
		if test.stored {
			var u Unheld
			r.tab.View(func(tx *Tx) { u = tx.Unheld() })
			r = newRig(t, sameMap, func(o *Options) { o.Unheld = u })
		}
		r.tab.Update(func(tx *Tx) {
			d := test.d
			d.Key, d.Owner = pad("k", keySize), tx.Intern(older)
			tx.Remote(&d, second, RemoteOptions{})
			if _, some := tx.UnheldSerial(); some != test.want {
				t.Errorf("%s: unheld: got %t, want %t", test.what, some, test.want)
			}
		})
	}
}
