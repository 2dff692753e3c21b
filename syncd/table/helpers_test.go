package table

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	keySize   = 8
	valueSize = 8
	startTime = int64(1_000_000_000_000_000)
)

// pad returns a key or value of n bytes.
func pad(s string, n int) []byte {
	b := make([]byte, n)
	copy(b, s)
	return b
}

// text returns a key or value without its padding.
func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// rig is one table with short helper methods. A test passes the time as a plain number of nanoseconds.
type rig struct {
	*testing.T
	tab    *Table
	writer *Cursor
}

var (
	self  = Owner{"a", 100}
	older = Owner{"a", 90}
	peer  = Owner{"b", 100}
	other = Owner{"c", 100}
)

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	o := Options{Self: self, KeySize: keySize, ValueSize: valueSize, Seed: 1}
	for _, fn := range change {
		fn(&o)
	}
	tab, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, tab: tab, writer: tab.NewCursor(0)}
	t.Cleanup(func() { checkInvariants(t, tab) })
	return r
}

func sameMap(o *Options)   { o.SameMap = true }
func evictions(o *Options) { o.EvictionDeletes = true }
func room(n int) func(*Options) {
	return func(o *Options) { o.MaxRecords = n }
}

func (r *rig) do(want Outcome, fn func(*Tx) Outcome) {
	r.Helper()
	var got Outcome
	r.tab.Update(func(tx *Tx) { got = fn(tx) })
	if got != want {
		r.Fatalf("outcome %s, want %s", got, want)
	}
}

// local enters a change at a given time. The text names the operation, key, value ("-" for none),
// context and CPU, for example "update k v packet 0".
func (r *rig) local(want Outcome, at int64, what string) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome { return tx.Local(parseChange(r, what, at)) })
}

func parseChange(tb testing.TB, what string, at int64) *Change {
	tb.Helper()
	f := strings.Fields(what)
	if len(f) != 5 {
		tb.Fatalf("change: got %q, want operation, key, value, context and CPU", what)
	}
	c := &Change{Key: pad(f[1], keySize), Time: at}
	if f[2] != "-" {
		c.Value = pad(f[2], valueSize)
	}
	c.Op = Op(indexOf(tb, opNames[:], f[0]))
	c.Context = Context(indexOf(tb, contextNames[:], f[3]))
	if _, err := fmt.Sscan(f[4], &c.CPU); err != nil {
		tb.Fatal(err)
	}
	return c
}

func indexOf(tb testing.TB, names []string, s string) int {
	tb.Helper()
	for i, n := range names {
		if n == s {
			return i
		}
	}
	tb.Fatalf("name: got %q, want one of %v", s, names)
	return 0
}

// remote merges a record. The value "-" is a tombstone.
func (r *rig) remote(want Outcome, now int64, o Owner, v Version, key, value string) {
	r.Helper()
	r.merge(want, now, o, v, key, value, RemoteOptions{})
}

func (r *rig) merge(want Outcome, now int64, o Owner, v Version, key, value string, opt RemoteOptions) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome {
		d := &Delta{Key: pad(key, keySize), Version: v, Owner: tx.Intern(o)}
		if value == "-" {
			d.Delete = true
		} else {
			d.Value = pad(value, valueSize)
		}
		return tx.Remote(d, now, opt)
	})
}

func (r *rig) load(want Outcome, key, value string) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome { return tx.Load(pad(key, keySize), pad(value, valueSize)) })
}

func (r *rig) adopt() {
	r.tab.Update(func(tx *Tx) {
		for tx.Adopt(1) {
		}
	})
}

// write lets the writer write all dirty records. It returns their keys.
func (r *rig) write() (keys string) {
	r.tab.Update(func(tx *Tx) {
		var rec Record
		for tx.NextDirty(r.writer, &rec) {
			keys += text(rec.Key)
			tx.Applied(rec.Ref, rec.Version, nil)
		}
		tx.SetApplied(r.writer.Position())
	})
	return keys
}

// take lets the writer take one record.
func (r *rig) take() (rec Record) {
	r.Helper()
	r.tab.Update(func(tx *Tx) {
		if !tx.NextDirty(r.writer, &rec) {
			r.Fatal("NextDirty: got no record, want a dirty one")
		}
	})
	return rec
}

func (r *rig) applied(rec Record, err error) {
	r.tab.Update(func(tx *Tx) { tx.Applied(rec.Ref, rec.Version, err) })
}

// want checks the state of a key: its value (or "-"), its version, the node and incarnation of its
// owner, and "dirty" if it is dirty.
func (r *rig) want(key, state string) {
	r.Helper()
	if got := r.state(key); got != state {
		r.Fatalf("%s is %q, want %q", key, got, state)
	}
}

func (r *rig) state(key string) (state string) {
	r.tab.View(func(tx *Tx) {
		var rec Record
		if !tx.Get(pad(key, keySize), &rec) {
			state = "unknown"
			return
		}
		v := text(rec.Value)
		if rec.Delete {
			v = "-"
		}
		o := tx.Owner(rec.Owner)
		state = fmt.Sprintf("%s v%d %s%d", v, rec.Version, o.Node, o.Incarnation)
		if rec.Dirty {
			state += " dirty"
		}
	})
	return state
}

// order returns the keys in the order of the table.
func (r *rig) order() (keys string) {
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.View(func(tx *Tx) {
		var rec Record
		for tx.Next(c, &rec) {
			keys += text(rec.Key)
		}
	})
	return keys
}

func (r *rig) wantOrder(keys string) {
	r.Helper()
	if got := r.order(); got != keys {
		r.Fatalf("order %q, want %q", got, keys)
	}
}

// takeRereads takes all pending rereads and returns their keys.
func (r *rig) takeRereads() (keys string) {
	r.tab.Update(func(tx *Tx) {
		buf := make([]byte, keySize)
		for tx.TakeRereads(buf) == 1 {
			keys += text(buf)
		}
	})
	return keys
}

func (r *rig) wantRereads(keys string) {
	r.Helper()
	if got := r.takeRereads(); got != keys {
		r.Fatalf("rereads %q, want %q", got, keys)
	}
}

func (r *rig) setGone(node string, gone bool) {
	r.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{node: gone}) })
}

const second = int64(time.Second)
