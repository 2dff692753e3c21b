package table

import "testing"

// The table rereads a new key after 50, 100, 200 ms and so on. It stops when the key has changed and
// three rereads after that found no change.
func TestNewKeysAreRereadUntilSettled(t *testing.T) {
	tab, err := New(Options{Self: Owner{Node: "a", Incarnation: 1}, KeySize: 8, ValueSize: 8, SettleKeys: 2})
	if err != nil {
		t.Fatal(err)
	}
	const ms = 1_000_000
	key := []byte("new flow")
	take := func(tx *Tx) int {
		var keys [8 * 8]byte
		return tx.TakeRereads(keys[:])
	}
	tab.Update(func(tx *Tx) {
		tx.Local(&Change{Key: key, Value: []byte("syn_sent"), Time: 1000 * ms})
		for _, step := range []struct {
			at    int64
			reads int
			value string // found by the reread
			next  int64
		}{
			{1049, 0, "", 1050},
			{1050, 1, "syn_sent", 1150},
			{1149, 0, "", 1150},
			{1151, 1, "establis", 1351},
			{1351, 1, "establis", 1751},
			{1751, 1, "establis", 2551},
			{2551, 1, "establis", 4151},
			{4151, 0, "", 0}, // three rereads without a change: settled
		} {
			if next := tx.Settle(step.at*ms, 10); next != step.next*ms {
				t.Errorf("at %d: got next at %d, want %d", step.at, next/ms, step.next)
			}
			if n := take(tx); n != step.reads {
				t.Errorf("at %d: got %d rereads, want %d", step.at, n, step.reads)
			}
			if step.value != "" {
				tx.Local(&Change{Key: key, Value: []byte(step.value), Time: (step.at + 1) * ms, Context: ContextReread})
			}
		}
		var rec Record
		if !tx.Get(key, &rec) || string(rec.Value) != "establis" {
			t.Errorf("value: got %q, want \"establis\"", rec.Value)
		}
	})
	tab.Update(func(tx *Tx) { // three keys exceed the limit by one
		for _, k := range []string{"flow aaa", "flow bbb", "flow ccc"} {
			tx.Local(&Change{Key: []byte(k), Value: []byte("syn_sent"), Time: 2000 * ms})
		}
		tx.Local(&Change{Key: []byte("flow aaa"), Op: OpDelete, Time: 2001 * ms})
		tx.Settle(2050*ms, 10)
		if n := take(tx); n != 1 {
			t.Errorf("rereads: got %d, want the one of the live flow", n)
		}
	})
	if s := tab.Stats(); s.Unsettled != 1 {
		t.Errorf("unsettled keys: got %d, want 1", s.Unsettled)
	}
}

// Settle returns the time at which the next key is due, in every pause.
func TestSettleReturnsTheNextTime(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SettleKeys = 10 })
	settle := func(now int64) (next int64) {
		r.tab.Update(func(tx *Tx) { next = tx.Settle(now, 99) })
		return next
	}
	if next := settle(0); next != 0 {
		t.Errorf("next without a key: got %d, want 0", next)
	}
	first := int64(settleFirst)
	r.local(Accepted, 1*second, "update k v packet 0")
	if next := settle(1 * second); next != 1*second+first {
		t.Errorf("next: got %d, want %d", next, 1*second+first)
	}
	at := 1*second + first
	second2 := at + 2*first // the next pause is twice as long
	if next := settle(at); next != second2 {
		t.Errorf("next after the first reread: got %d, want %d", next, second2)
	}
	r.wantRereads("k")
	r.local(Accepted, at, "update l v packet 0") // due before the other key
	if next := settle(at); next != at+first {
		t.Errorf("next with two keys: got %d, want %d", next, at+first)
	}
	r.local(Accepted, at+2*first-1, "update m v packet 0")
	settle(at + first)
	if next := settle(at + first); next != second2 {
		t.Errorf("next with three keys: got %d, want %d", next, second2)
	}
}
