package table

import (
	"slices"
)

// After a restart, an absent key of an earlier incarnation of this node counts as deleted. If nearly all keys are absent,
// the load balancer has cleared the map while syncd was stopped. The records therefore stay until the initial sync has
// ended.

// holdAbsent enters a record of an earlier incarnation whose entry the local map lacks, without restoring the entry. s is
// the slot of the key, 0 if it has no record. done is false if the ordinary merge applies.
func (t *Table) holdAbsent(d *Delta, h, s uint32, now int64) (o Outcome, done bool) {
	if !t.opt.HoldClears || d.Delete || d.Expired || d.Owner == selfID || t.opt.LRU && !t.opt.EvictionDeletes || t.deltaHandedOver(d) {
		return 0, false
	}
	if s != 0 && !t.foundAbsent(s) && (!t.meta(s).live() || !t.meta(s).is(flagHeld)) {
		return 0, false
	}
	if s = t.slotOfAbsent(d, h, s, now); s == 0 {
		return Refused, true // a tombstone would delete the entry on all nodes, without a decision
	}
	m := t.meta(s)
	late := m.flags & flagLateWrite
	t.put(s, d.Value, false, now)
	t.clearDirty(s)
	t.stampDelta(s, d, now)
	t.setFlags(m, flagEvicted, flagHeld|late)
	t.clears.absentOf.add(s)
	t.clears.absentHeld++
	queue := &t.clears.absent
	if t.clears.absentDecided && !t.clears.absentCleared {
		queue = &t.clears.late
	}
	queue.push(heldDelete{when: now, version: m.version, slot: s, absent: true})
	if t.unscanned {
		t.requestReread(s) // the load may have skipped the key
	}
	return Accepted, true
}

// DelayAbsent makes the decisions about absent entries of earlier incarnations of this node wait for DecideAbsent. Peers that
// have started at the same time send their records only after the initial sync of this node has ended.
func (tx *Tx) DelayAbsent() { tx.t.clears.absentDelayed = true }

// AbsentWait reports whether absent entries of earlier incarnations of this node wait for DecideAbsent.
func (tx *Tx) AbsentWait() bool {
	x := &tx.t.clears
	return x.absentDelayed && !x.absentDue && x.absent.len() > 0
}

// DecideAbsent makes SettleDeletes decide about all absent entries of earlier incarnations of this node that have been found
// so far. The caller calls it once all peers have sent their records.
func (tx *Tx) DecideAbsent() {
	tx.t.clears.absentDue, tx.changed = true, true
}

// settleAbsent decides about the records of holdAbsent once the initial sync has ended. It looks at up to limit records
// and returns true if there are more.
func (t *Table) settleAbsent(limit int) (more bool) {
	x := &t.clears
	if x.absent.len() == 0 || t.stats.Unversioned > 0 || t.replaced.of != nil || x.absentDelayed && !x.absentDue {
		return false
	}
	if !x.absentDecided {
		x.absentDecided, x.absentCleared = true, t.absentIsClear()
		if x.absentCleared {
			t.beginClear(Clear{At: x.absent.peek().when, Entries: x.absent.len()})
		}
	}
	if x.absentCleared && !x.mayRestore() {
		return false
	}
	for ; x.absent.len() > 0; limit-- {
		if limit == 0 {
			return true
		}
		e := x.absent.peek()
		if t.awaitsReread(&e) {
			return false
		}
		x.absent.pop()
		switch {
		case !t.isHeld(&e):
		case x.absentCleared:
			t.restoreHeld(e.slot, x.absentKept)
		default:
			t.deleteAbsent(e.slot)
		}
	}
	if x.absentCleared && !x.absentKept {
		x.clear.Restored, x.endedAt = true, t.now
	}
	x.absentDecided, x.absentCleared, x.absentKept, x.absentDue = false, false, false, false
	x.absent, x.late = x.late, x.absent
	x.endRestore()
	return false
}

