package table

import "time"

const (
	// minClear is the lowest number of entries of a clear.
	minClear = 100
	// youngProcess is the age below which a process counts as just started.
	youngProcess = 10 * time.Second
)

// evidence is what the table has about deletes that wait.
type evidence struct {
	// deleted is the number of the entries. left is the number of other entries that were there at the first delete and
	// whose delete would replicate, or a number above a twentieth of deleted.
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

// clearEvidence returns the evidence about the deletes that wait, of which first is the oldest.
func (t *Table) clearEvidence(first *heldDelete, ended func(Process) bool) *evidence {
	x := &t.clears
	e := &evidence{least: x.least, deleted: x.held, used: x.used, again: x.again, visible: t.usesChange()}
	if e.deleted >= e.least {
		joined := int(x.joined - first.joined)
		e.left = max(0, t.left(joined+e.deleted/20)-joined)
	}
	most := 0
	for i := range x.callers {
		if n := x.callers[i].n; n > most {
			most, e.caller = n, x.callers[i].Caller
		}
	}
	e.ended = ended != nil && e.caller.ID != 0 && ended(e.caller.Process)
	return e
}

// usesChange reports whether a use of an entry changes its record: it has a volatile field, and refreshes are sent.
func (t *Table) usesChange() bool {
	if t.opt.Refresh == 0 {
		return false
	}
	for i, significant := range t.opt.Significant {
		carried := byte(0xff)
		if t.opt.Carried != nil {
			carried = t.opt.Carried[i]
		}
		if carried&^significant != 0 {
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

// left returns the number of eligible records, or limit+1 if there are more.
func (t *Table) left(limit int) (n int) {
	for s := firstSlot; s < t.allocated && n <= limit; s++ {
		if t.eligible(s) {
			n++
		}
	}
	return n
}

// joinEligible counts a local change that makes a record eligible.
func (t *Table) joinEligible(c *Change, s uint32) {
	if t.opt.HoldClears && c.Op == OpUpdate && !t.eligible(s) {
		t.clears.joined++
	}
}
