package table

import "time"

// A load balancer may clear its map at its start or when it stops. Its deletes look like those of a collector, and a
// clear would end all sessions on all nodes. With Options.HoldClears, a delete by bpf(2) that would replicate therefore
// waits: the record stays live and is neither sent nor restored. SettleDeletes either enters the deletes, or finds that
// they are a clear. It then restores the entries once the clear has ended.
//
// A delete by the data plane does not wait. A later change of the key, or a newer record of a peer, ends the waiting.

const (
	// deleteDelay is the time that a delete waits.
	deleteDelay = int64(2 * time.Second)
	// longDelay is the longest time that a delete waits while deletes of more than a quarter of the entries arrive.
	longDelay = int64(3500 * time.Millisecond)
	// clearEnds is the time without further deletes after which a clear has ended. maxClear is the longest time from the
	// beginning of a clear until its entries are restored.
	clearEnds = int64(2 * time.Second)
	maxClear  = int64(30 * time.Second)
	// clearCallers is the number of processes that are distinguished at a time.
	clearCallers = 8
)

// Clear is the latest clear of a table, until an operator decides about it.
type Clear struct {
	// At is the wall clock in nanoseconds of the first delete. 0: none.
	At int64
	// Entries is the number of deleted entries.
	Entries int
	// Restored is false until the entries are restored.
	Restored bool
	// Caller is the process that made most of the deletes.
	Caller Caller
}

// heldDelete is a delete that waits.
type heldDelete struct {
	// when is the wall clock in nanoseconds of the delete, and since that at which it began to wait.
	when, since int64
	// version is the version of the record at that time. The delete is entered only if the record still has it and flagHeld.
	version Version
	// slot may have another record by now.
	slot uint32
	// joined is the round in which the entry became eligible, and round that in which it was deleted. See joins.
	joined, round uint8
	// caller is the index of the process in clears.callers.
	caller  uint8
	context Context
	// used is true if the entry had changed shortly before. again is true if a clear by the same process had deleted it
	// before. longer is true if another element is the evidence of the delete. absent is true for elements of clears.absent.
	used, again, longer, absent bool
}

// clears is the state of Options.HoldClears. The lock of the table protects it.
type clears struct {
	// queue has the deletes that wait, oldest first.
	queue fifo[heldDelete]
	// least is minClear, except in simulations.
	least int
	// absent has the records of earlier incarnations without an entry, until the initial sync ends. See holdAbsent.
	absent fifo[heldDelete]
	// late has those that arrived after the decision that the others are deleted. It is empty unless absentDecided.
	late fifo[heldDelete]
	// absentDecided is true while the records in absent are being deleted, or, with absentCleared, restored.
	absentDecided, absentCleared bool
	// absentDelayed is true if the records in absent wait until absentDue is set: see DelayAbsent.
	absentDelayed, absentDue bool
	// held is the number of records with flagHeld, except for those of absentOf. absentHeld is the number of the latter.
	held, absentHeld int
	// absentOf has a bit for each slot with flagHeld whose entry the map lacked at the start: see holdAbsent.
	absentOf slotSet
	// found is the number of entries of earlier incarnations that the map held at the start: see noteLoaded.
	found int
	// stopKnown is true after a clean stop. stopped is the number of entries that this node owned then, of all its incarnations,
	// and latestStopped the latest change of them, as latestChange has it. Peers cannot change these numbers.
	stopKnown     bool
	stopped       int
	latestStopped int64
	// loadedOf has the slots of entries that the load has found, after a kill: see noteFound.
	loadedOf slotSet
	// joins has the entries that became eligible while deletes wait.
	joins joins
	// callers has the processes of the elements in queue. The first one stands for unknown processes.
	callers [clearCallers]struct {
		Caller
		n int
	}
	// caller is the process of the latest event of a delete. seen has those of deletes that a reread has yet to decide.
	caller Caller
	seen   seenCallers
	// passed is the value of since up to which the deletes are not a clear.
	passed int64
	// latest is the wall clock in nanoseconds at which the latest delete began to wait.
	latest int64
	// active is true from the detection of a clear until its entries are restored. ending is true once it has ended, at the
	// wall clock endedAt in nanoseconds. Deletes that began to wait later do not belong to it.
	active, ending bool
	endedAt        int64
	// decided is true if an operator has decided that the entries of an active clear stay, absentKept the same of absentCleared.
	decided, absentKept bool
	// restoring is true from the end of a clear until its entries are restored. Before allowed is set, none is.
	restoring, allowed bool
	// clear is the latest clear.
	clear Clear
}

// LatestClear returns the latest clear that no operator has decided about.
func (tx *Tx) LatestClear() Clear { return tx.t.clears.clear }

// confirmHeld enters a delete by bpf(2), or an absence, of a key whose delete waits.
func (t *Table) confirmHeld(c *Change, s uint32) Outcome {
	if c.Context == ContextReread && t.predates(c, s) {
		t.requestReread(s) // the load balancer may have written the entry since
		return Stale
	}
	m := t.meta(s)
	m.flags &^= flagLateWrite
	m.noteEvidence(c)
	return Unchanged
}