// deleteAbsent makes a record of holdAbsent a tombstone, just above the record, unless this node has handed it over since.
func (t *Table) deleteAbsent(s uint32) {
	m := t.meta(s)
	if t.keptWhileDrained(m) {
		t.keepDeleted(&Change{Key: t.key(s), Time: max(t.now, m.seen), Op: OpDelete, Context: ContextSyscall, CPU: cpuNone}, s)
		return
	}
	v := m.version + 1
	if m.is(flagLateWrite) {
		t.markDirty(s)
	}
	t.put(s, nil, true, t.now)
	t.stamp(s, v, selfID)
}

// absentIsClear reports whether the absent keys are a clear. No process is known. Entries count as in use if they had
// changed shortly before the latest change of an entry of this node before the stop.
func (t *Table) absentIsClear() bool {
	x := &t.clears
	e := evidence{least: x.least, left: x.found, visible: t.usesChange()}
	latest := x.latestStopped
	if e.visible && !x.stopKnown {
		latest = t.latestChange()
	}
	restored := 0
	for n := x.absent.len(); n > 0; n-- {
		h := x.absent.pop()
		if t.isHeld(&h) {
			x.absent.push(h)
			e.deleted++
			if t.isRestored(h.version) {
				restored++
			}
			if latest-int64(t.changed(h.version)) <= int64(t.opt.ClearUse) {
				e.used++
			}
		}
	}
	switch {
	case x.stopKnown:
		e.deleted = min(e.deleted, x.stopped-x.found) // peers may have invented the others
	case 2*restored > e.deleted:
		// Peers may have replaced their records of the other entries before they could send these.
		e.left += x.loadedOf.len()
	}
	return (!e.visible || 10*e.used >= e.deleted) && e.isClear()
}

// latestChange returns the time of the latest change of a record of an earlier incarnation, as a version, or 0. Clocks of
// other nodes may have moved the versions of some records ahead: the highest hundredth does not count, nor do
// versions above the present time.
func (t *Table) latestChange() int64 {
	const without = flagFree | flagTombstone | flagUnversioned | flagEvicted
	var changes []int64
	for s := firstSlot; s < t.allocated; s++ {
		if m := t.meta(s); !m.is(without) && m.owner != selfID && t.ours(m.owner) {
			changes = append(changes, int64(t.changed(m.version)))
		}
	}
	return t.latestOf(changes)
}

// latestOf is latestChange for the versions of changes. It changes the slice.
func (t *Table) latestOf(changes []int64) int64 {
	changes = slices.DeleteFunc(changes, func(at int64) bool { return at > t.now+t.clock.offset })
	if len(changes) == 0 {
		return 0
	}
	slices.Sort(changes)
	return changes[len(changes)-1-len(changes)/100]
}

// noteStop notes what Options.Stop proves about absent entries.
func (t *Table) noteStop() {
	x, stop := &t.clears, &t.opt.Stop
	if !t.opt.HoldClears || stop.Seed == 0 {
		return
	}
	var changes []int64
	for i := range stop.Len() {
		if e := stop.at(i); stop.Owners[e.owner].Node == t.opt.Self.Node {
			changes = append(changes, int64(OriginalVersion(e.version)))
		}
	}
	x.stopKnown, x.stopped, x.latestStopped = true, len(changes), t.latestOf(changes)
}

// noteLoaded notes an entry that the load has found. It counts as one of an earlier incarnation if this node owned it at its last
// clean stop. Other entries may be new ones: they say nothing about those that are absent.
func (t *Table) noteLoaded(s uint32) {
	stop := &t.opt.Stop
	switch {
	case !t.opt.HoldClears || !t.opt.SameMap:
	case stop.Seed == 0:
		t.clears.loadedOf.add(s)
	default:
		if e, found := stop.find(t.hashStopKey(stop.Seed, s)); found && stop.Owners[e.owner].Node == t.opt.Self.Node {
			t.clears.found++
		}
	}
}

// noteFound counts an entry that the load has found, after a kill, once a peer has a record of it of an earlier incarnation of this
// node. The record may be older than the entry.
func (t *Table) noteFound(s uint32) {
	if x := &t.clears; x.loadedOf.has(s) {
		x.loadedOf.remove(s)
		x.found++
	}
}
