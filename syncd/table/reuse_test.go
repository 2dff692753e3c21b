package table

import (
	"reflect"
	"testing"
)

// reuseTable is New with the memory of a table of the same sizes.
func reuseTable(old *Table, o Options) *Table {
	o.setDefaults()
	t := &Table{opt: o, max: maxRecords, subs: make(map[chan<- struct{}]int), slab: old.slab}
	t.tx.t, t.clock.offset, t.clears.least = t, o.WallOffset, minClear
	t.chunks = old.chunks[:1]
	n := min(int(old.allocated), len(t.chunks[0].meta))
	clear(t.chunks[0].meta[:n])
	clear(t.chunks[0].data[:n*t.stride])
	t.allocated, t.free, t.used = firstSlot, 0, 0
	*t.meta(unversioned) = meta{prev: unversioned, next: unversioned}
	t.index.init()
	t.digester.init(&t.opt)
	t.owners.init(o.Self, &t.digester)
	for _, w := range o.Stop.Owners {
		t.owners.stopped[w.Node] = true
	}
	t.log.init(&t.opt)
	if l := &old.log; len(l.chunks) > 0 {
		l.chunks[0].reset()
		t.log.spare = l.chunks[0]
	} else {
		t.log.spare = l.spare
	}
	t.tombs.spare, t.rereads.spare, t.failures.spare = old.tombs.memory(), old.rereads.memory(), old.failures.memory()
	t.unheld.load(&t.opt)
	t.newTombs.spare = old.newTombs.memory()
	for i := range t.settling.pauses {
		t.settling.pauses[i].spare = old.settling.pauses[i].memory()
	}
	return t
}

// memory returns a chunk of the queue, nil if the queue has none.
func (q *fifo[T]) memory() *[fifoChunk]T {
	if q.spare == nil && len(q.chunks) > 0 {
		return q.chunks[0]
	}
	return q.spare
}

// TestReusedTableEqualsNew: a table in reused memory equals a table that New creates.
func TestReusedTableEqualsNew(t *testing.T) {
	o := Options{Self: self, KeySize: keySize, ValueSize: valueSize, Seed: 1, SettleKeys: 9, Significant: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0}}
	used, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, tab: used}
	r.load(Accepted, "m", "v")
	r.remote(Accepted, 5, peer, 10, "k", "v")
	r.remote(Accepted, 5, peer, 11, "k", "-")
	r.local(Accepted, 6, "update l v packet 0")
	used.NewCursor(0)
	want, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	got := reuseTable(used, o)
	var empty Table
	got.log.spare = nil
	got.tombs, got.rereads, got.failures, got.settling = empty.tombs, empty.rereads, empty.failures, empty.settling
	got.newTombs = empty.newTombs
	if !reflect.DeepEqual(got, want) {
		t.Error("reused table: got a state that differs from a new table's, want the same")
	}
}