// holdDelete makes a delete wait that would replicate. c is borrowed for the call.
func (t *Table) holdDelete(c *Change, s uint32) Outcome {
	m, x := t.meta(s), &t.clears
	caller := x.caller
	if c.Context == ContextReread {
		caller = t.seenCaller(s)
	}
	if _, wins := t.winningVersion(c, s); !wins {
		return Stale
	}
	again, late := t.uncertain(c, m), t.lateWrite(c, m)
	t.clearDirty(s)
	t.invalidateReadings(s)
	if c.Context == ContextSyscall && c.Time-m.seen > timestampMargin {
		m.flags &^= flagPacketDelete // bpf(2) has found the entry since then
	}
	e := heldDelete{
		when: c.Time, since: max(t.now, c.Time), version: m.version, slot: s, context: c.Context, caller: x.callerIndex(caller),
		used:  int64(t.versionAt(c.Time))-int64(t.changed(m.version)) <= int64(t.opt.ClearUse), // versions follow the wall clock
		again: m.is(flagCleared) && caller.ID != 0 && caller.Process == x.clear.Caller.Process,
	}
	m.noteEvidence(c)
	t.setFlags(m, flagEntry|flagWritten|flagEvicted, flagHeld|late)
	x.held++
	x.latest = max(x.latest, e.since)
	x.push(e)
	if again {
		t.requestReread(s)
	}
	t.tx.changed = true
	return Ignored
}

// holdLonger makes a delete wait on whose record has got another version. The element of the former version stays in the queue as
// evidence.
func (t *Table) holdLonger(s uint32) {
	m, x := t.meta(s), &t.clears
	now := max(t.now, m.seen)
	e := heldDelete{when: m.seen, since: now, version: m.version, slot: s, context: ContextSyscall, longer: true, absent: x.absentOf.has(s)}
	if e.absent {
		x.absent.push(e) // the present decision concerns it, too
		return
	}
	x.latest = max(x.latest, now)
	x.push(e)
}

// push appends a delete to the queue.
func (x *clears) push(e heldDelete) {
	x.beginRound(e.since)
	e.joined, e.round = x.joins.at(e.slot), x.joins.round
	x.queue.push(e)
	x.callers[e.caller].n++
}

// pop removes the oldest delete from the queue.
func (x *clears) pop() heldDelete {
	e := x.queue.pop()
	x.callers[e.caller].n--
	return e
}

// unhold ends the waiting of a delete without entering it.
func (t *Table) unhold(s uint32) {
	if t.meta(s).is(flagHeld) {
		t.endHold(s)
		t.noteEligible(s)
	}
}

// endHold ends the waiting of a delete.
func (t *Table) endHold(s uint32) {
	m := t.meta(s)
	switch {
	case t.clears.absentOf.has(s):
		t.clears.absentOf.remove(s)
		t.clears.absentHeld--
	default:
		t.clears.held--
	}
	t.setFlags(m, flagHeld|flagDoubted|flagLateWrite, 0)
}

// presentAgain decides about a key whose delete waits if an event or a reread shows the entry. It returns false if the
// delete may be later. The caller then ignores the change.
func (t *Table) presentAgain(c *Change, s uint32) bool {
	m := t.meta(s)
	if c.Time < m.seen || c.Context == ContextReread && t.predates(c, s) {
		m.flags |= flagDoubted
		t.requestReread(s)
		return false
	}
	if t.isLateWrite(c, s) {
		m.noteEvidence(c)
		return false
	}
	if c.Context != ContextReread && m.lastCPU() != c.CPU && c.Time-m.seen <= timestampMargin {
		t.requestReread(s)
	}
	if t.clears.absentOf.has(s) && c.Context == ContextReread && t.equalSignificant(s, c.Value) {
		t.clears.found++ // the load has skipped it; another value may be from a write since
	}
	t.unhold(s)
	if t.isRestored(m.version) {
		t.moveTail(s) // see Record.Undecided
	}
	return true
}

// isHeld reports whether an element of a queue is still a delete that waits.
func (t *Table) isHeld(e *heldDelete) bool {
	m := t.meta(e.slot)
	return m.is(flagHeld) && t.clears.absentOf.has(e.slot) == e.absent && !m.is(flagFree) && m.version == e.version
}

// awaitsReread reports whether a reread has to decide about an element of a queue, and requests it: the load balancer may have
// written the entry since, and the writer would replace that.
func (t *Table) awaitsReread(e *heldDelete) bool {
	if !t.isHeld(e) || !t.meta(e.slot).is(flagDoubted) {
		return false
	}
	t.requestReread(e.slot) // the caller of TakeRereads may have dropped the key with its map
	return true
}

