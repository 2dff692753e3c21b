package table

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// volatileTail makes the last byte of a value volatile.
func volatileTail(o *Options) {
	o.Significant = bytes.Repeat([]byte{0xff}, o.ValueSize)
	o.Significant[o.ValueSize-1] = 0
}

// tail returns a change of key k whose value has the given last byte.
func tail(t *testing.T, last byte, at int64) *Change {
	c := parseChange(t, "update k v packet 0", at)
	c.Value[len(c.Value)-1] = last
	return c
}

func TestVolatileChangeIsKeptAndNotSent(t *testing.T) {
	r := newRig(t, volatileTail)
	r.do(Accepted, func(tx *Tx) Outcome { return tx.Local(tail(t, 1, second)) })
	head := r.tab.Stats().Head
	r.do(Unchanged, func(tx *Tx) Outcome { return tx.Local(tail(t, 7, 2*second)) })
	// A change that is older than the record changes nothing.
	r.do(Unchanged, func(tx *Tx) Outcome { return tx.Local(tail(t, 3, second)) })
	if st := r.tab.Stats(); st.Head != head || st.Unsent != 1 {
		t.Errorf("after a volatile change: got head %d and %d unsent changes, want %d and 1", st.Head, st.Unsent, head)
	}
	var rec Record
	r.tab.View(func(tx *Tx) { tx.Get(pad("k", keySize), &rec) })
	if got := rec.Value[len(rec.Value)-1]; got != 7 {
		t.Errorf("volatile byte: got %d, want 7 (sent with the next change)", got)
	}
}

func TestDeltaKeepPreservesLocalBytes(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k own packet 0")
	d := &Delta{Key: pad("k", keySize), Value: pad("new", valueSize), Version: Version(5 * second), Keep: []Range{{1, 2}}}
	r.do(Accepted, func(tx *Tx) Outcome {
		d.Owner = tx.Intern(peer)
		return tx.Remote(d, 5*second, RemoteOptions{})
	})
	if state := r.state("k"); !strings.HasPrefix(state, "nwn ") {
		t.Errorf("k: got %q, want the value nwn", state)
	}
	// Without a live record the kept range comes from the delta.
	d = &Delta{Key: pad("l", keySize), Value: pad("new", valueSize), Version: 7, Keep: []Range{{1, 2}}}
	r.do(Accepted, func(tx *Tx) Outcome {
		d.Owner = tx.Intern(peer)
		return tx.Remote(d, 5*second, RemoteOptions{})
	})
	if state := r.state("l"); !strings.HasPrefix(state, "new ") {
		t.Errorf("l: got %q, want the value new", state)
	}
}

func TestEqualUnder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "size")
		part := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x80, 0xff}), n, n)
		a, b, mask := part.Draw(rt, "a"), part.Draw(rt, "b"), part.Draw(rt, "mask")
		want := true
		for i := range a {
			want = want && (a[i]^b[i])&mask[i] == 0
		}
		if got := equalUnder(mask, a, b); got != want {
			rt.Fatalf("equalUnder: got %t, want %t", got, want)
		}
	})
}

func TestRereadOfKnownAndUnknownKeys(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update(func(tx *Tx) {
		tx.RequestReread(pad("k", keySize))
		tx.RequestReread(pad("l", keySize))
	})
	if got := r.takeRereads(); got != "lk" && got != "kl" {
		t.Fatalf("rereads: got %q, want k and l", got)
	}
	r.wantRereads("")
	r.tab.Update(func(tx *Tx) {
		for range maxUnknownBytes/keySize + 2 {
			tx.RequestReread(pad("l", keySize))
		}
	})
	if got := r.tab.Stats().RereadsDropped; got != 2 {
		t.Errorf("dropped rereads: got %d, want 2", got)
	}
	buf := make([]byte, maxUnknownBytes)
	r.tab.Update(func(tx *Tx) {
		if n := tx.TakeRereads(buf); n != maxUnknownBytes/keySize {
			t.Errorf("pending rereads: got %d, want %d", n, maxUnknownBytes/keySize)
		}
	})
	r.local(Accepted, 2*second, "update l w reread 0")
	r.want("l", "w v2000000000 a100")
}

// TestVolatileChangeAtTheSameTime: of two events of one time, the table keeps the volatile bits of the later one.
func TestVolatileChangeAtTheSameTime(t *testing.T) {
	r := newRig(t, volatileTail)
	r.do(Accepted, func(tx *Tx) Outcome { return tx.Local(tail(t, 1, second)) })
	r.do(Unchanged, func(tx *Tx) Outcome { return tx.Local(tail(t, 7, second)) })
	var rec Record
	r.tab.View(func(tx *Tx) { tx.Get(pad("k", keySize), &rec) })
	if got := rec.Value[len(rec.Value)-1]; got != 7 {
		t.Errorf("volatile byte: got %d, want 7", got)
	}
}
