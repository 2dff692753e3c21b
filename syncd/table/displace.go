package table

import "slices"

// In a full kernel map the longest queue drops: a record that the map refuses displaces the oldest
// entry of the holder with the most entries, if its own holder has fewer even after that. Otherwise it
// displaces an older entry of its own holder. A holder with no more than an equal share of the entries
// that are not this node's therefore loses none to another holder, however many records that one sends.
// Entries of this node are never displaced.
//
// Each live node is one holder, whichever incarnation wrote its records. All owners that are not live
// are one holder together, so additional names bring no additional share. Strangers displace nothing.

// displaceSteps bounds how many records one search for a victim looks at.
const displaceSteps = 128

// displaced marks a record that the writer took out of a full kernel map: it is to be
// written again like one whose write failed. No other record has all three.
const displaced = flagDirty | flagFailed | flagEvicted

// holder is an owner of entries in the kernel map: a live node, or all other owners.
type holder struct {
	node string  // empty: all other owners
	hand *Cursor // the next victim of this holder is after it; nil: not begun
	// looked is how many records the hand has passed since it found a victim.
	looked int
}

// Displace makes way for a record whose write failed because the kernel map is full: it
// picks the record that is to leave the map, describes it in victim, and has the refused record
// written again. It returns false when nothing should make way, or when the search did not get
// to it: then the refused record is written again, too, and the next search continues there.
//
// The victim stays in the table, as one whose write failed. The caller deletes
// it from the kernel map before anything else is written, and then calls Displaced.
func (tx *Tx) Displace(refused Ref, v Version, victim *Record) bool {
	t := tx.t
	s := uint32(refused)
	if s < firstSlot || s >= t.allocated {
		return false
	}
	m := t.meta(s)
	if m.flags&(flagFree|displaced) != flagDirty|flagFailed || m.version != v || !m.live() {
		return false // it is not what was refused any more
	}
	own := t.owners.list[m.owner].holder
	from := t.loser(m)
	if from == nil {
		return false
	}
	old := t.oldest(from)
	switch {
	case old == 0 && from.looked <= 2*t.used:
		t.clearFailed(m)
		t.moveTail(s)
		return false
	case old == 0, from == own && t.meta(old).version >= m.version:
		return false
	}
	from.hand.step()
	t.markDirty(old)
	t.fail(old)
	t.meta(old).flags |= flagEvicted
	t.describe(old, victim)
	t.clearFailed(m)
	t.moveTail(s)
	t.stats.Displaced++
	return true
}

// loser returns the holder that is to give up an entry for a record, nil for none.
func (t *Table) loser(m *meta) *holder {
	w := &t.owners.list[m.owner]
	if w.stranger {
		return nil
	}
	var most *holder
	entries, own := 0, 0
	rest := t.stats.Live - t.stats.Unversioned - t.stats.Failed - t.heldBy(t.owners.list[selfID].Node)
	count := func(h *holder, n int) {
		if h == w.holder {
			own = n
		}
		if n > entries {
			most, entries = h, n
		}
	}
	for _, h := range t.owners.holders {
		n := t.heldBy(h.node)
		rest -= n
		count(h, n)
	}
	count(&t.owners.departed, rest)
	if w.holder != nil && entries <= own+1 {
		return w.holder
	}
	return most
}

// heldBy returns how many records of a node the kernel map holds. Those that the writer has not
// tried to write yet count, too.
func (t *Table) heldBy(node string) int {
	d := t.digester.nodes[node]
	if d == nil {
		return 0
	}
	return d.live - d.failed
}

// oldest returns a holder's record after its hand, which it moves over all that cannot
// make way; 0 when it did not get to one. At the end the hand begins anew.
func (t *Table) oldest(h *holder) uint32 {
	if h.hand == nil {
		h.hand = &Cursor{t: t}
		t.cursors = append(t.cursors, h.hand)
		h.hand.moveTo(order)
	}
	for range displaceSteps {
		s := t.meta(h.hand.at).next
		h.looked++
		if s == order {
			h.hand.moveTo(order)
			continue
		}
		m := t.meta(s)
		const unsure = flagDirty | flagEvicted | flagRecheck | flagDoubt
		if m.live() && !m.is(unsure) && t.owners.list[m.owner].holder == h {
			h.looked = 0
			return s
		}
		h.hand.step()
	}
	return 0
}

// heldAgain notes that the kernel map has a record that it had refused, or that made way.
func (t *Table) heldAgain(s uint32) {
	h := t.owners.list[t.meta(s).owner].holder
	if h != nil && h.hand != nil && h.hand.pos >= t.meta(s).seq {
		h.hand.moveTo(t.meta(s).prev)
	}
}

// moveTo has a cursor go on after a record, or at the first one.
func (c *Cursor) moveTo(s uint32) {
	c.at, c.pos = s, c.t.meta(s).seq
	c.t.meta(s).flags |= flagCursor
}

func (t *Table) dropHand(h *holder) {
	if h.hand != nil {
		t.cursors = slices.DeleteFunc(t.cursors, func(c *Cursor) bool { return c == h.hand })
		h.hand = nil
	}
}

// Displaced says that a victim of Displace is out of the kernel map. now is a time after
// that, by the clock of changes. What has become of the record meanwhile is
// written again: the map lost it, whoever wrote it.
func (tx *Tx) Displaced(ref Ref, v Version, now int64) {
	t := tx.t
	s := uint32(ref)
	if s < firstSlot || s >= t.allocated {
		return
	}
	m := t.meta(s)
	t.outdate(s)
	switch {
	case m.is(flagFree|flagUnversioned) || !m.live():
	case m.flags&displaced == displaced && m.version == v:
		m.seen = max(m.seen, now)
	case !m.is(flagDirty):
		t.markDirty(s)
		t.moveTail(s)
	}
}