// RestoresClear reports whether entries of a clear are about to be restored, or are being restored. While it is true, the
// absence of an entry from the map proves nothing, also at the next start: a part of the entries would not look like a clear.
// awaited reports that SettleDeletes waits for AllowRestore.
func (tx *Tx) RestoresClear() (restores, awaited bool) {
	x := &tx.t.clears
	return x.restoring, x.restoring && !x.allowed
}

// AllowRestore makes SettleDeletes restore the entries of the clear. The caller has removed the identity of the map.
func (tx *Tx) AllowRestore() { tx.t.clears.allowed = tx.t.clears.restoring }

// mayRestore begins to restore the entries of a clear. It reports whether AllowRestore was called since.
func (x *clears) mayRestore() bool {
	x.restoring = true
	return x.allowed
}

// endRestore ends the restore of a clear, unless another one is in progress.
func (x *clears) endRestore() {
	x.restoring = x.ending || x.absentCleared
	x.allowed = x.allowed && x.restoring
}

// SettleDeletes enters the deletes that have waited long enough, unless they are a clear. It restores the entries of a
// clear that has ended, after AllowRestore. It looks at up to limit deletes and returns true if there are more. now is the wall clock in
// nanoseconds. ended reports whether a process has ended; nil: it is not known.
func (tx *Tx) SettleDeletes(now int64, ended func(Process) bool, limit int) (more bool) {
	t := tx.t
	x := &t.clears
	if t.settleAbsent(limit) {
		return true
	}
	if x.queue.len() == 0 && !x.active {
		return false
	}
	if x.active {
		return t.settleClear(now, ended, limit)
	}
	first := x.queue.peek()
	wait := deleteDelay
	if now-x.latest < deleteDelay/4 && x.held >= x.least && t.left(maxRound+1, 3*x.held) < 3*x.held {
		wait = longDelay
	}
	if now-first.since < wait && first.since > x.passed {
		return false
	}
	if first.since > x.passed {
		if e := t.clearEvidence(ended); e.isClear() {
			x.active = true
			t.beginClear(Clear{At: first.when, Entries: x.held, Caller: e.caller})
			return t.settleClear(now, ended, limit)
		}
		x.passed = now - deleteDelay
	}
	for ; x.queue.len() > 0 && x.queue.peek().since <= x.passed; limit-- {
		if limit == 0 {
			return true
		}
		t.enterHeld(x.pop())
	}
	return false
}

// settleClear restores the entries of a clear that has ended.
func (t *Table) settleClear(now int64, ended func(Process) bool, limit int) (more bool) {
	x := &t.clears
	if !x.ending {
		x.clear.Entries = x.held
		gone := ended != nil && x.clear.Caller.ID != 0 && ended(x.clear.Caller.Process)
		if !gone && now-x.latest < clearEnds && now-x.clear.At < maxClear {
			return false
		}
		x.ending, x.endedAt = true, now
	}
	if !x.mayRestore() {
		return false
	}
	for ; x.queue.len() > 0 && x.queue.peek().since <= x.endedAt; limit-- {
		if limit == 0 {
			return true
		}
		if e := x.queue.peek(); t.awaitsReread(&e) {
			return false
		}
		if e := x.pop(); t.isHeld(&e) {
			t.restoreHeld(e.slot, x.decided)
		}
	}
	x.endClear()
	return false
}

// endClear ends an active clear after its entries were restored.
func (x *clears) endClear() {
	x.clear.Restored = true
	if x.decided {
		x.clear = Clear{}
	}
	x.active, x.ending, x.decided = false, false, false
	x.endRestore()
}

// restoreHeld makes the writer restore the entry of a delete that waits. kept reports that an operator has decided that it stays.
func (t *Table) restoreHeld(s uint32, kept bool) {
	t.markDirty(s)
	t.moveTail(s)
	if !kept {
		t.meta(s).flags |= flagCleared
	}
	t.stats.Cleared++
}

// enterHeld enters a delete that has waited. Its version is that of its time, so that a change of another node since then
// wins.
func (t *Table) enterHeld(e heldDelete) {
	if !t.isHeld(&e) {
		return
	}
	m := t.meta(e.slot)
	late := m.is(flagLateWrite)
	t.endHold(e.slot)
	c := Change{Key: t.key(e.slot), Time: max(e.when, m.seen), Op: OpDelete, Context: ContextSyscall, CPU: m.lastCPU()}
	switch {
	case t.keptWhileDrained(m):
		t.keepDeleted(&c, e.slot)
		return
	case t.protected(e.slot):
		t.markDirty(e.slot) // the owner has returned
		t.moveTail(e.slot)
		return
	}
	v, wins := t.winningVersion(&c, e.slot)
	if !wins {
		return
	}
	if at := t.versionAt(e.when); at > m.version {
		v = at
	}
	if t.enter(&c, e.slot, v); late {
		m.flags |= raced
		t.requestReread(e.slot)
	}
	t.stats.LocalAccepted++
}
