package table

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is a simple reference for the order of a table: the records as a slice, and a cursor as a
// position.
type model struct {
	seq     uint64
	records []modelRecord
	cursors map[*Cursor]*modelCursor
}

type modelRecord struct {
	key string
	seq uint64
}

type modelCursor struct {
	pos      uint64
	follower map[string]uint64 // the last position of each key that its reader has received
}

func (m *model) change(key string) {
	m.drop(key)
	m.seq++
	m.records = append(m.records, modelRecord{key, m.seq})
}

func (m *model) drop(key string) {
	m.records = slices.DeleteFunc(m.records, func(r modelRecord) bool { return r.key == key })
}

func (m *model) next(pos uint64) (modelRecord, bool) {
	for _, r := range m.records {
		if r.seq > pos {
			return r, true
		}
	}
	return modelRecord{}, false
}

// TestOrder compares the order and its cursors with the model under random changes. Each reader must
// receive the newest position of every key since it began. This holds for any start position and any
// number of reconnects.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := &orderTest{m: model{cursors: make(map[*Cursor]*modelCursor)}}
		var err error
		o.tab, err = New(Options{Self: self, KeySize: keySize, ValueSize: valueSize, Seed: 1, TombstoneTTL: 1})
		if err != nil {
			t.Fatal(err)
		}
		o.tab.log.shift = 1
		o.now = 1
		t.Repeat(map[string]func(*rapid.T){
			"":        o.check,
			"change":  o.change,
			"change2": o.change,
			"remote":  o.remote,
			"touch":   o.touch,
			"expire":  o.expire,
			"compact": o.compact,
			"open":    o.open,
			"next":    o.next,
			"next2":   o.next,
			"dirty":   o.dirty,
			"reopen":  o.reopen,
			"close":   o.close,
		})
		o.finish(t)
	})
}

type orderTest struct {
	tab  *Table
	m    model
	now  int64
	dead []string
}

func (o *orderTest) key(t *rapid.T) string {
	return fmt.Sprint("k", rapid.IntRange(0, 9).Draw(t, "key"))
}

func (o *orderTest) change(t *rapid.T) {
	o.now += 2 * timestampMargin
	c := &Change{Key: pad(o.key(t), keySize), Value: pad(fmt.Sprint(o.now%97), valueSize), Time: o.now}
	if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
		c.Op = OpDelete
	}
	o.tab.Update(func(tx *Tx) {
		// A repeated delete of a compact tombstone moves it: the log cannot keep the time of the event.
		compact := o.tab.log.find(o.tab.hash(c.Key), c.Key) != 0
		if tx.Local(c) == Accepted || compact {
			o.changed(text(c.Key), c.Op == OpDelete)
		}
	})
}

func (o *orderTest) changed(key string, deleted bool) {
	o.m.change(key)
	o.dead = slices.DeleteFunc(o.dead, func(k string) bool { return k == key })
	if deleted {
		o.dead = append(o.dead, key)
	}
}

func (o *orderTest) remote(t *rapid.T) {
	o.now++
	key := o.key(t)
	opt := RemoteOptions{Touch: rapid.Bool().Draw(t, "touch")}
	d := &Delta{Key: pad(key, keySize), Value: pad("v", valueSize), Version: Version(o.now + rapid.Int64Range(-9, 9).Draw(t, "age"))}
	if d.Version == 0 || d.Version > maxVersion {
		d.Version = 1
	}
	o.tab.Update(func(tx *Tx) {
		d.Owner = tx.Intern(peer)
		var rec Record
		before := tx.Get(d.Key, &rec) && rec.Owner == d.Owner && !rec.Delete
		if out := tx.Remote(d, o.now, opt); out == Accepted {
			o.changed(key, false)
		} else if before && opt.Touch {
			o.m.change(key)
		}
	})
}

func (o *orderTest) touch(t *rapid.T) {
	c := o.tab.NewCursor(0)
	defer c.Close()
	node := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node")
	o.tab.Update(func(tx *Tx) {
		var keys []string
		for _, r := range o.m.records {
			var rec Record
			if tx.Get(pad(r.key, keySize), &rec) && tx.Owner(rec.Owner).Node == node {
				keys = append(keys, r.key)
			}
		}
		for tx.Touch(node, c, rapid.IntRange(1, 5).Draw(t, "limit")) {
		}
		for _, k := range keys {
			o.m.change(k)
		}
	})
}

func (o *orderTest) expire(*rapid.T) {
	keys := make([]byte, 64*keySize)
	o.tab.Update(func(tx *Tx) {
		for tx.TakeRereads(keys) > 0 { // their tombstones stay
		}
		for tx.Expire(o.now+9, 1) {
		}
	})
	for _, k := range o.dead {
		o.m.drop(k)
	}
	o.dead = nil
}

