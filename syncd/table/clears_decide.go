package table

// beginClear makes a clear the latest one. If it begins within maxClear after the end of a clear that no operator has decided
// about, DecideClear concerns the entries of both. Otherwise the entries of the former one stay.
func (t *Table) beginClear(c Clear) {
	x := &t.clears
	continues := x.clear.At != 0 && x.endedAt != 0 && c.At-x.endedAt < maxClear
	for s := firstSlot; s < t.allocated && !continues; s++ {
		t.meta(s).flags &^= flagCleared
	}
	x.clear = c
	t.stats.Clears++
}

// DecideClear makes the decision of an operator about the latest clear. With release, the deletes of the clear are
// entered: those of entries that have not changed since, also by a change of another node that arrives later. Otherwise the entries stay, and a clear that has not ended is
// restored by the next SettleDeletes. from is 0 in the first call, and later next of the call before. DecideClear looks at up
// to limit records. It returns the number of those that it has decided about, and next = 0 at the end. now is the wall
// clock in nanoseconds.
func (tx *Tx) DecideClear(release bool, now int64, from uint32, limit int) (n int, next uint32) {
	t := tx.t
	tx.AdvanceClock(now)
	x := &t.clears
	if !release && x.active {
		x.ending, x.endedAt, x.decided = true, now, true
	}
	x.absentKept = x.absentKept || !release && x.absentCleared
	s := max(from, firstSlot)
	for ; s < t.allocated && limit > 0; s++ {
		limit--
		m := t.meta(s)
		held := m.is(flagHeld) && (x.absentOf.has(s) && x.absentCleared || !x.absentOf.has(s) && x.active)
		if m.is(flagFree) || !held && !m.is(flagCleared) {
			continue
		}
		n++
		switch {
		case release && held:
			// The map lacks the entry. If the load balancer has written it since, a reread finds that.
			t.enterHeld(heldDelete{when: m.seen, version: m.version, slot: s, absent: x.absentOf.has(s)})
		case release && !t.protected(s):
			t.removeNext(s, now)
		case !held:
			m.flags &^= flagCleared
		}
	}
	if s < t.allocated {
		return n, s
	}
	if release && x.active {
		// Later deletes of the same clear are intended, too.
		x.endClear()
		x.passed = max(x.passed, now)
	}
	if release || !x.active {
		x.clear = Clear{}
	}
	return n, 0
}
