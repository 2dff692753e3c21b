package table

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// convertChunk is how many records are converted under the old table's lock at a time.
const convertChunk = 1024

// errNoRoom is why a record is not taken over when the new table is full.
var errNoRoom = errors.New("the table is full")

// Conversion turns the entries of one layout into those of another. Both functions
// write all of dst, which has the new size; src, of the old size, is borrowed. What
// they return an error for is left out.
type Conversion struct {
	// Key converts a key. Different keys should stay different: of two that become
	// one, the newer record stays.
	Key func(dst, src []byte) error
	// Value converts a value.
	Value func(dst, src []byte) error
}

// Converted says what became of the records of a table that was converted.
type Converted struct {
	// Records were taken over, tombstones included.
	Records int
	// Failed were not, and Err is the first one's reason.
	Failed int
	Err    error
}

// Convert returns a new table that knows what t knows, in another layout: the same
// records, tombstones and unversioned ones included, with their versions and owners and in
// their order, and the same clock. Positions begin anew, and so must those who read
// from one: peers, and the kernel's writer, for whom every live record is dirty
// (see [Tx.Refill]).
//
// o is as for [New], but for Self and SameMap, which stay as they are. t goes on
// meanwhile and is not changed; what becomes of it after Convert is not in the
// new table. The errors wrap ErrOptions.
func (t *Table) Convert(o Options, c Conversion) (*Table, Converted, error) {
	o.Self, o.SameMap = t.opt.Self, t.opt.SameMap
	to, err := New(o)
	if err != nil {
		return nil, Converted{}, fmt.Errorf("convert table: %w", err)
	}
	w := conversion{from: t, to: to, how: c, key: make([]byte, o.KeySize), value: make([]byte, o.ValueSize)}
	at := t.NewCursor(0)
	defer at.Close()
	for more := true; more; {
		t.View(func(*Tx) { more = w.chunk(at) })
	}
	to.sortTombs()
	return to, w.done, nil
}

// conversion is a Convert under way.
type conversion struct {
	from, to   *Table
	how        Conversion
	key, value []byte
	done       Converted
}

// chunk takes over the next records of the order, and at its end all the rest. A
// record that moves to the tail meanwhile is met again there.
func (w *conversion) chunk(at *Cursor) (more bool) {
	w.owners()
	for range convertChunk {
		s := at.advance()
		if s == 0 {
			w.rest()
			return false
		}
		w.record(s)
	}
	return true
}

// rest takes over what is not in the order. Nobody may come between it and the end
// of the order, since an unversioned record can move there at any time.
func (w *conversion) rest() {
	for s := w.from.meta(unversioned).next; s != unversioned; s = w.from.meta(s).next {
		w.record(s)
	}
	w.to.skew = w.from.skew
	w.from.owners.keep = false
	w.to.tx.SetGone(w.from.owners.gone)
	w.done.Records = w.to.used + w.to.log.n
}

// owners gives the new table the owners of the old one, under the same ids.
func (w *conversion) owners() {
	w.from.owners.keep = true
	to := &w.to.owners
	for _, o := range w.from.owners.list[len(to.list):] {
		id := OwnerID(len(to.list))
		to.list = append(to.list, ownerInfo{})
		if o.free() {
			to.spare = append(to.spare, id) // no other owner gets it in the old table meanwhile
			continue
		}
		to.list[id] = to.describe(o.Owner, o.ours)
		to.ids[o.Owner] = id
	}
}

func (w *conversion) record(s uint32) {
	var m meta
	err := w.how.Key(w.key, w.from.read(s, &m))
	if err == nil && m.live() {
		err = w.how.Value(w.value, w.from.value(s))
	}
	if err == nil {
		err = w.enter(&m, s&compactBit != 0)
	}
	if err != nil {
		w.done.Failed++
		if w.done.Err == nil {
			w.done.Err = err
		}
	}
}

// enter puts a converted record into the new table, unless that has a newer one. There the hand
// passes each record at once, so that tombstones expire in the order of their time.
func (w *conversion) enter(m *meta, compact bool) error {
	to := w.to
	h, s := to.open(w.key)
	defer to.toEnd(to.hand)
	defer to.refreeze()
	switch {
	case s == 0 && compact:
		if to.used+to.log.n >= to.max {
			return errNoRoom
		}
		to.enterCompact(m, h, w.key)
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
	n.seen, n.cpu = m.seen, cpuNone
	n.flags |= m.flags & flagExpired
	if m.live() {
		to.markDirty(s)
	} else {
		to.clearDirty(s) // the kernel map to come is empty
	}
	switch {
	case !m.is(flagUnversioned):
		to.stamp(s, m.version, m.owner)
		if !m.live() && !n.is(flagInTombs) {
			to.queueTomb(s)
		}
	case n.seq == 0 && !n.is(flagUnversioned):
		to.owners.refer(n.owner, selfID)
		n.owner = selfID
		n.flags |= flagUnversioned
		to.link(unversioned, s)
		to.stats.Unversioned++
	}
	return nil
}

// newer reports whether a record that was taken over is newer than another one.
func (w *conversion) newer(taken, other *meta) bool {
	if taken.version != other.version {
		return taken.version > other.version
	}
	list := w.to.owners.list
	return list[taken.owner].Compare(list[other.owner].Owner) > 0
}

// sortTombs puts the queue of tombstones into the order of their time, in which they expire.
func (t *Table) sortTombs() {
	all := make([]tomb, 0, t.tombs.len())
	for t.tombs.len() > 0 {
		all = append(all, t.tombs.pop())
	}
	slices.SortFunc(all, func(a, b tomb) int { return cmp.Compare(a.when, b.when) })
	for _, b := range all {
		t.tombs.push(b)
	}
}
