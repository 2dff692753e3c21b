package table

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestNewRefuses(t *testing.T) {
	good := Options{Self: self, KeySize: 4, ValueSize: 4}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for i, spoil := range []func(*Options){
		func(o *Options) { o.Self.Node = "" },
		func(o *Options) { o.KeySize = 0 },
		func(o *Options) { o.ValueSize = -1 },
		func(o *Options) { o.MaxRecords = -1 },
		func(o *Options) { o.MaxRecords = 1 << 32 },
		func(o *Options) { o.TombstoneTTL = -1 },
	} {
		o := good
		spoil(&o)
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("case %d: got error %v, want an error with ErrOptions", i, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, size := range [][2]int{{1, 1}, {3, 7}, {48, 176}, {512, 4096}} {
		tab, err := New(Options{Self: self, KeySize: size[0], ValueSize: size[1]})
		if err != nil {
			t.Fatal(err)
		}
		if tab.KeySize() != size[0] || tab.ValueSize() != size[1] || tab.Self() != self {
			t.Fatalf("sizes: got %d and %d of %v, want %d, %d, %v", tab.KeySize(), tab.ValueSize(), tab.Self(), size[0], size[1], self)
		}
		n := min(300, 1<<(8*size[0])-1)
		key, value := make([]byte, size[0]), make([]byte, size[1])
		fill := func(i int) {
			for j := range key {
				key[j] = byte(i >> (8 * (j % 2)))
			}
			for j := range value {
				value[j] = byte(i + j)
			}
		}
		tab.Update(func(tx *Tx) {
			for i := range n {
				fill(i)
				if o := tx.Local(&Change{Key: key, Value: value, Time: 1}); o != Accepted {
					t.Fatalf("local change %d: got outcome %v, want %v", i, o, Accepted)
				}
			}
			for i := range n {
				fill(i)
				var rec Record
				if !tx.Get(key, &rec) || string(rec.Value) != string(value) {
					t.Fatalf("sizes %v: record %d: got %v, want value %x", size, i, rec, value)
				}
			}
			if tx.Get(key[:size[0]-1], new(Record)) {
				t.Fatal("Get of a key of the wrong size: got a record, want none")
			}
		})
		checkInvariants(t, tab)
	}
}

func TestOwners(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) {
		if id := tx.Intern(self); tx.Owner(id) != self {
			t.Error("Intern(self): got another id, want Self")
		}
		name := []byte("bee")
		id := tx.Intern(Owner{string(name), 1})
		if tx.Intern(Owner{"bee", 1}) != id || tx.Intern(Owner{"bee", 2}) == id {
			t.Error("Intern: got a wrong id, want the same id for the same owner, and another id for another incarnation")
		}
		if tx.Owner(NoOwner) != (Owner{}) || tx.Owner(9) != (Owner{}) {
			t.Error("Owner of an unknown id: got an owner, want none")
		}
		for i := uint64(0); ; i++ {
			if id := tx.Intern(Owner{"invented", i}); id == NoOwner {
				break
			} else if i > maxOwners {
				t.Fatal("Intern: got no limit of ids, want one")
			}
		}
		if tx.Intern(Owner{"bee", 1}) != id {
			t.Error("Intern of a known owner at the limit: got another id, want the same")
		}
	})
}

func TestOwnerCompare(t *testing.T) {
	sorted := []Owner{{"a", 1}, {"a", 2}, {"aa", 1}, {"b", 0}}
	for i, o := range sorted {
		for j, p := range sorted {
			if got := o.Compare(p); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("Compare(%v, %v): got %d, want less than 0: %t, more than 0: %t", o, p, got, i < j, i > j)
			}
		}
	}
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(OpUpdate, OpDelete, OpEvict, Op(9),
		ContextPacket, ContextProcess, ContextSyscall, ContextOwn, ContextReread,
		Accepted, Unchanged, Stale, Restored, Refused, Ignored)
	want := "update delete evict unknown packet process syscall own reread " +
		"accepted unchanged stale restored refused ignored"
	if got != want {
		t.Fatalf("names %q, want %q", got, want)
	}
}