// compact compacts some tombstones, as if the kernel map held all records that
// are not dirty.
func (o *orderTest) compact(t *rapid.T) {
	n := rapid.IntRange(1, 5).Draw(t, "records")
	o.tab.Update(func(tx *Tx) {
		tx.SetApplied(tx.Head())
		o.tab.compact(o.now+9, n)
	})
}

func (o *orderTest) open(t *rapid.T) {
	if len(o.m.cursors) > 5 {
		return
	}
	pos := rapid.Uint64Range(0, o.m.seq+1).Draw(t, "position")
	c := o.tab.NewCursor(pos)
	o.m.cursors[c] = &modelCursor{pos: min(pos, o.m.seq), follower: make(map[string]uint64)}
}

func (o *orderTest) cursor(t *rapid.T) *Cursor {
	if len(o.m.cursors) == 0 {
		return nil
	}
	// The cursors are in the order of creation, so that a run can be repeated.
	return o.tab.cursors[rapid.IntRange(0, len(o.tab.cursors)-1).Draw(t, "cursor")]
}

func (o *orderTest) next(t *rapid.T) {
	c := o.cursor(t)
	if c == nil {
		return
	}
	mc := o.m.cursors[c]
	for range rapid.IntRange(1, 6).Draw(t, "steps") {
		want, ok := o.m.next(mc.pos)
		var rec Record
		var got bool
		o.tab.View(func(tx *Tx) { got = tx.Next(c, &rec) })
		if got != ok || (ok && (text(rec.Key) != want.key || rec.Position != want.seq)) {
			t.Fatalf("next after %d is %q at %d, %v, want %+v, %v", mc.pos, rec.Key, rec.Position, got, want, ok)
		}
		if mc.pos = o.m.seq; ok {
			mc.pos = want.seq
			mc.follower[want.key] = want.seq
		}
	}
}

// dirty reads as the writer does, which passes several records at once.
func (o *orderTest) dirty(t *rapid.T) {
	c := o.cursor(t)
	if c == nil {
		return
	}
	mc := o.m.cursors[c]
	o.tab.Update(func(tx *Tx) {
		var rec Record
		ok := tx.NextDirty(c, &rec)
		for {
			want, more := o.m.next(mc.pos)
			if !more {
				mc.pos = o.m.seq
				break
			}
			mc.pos = want.seq
			mc.follower[want.key] = want.seq
			var have Record
			tx.Get(pad(want.key, keySize), &have)
			if have.Dirty {
				if !ok || have.Ref != rec.Ref {
					t.Fatalf("next dirty is %q, %v, want %q", rec.Key, ok, want.key)
				}
				tx.Applied(rec.Ref, rec.Version, nil)
				return
			}
		}
		if ok {
			t.Fatalf("next dirty is %q, want none", rec.Key)
		}
	})
}

func (o *orderTest) reopen(t *rapid.T) {
	c := o.cursor(t)
	if c == nil {
		return
	}
	mc := o.m.cursors[c]
	delete(o.m.cursors, c)
	c.Close()
	o.m.cursors[o.tab.NewCursor(c.Position())] = mc
}

func (o *orderTest) close(t *rapid.T) {
	if c := o.cursor(t); c != nil {
		delete(o.m.cursors, c)
		c.Close()
		c.Close()
		o.tab.View(func(tx *Tx) {
			var rec Record
			if tx.Next(c, &rec) || tx.NextDirty(c, &rec) {
				t.Fatalf("Next of a closed cursor: got %q, want no record", rec.Key)
			}
		})
	}
}

func (o *orderTest) check(t *rapid.T) {
	checkInvariants(t, o.tab)
	for c, mc := range o.m.cursors {
		if c.Position() != mc.pos {
			t.Fatalf("cursor at %d, want %d", c.Position(), mc.pos)
		}
	}
	c := o.tab.NewCursor(0)
	defer c.Close()
	o.tab.View(func(tx *Tx) {
		var rec Record
		for _, want := range o.m.records {
			if !tx.Next(c, &rec) || text(rec.Key) != want.key || rec.Position != want.seq {
				t.Fatalf("order: got %q at %d, want %+v", rec.Key, rec.Position, want)
			}
		}
		if tx.Next(c, &rec) {
			t.Fatalf("order: got additional record %q at the end, want none", rec.Key)
		}
		if tx.Head() != o.m.seq {
			t.Fatalf("head %d, want %d", tx.Head(), o.m.seq)
		}
	})
}

// finish reads with every reader up to the end.
func (o *orderTest) finish(t *rapid.T) {
	for c, mc := range o.m.cursors {
		begin := mc.pos
		o.tab.View(func(tx *Tx) {
			var rec Record
			for tx.Next(c, &rec) {
				mc.follower[text(rec.Key)] = rec.Position
			}
		})
		for _, r := range o.m.records {
			if r.seq > begin && mc.follower[r.key] != r.seq {
				t.Fatalf("a reader from %d received %q at %d, want %d", begin, r.key, mc.follower[r.key], r.seq)
			}
		}
	}
}
