package table

import "testing"

// What was read of a key before it was deleted must not bring it back, although
// the delete's event came while the key was unknown.
func TestDeleteDuringLoadIsNotUndone(t *testing.T) {
	tab, err := New(Options{Self: Owner{Node: "a", Incarnation: 1}, KeySize: 8, ValueSize: 8})
	if err != nil {
		t.Fatal(err)
	}
	gone, stays, value := []byte("gonegone"), []byte("staystay"), []byte("valuable")
	expired := []byte("idleidle")
	tab.Update(func(tx *Tx) {
		tx.BeginLoad()
		tx.Local(&Change{Key: gone, Op: OpDelete, Time: 1000})
		tx.Local(&Change{Key: expired, Op: OpDelete, Context: ContextSyscall, Time: 1000})
		tx.Load(gone, value)
		tx.Load(expired, value)
		tx.Load(stays, value)
		tx.EndLoad()
		var keys [32]byte
		if n := tx.TakeRechecks(keys[:]); n != 2 || string(keys[:16]) != string(gone)+string(expired) {
			t.Fatalf("%d rechecks, of %q", n, keys[:8*n])
		}
		tx.Local(&Change{Key: gone, Op: OpDelete, Context: ContextReread, Time: 2000})
		tx.Local(&Change{Key: expired, Op: OpDelete, Context: ContextReread, Time: 2000})
		tx.Claim(10)
		var rec Record
		if !tx.Get(gone, &rec) || !rec.Delete || rec.Version != 1000 {
			t.Error("the deleted key is back")
		}
		if tx.Get(expired, &rec) {
			t.Error("what a collector deleted is told to others")
		}
		if !tx.Get(stays, &rec) || rec.Delete {
			t.Error("the other key is gone")
		}
	})
}

// A read of a map may pass over a key. A peer's delete of a key that the load did not find is
// written all the same, or a scan would take what it finds there for new.
func TestDeleteOfAKeyThatTheLoadPassedOver(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, 0, peer, 1000, "k", "-")
	r.want("k", "- v1000 b100 dirty")
	if keys := r.write(); keys != "k" {
		t.Fatalf("wrote %q", keys)
	}
	r.scan(second)
	r.remote(Accepted, 0, peer, 1000, "l", "-")
	r.want("l", "- v1000 b100")
}
