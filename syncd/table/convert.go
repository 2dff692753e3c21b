package table

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// convertChunk is the number of records that Convert copies in one critical section of the old table.
const convertChunk = 1024

// errNoRoom is the reason for a failed record if the new table is full.
var errNoRoom = errors.New("the table is full")

// Conversion converts entries from one layout to another. Both functions write all of dst, which has the
// new size. src has the old size and is borrowed for the call. Convert drops a record if a function returns
// an error for it.
type Conversion struct {
	// Key converts a key. It should map different keys to different keys. If two keys become one, the newer
	// record stays.
	Key func(dst, src []byte) error
	// Value converts a value.
	Value func(dst, src []byte) error
}

// Converted is the result of a conversion.
type Converted struct {
	// Records is the number of records in the new table, tombstones included.
	Records int
	// Failed is the number of records that were dropped.
	Failed int
	// Err is the reason for the first dropped record, nil if Failed is 0.
	Err error
}

// Convert returns a new table with the content of t in another layout. It has the same records with the
// same versions and owners in the same order, tombstones and unversioned records included, and the same
// clock skew. Positions start again at 1. Readers that hold a position must therefore start again: the
// peers' streams and the kernel writer. Every live record is dirty in the new table (see [Tx.Refill]).
//
// o has the same meaning as for [New], but Convert ignores Self, SameMap and Unheld and uses those of t. Convert
// does not modify t, and t stays in use meanwhile. The new table lacks changes of t that follow Convert.
// Errors wrap ErrOptions.
func (t *Table) Convert(o Options, c Conversion) (*Table, Converted, error) {
	o.Self, o.SameMap, o.Unheld = t.opt.Self, t.opt.SameMap, Unheld{}
	to, err := New(o)
	if err != nil {
		return nil, Converted{}, fmt.Errorf("convert table: %w", err)
	}
	w := conversion{from: t, to: to, funcs: c, key: make([]byte, o.KeySize), value: make([]byte, o.ValueSize)}
	at := t.NewCursor(0)
	defer at.Close()
	for more := true; more; {
		t.View(func(*Tx) { more = w.chunk(at) })
	}
	to.sortTombs()
	to.newTombs = fifo[placedSlot]{} // enter has queued them all in tombs
	return to, w.done, nil
}

// conversion is the state of a Convert in progress. Only the goroutine of Convert uses it.
type conversion struct {
	// from is the old table; its lock is held while records are copied. to is the new table, which no other
	// goroutine has yet.
	from, to *Table
	// funcs are the functions of the caller.
	funcs Conversion
	// key and value are buffers of the new sizes for the record that is being converted.
	key, value []byte
	// done is the result so far.
	done Converted
}

// chunk copies the next records of the order. At the end of the order it also copies all other records and
// returns false. A record that moves to the tail meanwhile is copied again there.
func (w *conversion) chunk(at *Cursor) (more bool) {
	w.owners()
	for range convertChunk {
		s := at.advance()
		if s == 0 {
			w.finish()
			return false
		}
		w.record(s)
	}
	return true
}

// finish copies the records that are not in the order. It must run in the critical section that reached the
// end of the order, because an unversioned record can move into the order at any time.
func (w *conversion) finish() {
	for s := w.from.meta(unversioned).next; s != unversioned; s = w.from.meta(s).next {
		w.record(s)
	}
	w.to.skew, w.to.clock, w.to.adopted = w.from.skew, w.from.clock, w.from.adopted
	w.notes()
	w.from.owners.keepIDs = false
	w.to.owners.stopped = w.from.owners.stopped
	w.to.tx.SetGone(w.from.owners.gone)
	w.to.owners.returned, w.to.owners.returnedAt = w.from.owners.returned, w.from.owners.returnedAt
	for node, h := range w.from.owners.handovers {
		w.to.tx.SetHandover(node, h)
	}
	w.done.Records = w.to.used + w.to.log.n
}

// owners copies the owners of the old table to the new one, under the same ids.
func (w *conversion) owners() {
	w.from.owners.keepIDs = true
	to := &w.to.owners
	for _, o := range w.from.owners.list[len(to.list):] {
		id := OwnerID(len(to.list))
		to.list = append(to.list, ownerInfo{})
		if o.free() {
			to.freeIDs = append(to.freeIDs, id) // the old table gives this id to no other owner meanwhile
			continue
		}
		to.list[id] = to.describe(o.Owner, o.ours)
		to.list[id].digest.ids++
		to.ids[o.Owner] = id
	}
}

// record converts one record, in a slot or compact, and drops it if a step returns an error.
func (w *conversion) record(s uint32) {
	var m meta
	err := w.funcs.Key(w.key, w.from.read(s, &m))
	known := err == nil
	if known && m.live() {
		err = w.funcs.Value(w.value, w.from.value(s))
	}
	if err == nil {
		err = w.enter(&m, s&compactBit != 0)
	}
	if err != nil {
		w.drop(&m, known, err)
	}
}

// enter puts a converted record into the new table, unless the new table has a newer one. Tombstones in
// slots enter the queue tombs at once, so that they expire in the order of their times.
func (w *conversion) enter(m *meta, compact bool) error {
	to := w.to
	h, s := to.findForChange(w.key)
	defer to.finishChange()
	switch {
	case s == 0 && compact:
		if to.used+to.log.n >= to.max {
			return errNoRoom
		}
		to.appendCompact(m, h, w.key)
		return nil
	case s == 0:
		if s = to.create(h, w.key); s == 0 {
			return errNoRoom
		}
	case w.newer(to.meta(s), m):
		return nil
	}
	to.put(s, w.value, !m.live(), m.seen)
	n := to.meta(s)
	n.seen = m.seen
	to.endSuperseded(n)
	n.setCPU(cpuNone)
	if m.live() {
		to.markDirty(s)
	} else {
		to.clearDirty(s) // the new kernel map is empty
	}
	switch {
	case !m.is(flagUnversioned):
		to.stamp(s, m.version, m.owner)
		if w.from.superseding(m).effective() {
			to.supersede(n, OwnerID(m.cpuOrPeer))
		}
		if !m.live() && !n.is(flagInTombs) {
			to.queueTombstone(s)
		}
	case n.seq == 0 && !n.is(flagUnversioned):
		to.owners.moveReference(n.owner, selfID)
		n.owner = selfID
		n.flags |= flagUnversioned
		to.link(unversioned, s)
		to.stats.Unversioned++
	}
	n.flags |= w.flags(m)
	return nil
}

// newer reports whether the record that the new table has is newer than another one.
func (w *conversion) newer(taken, other *meta) bool {
	if taken.version != other.version {
		return taken.version > other.version
	}
	list := w.to.owners.list
	return list[taken.owner].Compare(list[other.owner].Owner) > 0
}

// sortTombs sorts the queue of tombstones by time, the order in which they expire.
func (t *Table) sortTombs() {
	all := make([]timedSlot, 0, t.tombs.len())
	for t.tombs.len() > 0 {
		all = append(all, t.tombs.pop())
	}
	slices.SortFunc(all, func(a, b timedSlot) int { return cmp.Compare(a.when, b.when) })
	for _, b := range all {
		t.tombs.push(b)
	}
}
