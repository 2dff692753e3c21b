package table

import (
	"iter"
	"slices"
	"time"
)

const (
	// minClear is the lowest number of entries of a clear.
	minClear = 100
	// youngProcess is the age below which a process counts as just started.
	youngProcess = 10 * time.Second
)

// evidence is what the table has about deletes that wait.
type evidence struct {
	// deleted is the number of the entries that were there when a clear may have begun. left is the number of other entries that
	// were there and whose delete would replicate, or a number above a twentieth of all deletes that wait.
	deleted, left int
	// least is the lowest number of entries of a clear.
	least int
	// used is the number of deleted entries that had changed shortly before. again is the number of those that a former
	// clear by caller had deleted.
	used, again int
	// visible is true if a use of an entry changes it.
	visible bool
	// caller is the process that made most of the deletes. ended is true if it has ended since.
	caller Caller
	ended  bool
}

// isClear reports whether the deletes are a clear. docs/replication.md has the table.
func (e *evidence) isClear() bool {
	known := e.caller.ID != 0
	switch {
	case e.deleted < e.least || 20*e.left > e.deleted:
		return false
	case known && !e.ended && 2*e.again >= e.deleted:
		return false // the process goes on, and has deleted the same entries again
	case known && !e.ended && e.caller.Age >= youngProcess:
		return 10*e.used >= e.deleted
	case e.visible:
		return e.used > 0
	}
	return true
}

// clearEvidence returns the evidence about a clear that may have begun with any of the deletes that wait. Sessions that began and ended
// since then do not count: a busy map may have more of them than of all others.
func (t *Table) clearEvidence(ended func(Process) bool) *evidence {
	x := &t.clears
	e := &evidence{least: x.least}
	// Of the entries that were there later, at least as many are left.
	if x.held < x.least || t.left(x.queue.peek().round, x.held/20) > x.held/20 {
		return e
	}
	visible := t.usesChange()
	for round, left := range t.clearRounds() {
		e = &evidence{left: left, least: x.least, visible: visible}
		if t.addDeletes(e, round, ended); e.isClear() {
			break
		}
	}
	return e
}

// clearRounds returns the rounds in which a clear may have begun, and for each the number of entries that are left of those that were
// there.
func (t *Table) clearRounds() iter.Seq2[uint8, int] {
	x := &t.clears
	var lefts, deletes [maxRound + 2]int // by round: the differences to the round before
	for s := firstSlot; s < t.allocated; s++ {
		if t.eligible(s) {
			lefts[x.joins.at(s)+1]++
		}
	}
	for d := range x.queue.all() {
		if t.isDeleted(d) {
			deletes[d.joined+1]++
			deletes[d.round+1]--
		}
	}
	return func(yield func(uint8, int) bool) {
		left, deleted := 0, 0
		for r := uint8(1); r <= x.joins.round; r++ {
			left, deleted = left+lefts[r], deleted+deletes[r]
			if r >= x.queue.peek().round && deleted >= x.least && 20*left <= deleted && !yield(r, left) {
				return
			}
		}
	}
}

// addDeletes adds the deletes since the beginning of a round of entries that were there to the evidence.
func (t *Table) addDeletes(e *evidence, round uint8, ended func(Process) bool) {
	x := &t.clears
	var by [clearCallers]int
	for d := range x.queue.all() {
		if d.joined >= round || d.round < round || !t.isDeleted(d) {
			continue
		}
		e.deleted++
		by[d.caller]++
		if d.used {
			e.used++
		}
		if d.again {
			e.again++
		}
	}
	most := 0
	for i, n := range by {
		if n > most {
			most, e.caller = n, x.callers[i].Caller
		}
	}
	e.ended = ended != nil && e.caller.ID != 0 && ended(e.caller.Process)
}

// isDeleted reports whether the delete of an entry waits, perhaps a later one than that of an element of the queue.
func (t *Table) isDeleted(d *heldDelete) bool {
	return !d.longer && t.meta(d.slot).is(flagHeld) && !t.clears.absentOf.has(d.slot)
}

