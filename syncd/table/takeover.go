package table

import "time"

// A data plane may arm a bpf_timer in each entry, which deletes the entry in the end. An entry that syncd wrote
// has no armed timer. While its owner is live, the owner's timer deletes it on all nodes. After a takeover, this
// node deletes it instead, once it was neither changed nor used for Options.TakeoverExpiry.
//
// An update leaves out the bytes of a timer, and the kernel sets them to zero. They have another value once the data
// plane has set the timer up. A load therefore finds which entries an earlier incarnation of this node has written.

// takeover is the state of ExpireTakenOver. The lock of the table protects it.
type takeover struct {
	// slot is the next slot of the present pass. 0: no pass is in progress.
	slot uint32
	// began is the wall clock in nanoseconds at which the latest pass began.
	began int64
	// since is the wall clock in nanoseconds from which on each change and each use of an entry was observed. An entry
	// that syncd wrote counts as unused from then on at the earliest. 0: the observation has not begun.
	since int64
	// scanned is the wall clock in nanoseconds at which the latest complete scan began. 0: none is complete.
	scanned int64
}

// takeoverPasses is the number of passes during Options.TakeoverExpiry.
const takeoverPasses = 8

// Uses shows when the data plane of this node has used an entry without a change.
type Uses interface {
	// Idle returns for how long a key was certainly not used, and whether a use precedes that time. Otherwise
	// the time is that of the observation.
	Idle(key []byte) (idle time.Duration, used bool)
}

// ObserveTakeover begins the observation of entries, unless it has begun, and notes which owners have left since the last
// call. It returns true if ExpireTakenOver has work. now is the wall clock in nanoseconds.
func (tx *Tx) ObserveTakeover(now int64) (due bool) {
	t := tx.t
	x, ttl := &t.takeover, int64(t.opt.TakeoverExpiry)
	t.forgetUndecoded(func(k undecodedKey) bool { return t.owners.gone[k.peer.Node] })
	if x.since == 0 {
		x.since = now
	}
	for i := range t.owners.list {
		if o := &t.owners.list[i]; (o.departed() || o.ended) && o.leftAt == 0 {
			o.leftAt = now
		}
	}
	return ttl > 0 && (x.slot > 0 || now-x.began >= ttl/takeoverPasses)
}

// PostponeTakeover begins the observation anew, because a change or a use may not have been observed, or because the clock
// has stepped. now is the wall clock in nanoseconds.
func (tx *Tx) PostponeTakeover(now int64) {
	t := tx.t
	x := &t.takeover
	x.since, x.began, x.scanned = now, min(x.began, now), 0
	t.scan.began = min(t.scan.began, now)
	for i := range t.owners.list {
		t.owners.list[i].leftAt = min(t.owners.list[i].leftAt, now)
	}
}

// ExpireTakenOver deletes entries without an armed timer that were neither changed nor used for Options.TakeoverExpiry.
// These are the entries of owners that have left, and those of this node's records that syncd wrote. Only a scan shows
// whether the data plane has changed an entry in place, so an entry waits for one that began after that time. The delete
// replicates with a version just above that of the record: a node that has changed the entry since keeps it. A node
// that only uses an entry takes it over, which postpones the expiry on all nodes.
//
// It looks at up to limit records, and returns how many it has deleted, and true if there are more. now is the wall
// clock in nanoseconds. If uses is nil, each use changes the entry. ObserveTakeover precedes each pass.
func (tx *Tx) ExpireTakenOver(now int64, uses Uses, limit int) (expired int, more bool) {
	t := tx.t
	x := &t.takeover
	if x.slot == 0 {
		x.slot, x.began = firstSlot, now
	}
	for ; x.slot < t.allocated && limit > 0; x.slot++ {
		limit--
		at := t.takenOver(x.slot)
		if at == 0 {
			continue
		}
		switch wait := t.takeoverWait(x.slot); {
		case t.usedAfterTakeover(x.slot, now, uses):
			t.takeOverUsed(x.slot, now)
		case x.scanned-at >= int64(wait) && idleFor(t.key(x.slot), uses, wait):
			t.expireTakenOver(x.slot, now)
			expired++
		}
	}
	if x.slot >= t.allocated {
		x.slot = 0
	}
	return expired, x.slot > 0
}

