package table

// A data plane may arm a bpf_timer in each entry, which deletes the entry in the end. An entry that syncd wrote
// has no armed timer. While its owner is live, the owner's timer deletes it on all nodes. After a takeover, this
// node deletes it instead, once it has not changed for Options.TakeoverExpiry.
//
// An update leaves out the bytes of a timer, and the kernel sets them to zero. They have another value once the data
// plane has set the timer up. A load therefore finds which entries an earlier incarnation of this node has written.

// takeover is the state of ExpireTakenOver. The lock of the table protects it.
type takeover struct {
	// slot is the next slot of the present pass. 0: no pass is in progress.
	slot uint32
	// began is the wall clock in nanoseconds at which the latest pass began.
	began int64
	// since is the wall clock in nanoseconds of the first pass for the present kernel map. An entry that syncd
	// wrote counts as unchanged from then on at the earliest. 0: there was no pass yet.
	since int64
	// scanned is the wall clock in nanoseconds at which the latest complete scan began. 0: none is complete.
	scanned int64
}

// takeoverPasses is the number of passes during Options.TakeoverExpiry.
const takeoverPasses = 8

// ExpireTakenOver deletes entries without an armed timer that have not changed for Options.TakeoverExpiry. These
// are the entries of owners that have left, and those of this node's records that syncd wrote. Only a scan shows
// whether the data plane has changed an entry in place, so an entry waits for one that began after that time. The delete
// replicates with a version just above that of the record: a node that has used the entry since keeps it. It
// looks at up to limit records and returns true if there are more. now is the wall clock in nanoseconds.
func (tx *Tx) ExpireTakenOver(now int64, limit int) (more bool) {
	t := tx.t
	x, ttl := &t.takeover, int64(t.opt.TakeoverExpiry)
	if ttl == 0 || (x.slot == 0 && now-x.began < ttl/takeoverPasses) {
		return false
	}
	if x.slot == 0 {
		t.beginTakeoverPass(now)
	}
	for ; x.slot < t.allocated && limit > 0; x.slot++ {
		limit--
		if at := t.takenOver(t.meta(x.slot)); at > 0 && x.scanned-at >= ttl {
			t.expireTakenOver(x.slot, now)
		}
	}
	if x.slot >= t.allocated {
		x.slot = 0
	}
	return x.slot > 0
}

// beginTakeoverPass begins a pass, and notes which owners have left since the last one.
func (t *Table) beginTakeoverPass(now int64) {
	x := &t.takeover
	x.slot, x.began = firstSlot, now
	if x.since == 0 {
		x.since = now
	}
	for i := range t.owners.list {
		if o := &t.owners.list[i]; o.gone && o.leftAt == 0 {
			o.leftAt = now
		}
	}
}

// takenOver returns since when an entry without an armed timer is unchanged, as wall clock in nanoseconds, or 0
// for other records. A record that the writer or a reread has yet to settle counts as another one.
func (t *Table) takenOver(m *meta) (since int64) {
	const open = flagFree | flagTombstone | flagUnversioned | flagDirty | flagEvicted | flagUncertain | flagHeld
	o := &t.owners.list[m.owner]
	switch {
	case m.is(open):
		return 0
	case o.ours && m.is(flagEntry):
		since = t.takeover.since
	case !o.ours && o.gone && o.leftAt > 0:
		since = max(o.leftAt, t.takeover.since)
	}
	if since > 0 {
		since = max(since, int64(m.version))
	}
	return since
}

// expireTakenOver deletes a record and its entry. The next version loses against each later change.
func (t *Table) expireTakenOver(s uint32, now int64) {
	v := t.meta(s).version + 1
	t.put(s, nil, true, now)
	t.markDirty(s)
	t.stamp(s, v, selfID)
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
// the entry, and deletes the entry by it.
func (t *Table) noteTimer(c *Change, s uint32) {
	m := t.meta(s)
	if c.Op == OpUpdate && len(t.opt.Timers) > 0 && m.is(flagEntry) && !t.lacksTimer(c.Value) && !t.predatesWrite(c, s) {
		m.flags &^= flagEntry
	}
}