// usesChange reports whether a use of any entry changes its record: it has a volatile field, and refreshes are sent.
func (t *Table) usesChange() bool {
	return t.opt.Refresh > 0 && !slices.ContainsFunc(t.opt.masks(), func(m Masks) bool { return !t.hasVolatile(m.Significant) })
}

// hasVolatile reports whether a value has bits that are replicated and not significant.
func (t *Table) hasVolatile(significant []byte) bool {
	for i, bits := range significant {
		carried := byte(0xff)
		if t.opt.Carried != nil {
			carried = t.opt.Carried[i]
		}
		if carried&^bits != 0 {
			return true
		}
	}
	return false
}

// eligible reports whether a delete of a record's entry by bpf(2) would replicate, as far as the table has the entry in the
// kernel map. Records whose deletes wait are not eligible.
func (t *Table) eligible(s uint32) bool {
	m := t.meta(s)
	const without = flagFree | flagTombstone | flagUnversioned | flagEvicted | flagNotHeld | flagHeld
	return !m.is(without) && m.version > 0 && !t.protected(s)
}

// left returns the number of eligible records whose entries were eligible before a round, or limit+1 if there are more.
func (t *Table) left(round uint8, limit int) (n int) {
	for s := firstSlot; s < t.allocated && n <= limit; s++ {
		if t.clears.joins.at(s) < round && t.eligible(s) {
			n++
		}
	}
	return n
}

// joinEligible notes a local change that makes a record eligible.
func (t *Table) joinEligible(c *Change, s uint32) {
	if t.opt.HoldClears && c.Op == OpUpdate && !t.eligible(s) {
		t.noteEligible(s)
	}
}

// noteEligible notes that an entry becomes eligible, also again.
func (t *Table) noteEligible(s uint32) {
	if t.clears.queue.len() > 0 {
		t.clears.joins.note(s, t.allocated)
	}
}

// noteDeparted notes that the entries of owners become eligible, because these have left or have handed over records: syncd has
// restored those that a clear has deleted before.
func (t *Table) noteDeparted(departed func(*ownerInfo) bool) {
	if t.clears.queue.len() == 0 {
		return
	}
	for s := firstSlot; s < t.allocated; s++ {
		if m := t.meta(s); !m.is(flagFree) && departed(&t.owners.list[m.owner]) && t.eligible(s) {
			t.noteEligible(s)
		}
	}
}

// joins has the order of deletes that wait and of entries that become eligible meanwhile, in rounds of at least roundTime. A
// delete begins each round, the first one round 1. The lock of the table protects it.
type joins struct {
	round   uint8
	beganAt int64 // wall clock in nanoseconds
	// of has an element for each of the lowest slots: the round in which its entry became eligible, 0 before the first one.
	of []uint8
}

const (
	roundTime = int64(100 * time.Millisecond)
	maxRound  = 250
)

// at returns the round in which the entry of a slot became eligible.
func (x *joins) at(s uint32) uint8 {
	if int(s) >= len(x.of) {
		return 0
	}
	return x.of[s]
}

// note notes that the entry of a slot becomes eligible. slots is the number of all slots.
func (x *joins) note(s, slots uint32) {
	if int(s) >= len(x.of) {
		x.of = append(x.of, make([]uint8, int(slots)-len(x.of))...)
	}
	x.of[s] = x.round
}

// beginRound begins a new round before a delete begins to wait, at the wall clock now in nanoseconds, which may have been set back.
func (x *clears) beginRound(now int64) {
	j := &x.joins
	if x.queue.len() == 0 {
		clear(j.of)
		j.of, j.round, j.beganAt = j.of[:0], 1, now
		return
	}
	if since := now - j.beganAt; since >= 0 && since < roundTime {
		return
	}
	j.beganAt = now
	if before := x.queue.peek().round - 1; j.round == maxRound && before > 0 { // rounds before the oldest delete do not differ
		for i := range j.of {
			j.of[i] -= min(j.of[i], before)
		}
		for d := range x.queue.all() {
			d.joined, d.round = d.joined-min(d.joined, before), d.round-before
		}
		j.round -= before
	}
	if j.round < maxRound {
		j.round++
	}
}