// takeoverWait returns the time without a use after which a record expires.
func (t *Table) takeoverWait(s uint32) time.Duration {
	if t.owners.list[t.meta(s).owner].ours {
		return t.opt.TakeoverExpiry
	}
	return t.opt.TakeoverExpiry + t.opt.TakeoverDelay
}

// idleFor reports whether a key was not used for a time. If uses is nil, changes alone decide.
func idleFor(key []byte, uses Uses, wait time.Duration) bool {
	if uses == nil {
		return true
	}
	idle, _ := uses.Idle(key)
	return idle >= wait
}

// takenOver returns since when an entry without an armed timer is unchanged, as wall clock in nanoseconds, or 0
// for other records. A record that the writer or a reread has yet to settle counts as another one, and so does one whose entry
// a live peer uses.
func (t *Table) takenOver(s uint32) (since int64) {
	m := t.meta(s)
	const open = flagFree | flagTombstone | flagUnversioned | flagDirty | flagEvicted | flagUncertain | flagHeld
	o := &t.owners.list[m.owner]
	switch {
	case m.is(open), t.takeover.since == 0:
		return 0
	case o.ours && m.is(flagEntry) && !t.handedOver(m): // peers expire what was handed over
		since = t.takeover.since
	case !o.ours && o.leftAt > 0 && (o.gone || t.handedOver(m)):
		since = max(o.leftAt, t.takeover.since)
	}
	if since > 0 {
		since = t.unusedByPeer(s, since)
	}
	if since > 0 {
		since = max(since, int64(t.changed(m.version))-t.clock.offset)
	}
	return since
}

// usedAfterTakeover reports whether this node has used the entry of an owner since it has left.
func (t *Table) usedAfterTakeover(s uint32, now int64, uses Uses) bool {
	o := &t.owners.list[t.meta(s).owner]
	if o.ours || uses == nil {
		return false
	}
	idle, used := uses.Idle(t.key(s))
	return used && now-int64(idle) > o.leftAt
}

// takeOverUsed makes a record this node's, with the value that it has. The other nodes, which do not see the uses, keep
// the entry while this node is live.
func (t *Table) takeOverUsed(s uint32, now int64) {
	v := max(t.versionAt(now), t.meta(s).version+1)
	t.stamp(s, v, selfID)
	// The map holds the entry, because the record is not dirty. A timer in it would be this node's own.
	t.setFlags(t.meta(s), 0, flagEntry)
	t.stats.TakeoversUsed++
}

// expireTakenOver deletes a record and its entry.
func (t *Table) expireTakenOver(s uint32, now int64) {
	t.removeNext(s, now)
	t.stats.TakeoversExpired++
}

// lacksTimer reports whether a value that was read from the map has no timer that a data plane has set up. It returns
// false if Options.Timers is nil.
func (t *Table) lacksTimer(value []byte) bool {
	for _, r := range t.opt.Timers {
		for _, b := range value[r.Offset:][:r.Size] {
			if b != 0 {
				return false
			}
		}
	}
	return len(t.opt.Timers) > 0
}

// noteTimer notes that a reread, or a scan, shows a timer in an entry. The data plane has set it up since syncd wrote
// the entry, and deletes the entry by it. It returns false if the read is outdated, and requests another one: the entry might
// expire before the next scan.
func (t *Table) noteTimer(c *Change, s uint32) bool {
	m := t.meta(s)
	switch {
	case c.Op != OpUpdate || !t.showsTimer(c, m):
	case t.predatesWrite(c, s):
		t.requestReread(s)
		return false
	default:
		t.setFlags(m, flagEntry, 0)
	}
	return true
}

// showsTimer reports whether a value that was read has a timer, and the table takes the entry for one without a timer.
func (t *Table) showsTimer(c *Change, m *meta) bool {
	return len(t.opt.Timers) > 0 && m.is(flagEntry) && !t.lacksTimer(c.Value)
}