// woken reports whether an Update woke a subscriber.
func woken(tab *Table, ch chan struct{}, fn func(*Tx)) bool {
	tab.Update(fn)
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestSubscribe(t *testing.T) {
	r := newRig(t)
	ch := make(chan struct{}, 1)
	cancel := r.tab.Subscribe(ch)
	key, v1, v2 := pad("k", keySize), pad("v1", valueSize), pad("v2", valueSize)
	var rec Record
	for i, step := range []struct {
		want bool
		fn   func(*Tx)
	}{
		{false, func(*Tx) {}},
		{true, func(tx *Tx) { tx.Local(&Change{Key: key, Value: v1, Time: 5 * second}) }},
		{false, func(tx *Tx) { tx.Local(&Change{Key: key, Value: v1, Time: 6 * second}) }},
		{true, func(tx *Tx) { tx.Local(&Change{Key: key, Value: v2, Time: 1 * second}) }}, // a reread
		{true, func(tx *Tx) {
			tx.Remote(&Delta{Key: key, Value: v2, Version: Version(8 * second), Owner: tx.Intern(peer)}, 8*second, RemoteOptions{})
		}},
		{false, func(tx *Tx) { tx.NextDirty(r.writer, &rec) }},
		{true, func(tx *Tx) { tx.Applied(rec.Ref, rec.Version, nil) }},
		{true, func(tx *Tx) { tx.SetApplied(tx.Head()) }},
		{false, func(tx *Tx) { tx.SetApplied(tx.Head()) }},
	} {
		if got := woken(r.tab, ch, step.fn); got != step.want {
			t.Errorf("step %d: got woken %v, want %v", i, got, step.want)
		}
	}
	// A full channel without a reader does not block Update.
	for range 3 {
		r.tab.Update(func(tx *Tx) { tx.Refill() })
	}
	<-ch
	cancel()
	cancel()
	if woken(r.tab, ch, func(tx *Tx) { tx.Refill() }) {
		t.Error("cancel: got a wake-up after it, want none")
	}
	close(ch) // nothing is sent after cancel
	r.tab.Update(func(tx *Tx) { tx.Refill() })
}

func TestPanicLeavesTheTableUsable(t *testing.T) {
	r := newRig(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("panic: got none, want the panic of the callback")
			}
		}()
		r.tab.Update(func(*Tx) { panic("caller's") })
	}()
	r.local(Accepted, 1, "update k v packet 0")
}

// TestConcurrent uses one table from a writer of events, a peer, a kernel writer and a stream
// concurrently.
func TestConcurrent(t *testing.T) {
	const keys, rounds = 50, 2000
	r := newRig(t)
	wake := make(chan struct{}, 1)
	defer r.tab.Subscribe(wake)()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range rounds {
			r.tab.Update(func(tx *Tx) {
				tx.Local(&Change{Key: pad(fmt.Sprint(i%keys), keySize), Value: pad(fmt.Sprint(i), valueSize), Time: int64(i + 1)})
			})
		}
	})
	wg.Go(func() {
		for i := range rounds {
			r.tab.Update(func(tx *Tx) {
				d := Delta{Key: pad(fmt.Sprint(i%keys), keySize), Value: pad(fmt.Sprint(i), valueSize), Version: Version(i + 1), Owner: tx.Intern(peer)}
				tx.Remote(&d, int64(i+1), RemoteOptions{})
			})
		}
	})
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r.write()
			_ = r.tab.Stats()
			select {
			case <-wake:
			case <-stop:
				return
			}
		}
	}()
	follower := make(map[string]Version)
	c := r.tab.NewCursor(0)
	follow := func() {
		r.tab.View(func(tx *Tx) {
			var rec Record
			for tx.Next(c, &rec) {
				follower[text(rec.Key)] = rec.Version
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			follow()
			time.Sleep(10 * time.Microsecond) // the follower reads between writes
		}
	})
	wg.Wait()
	close(stop)
	<-done
	r.write()
	follow()
	if len(follower) != keys {
		t.Fatalf("follower: got %d keys, want %d", len(follower), keys)
	}
	for k, v := range follower {
		r.tab.View(func(tx *Tx) {
			var rec Record
			if !tx.Get(pad(k, keySize), &rec) || rec.Version != v || rec.Dirty {
				t.Errorf("%s: got record %+v, want version %d, which the follower got, and not dirty", k, rec, v)
			}
		})
	}
}
