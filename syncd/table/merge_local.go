package table

// timestampMargin is the minimum distance, in nanoseconds, of the events of two CPUs for their times to
// show which write the map applied last. An interrupt can delay the hook, which takes the time, after the
// CPU released the lock of the map.
const timestampMargin = 1_000_000

// Local enters a change of the local map and returns its outcome.
//
// A change wins in two cases. In the first case its version is above the version of the record; the version
// of a change is its time plus the table's skew. In the second case it is later than all evidence of the
// key on this node. This incarnation then becomes the owner.
//
// A bpf(2) delete of a record that another live node owns is the expiry of a standby's copy. It does not
// replicate, and the outcome is Restored. A bpf(2) delete of an unversioned record does not replicate
// either: the record stays an unversioned tombstone until the initial sync delivers the owner's record.
func (tx *Tx) Local(c *Change) Outcome {
	o := tx.t.local(c)
	tx.t.finishChange()
	st := &tx.t.stats
	switch o {
	case Accepted:
		st.LocalAccepted++
	case Unchanged:
		st.LocalUnchanged++
	case Stale:
		st.LocalStale++
	case Restored:
		st.Restored++
	}
	return o
}

// local enters a change without finishChange and without the counters of accepted, unchanged, stale and
// restored changes.
func (t *Table) local(c *Change) Outcome {
	// Evictions are an exception. An entry that syncd's own write evicted from an LRU map has left the map
	// like any other victim.
	if c.Context == ContextOwn && c.Op != OpEvict {
		t.stats.LocalOwn++
		return Ignored
	}
	if len(c.Key) != t.opt.KeySize || c.Op > OpEvict || (c.Op == OpUpdate && len(c.Value) != t.opt.ValueSize) {
		t.stats.Refused++
		return Refused
	}
	if c.Context == ContextReread {
		t.lastRead = t.now
	}
	h, s := t.findForChange(c.Key)
	// An event shows that values of open readings may be outdated. A reread of a dirty record has no
	// meaning, so the key is reread after the write.
	switch {
	case s == 0:
	case c.Context != ContextReread:
		t.invalidateReadings(s)
		t.useCopy(c.Key)
	case t.meta(s).is(flagDirty):
		t.requestReread(s)
		return Ignored
	default:
		if o, done := t.restoreCopy(c, s); done {
			return o
		}
		if !t.noteTimer(c, s) {
			return Stale
		}
	}
	switch c.Op {
	case OpEvict:
		return t.localEvict(c, s)
	case OpDelete:
		return t.localDelete(c, h, s)
	default:
		return t.localUpdate(c, h, s)
	}
}

// localUpdate enters an update, or a reread that found the key. s is the slot of the key, 0 if it has no
// record.
func (t *Table) localUpdate(c *Change, h, s uint32) Outcome {
	if s == 0 {
		if c.Read.markedAbsent(h) {
			t.queueUnknownReread(c.Key) // the value may be older than the delete of the key
			return Stale
		}
		if s = t.create(h, c.Key); s == 0 {
			return Refused
		}
		t.enter(c, s, t.versionAt(c.Time))
		t.settleCreated(c, h, s)
		return Accepted
	}
	m := t.meta(s)
	// The map still holds the entry that the owner expired.
	if m.is(flagReleased) && c.Context == ContextReread && t.equalCarried(s, c.Value) {
		m.noteEvidence(c)
		return Unchanged // the data plane has not used it since its owner expired it
	}
	if m.is(flagHeld) && !t.presentAgain(c, s) {
		return Stale
	}
	if t.ownWrite(c, s) {
		m.flags &^= raced // only once: a second write of the value is a change
		m.noteEvidence(c)
		t.markDirty(s)
		t.moveTail(s)
		return Stale
	}
	// A write of the same value adopts an unversioned record, because the data plane uses the key now. A reread does not show
	// such a use.
	adopts := c.Context != ContextReread && (m.is(flagUnversioned) || t.datesRecord(c, m))
	if m.live() && !adopts && t.equalSignificant(s, c.Value) && !t.refreshes(c, s) {
		// The value may be older than the record's last change or than syncd's last write.
		if c.Context == ContextReread && (m.is(flagEvicted) || !t.equalCarried(s, c.Value)) && t.predatesWrite(c, s) {
			t.requestReread(s)
			return Stale
		}
		// A reread with a reading is later than every event so far. Without one, the value may have been
		// read before the eviction.
		switch {
		case c.Time >= m.seen || c.Read != nil:
			t.setFlags(m, flagEvicted, 0)
			t.keepUnsent(c, s)
		case m.is(flagEvicted) && m.seen-c.Time <= timestampMargin:
			t.requestReread(s) // the write may have come after the eviction
		}
		if c.Context != ContextReread {
			t.replaced.change(c.Key, c.Value)
		}
		m.noteEvidence(c)
		return Unchanged
	}
	recreated := !m.live()
	outcome := t.change(c, s)
	if recreated && outcome == Accepted {
		t.settleCreated(c, h, s)
	}
	return outcome
}

// datesRecord reports whether an event of a write of the same value gives an adopted or restored record the time of the write. The
// record of a live peer, or one that this node has handed over, keeps its version.
func (t *Table) datesRecord(c *Change, m *meta) bool {
	return t.hasNoTime(m.version) && c.Read == nil && c.Time >= m.seen && !t.sentByLivePeer(m) && !t.keptWhileDrained(m)
}

// settleCreated requests rereads of a key that a change has created.
func (t *Table) settleCreated(c *Change, h, s uint32) {
	// A delete of the key on another CPU may have come after this write.
	if deleted, packet := t.earlyDeletes.match(h, c); deleted {
		t.requestReread(s)
		t.notePacketDelete(s, packet)
	}
	t.queueSettling(0, h, s, c.Time, neverChanged)
}

// change enters a change that differs from the record's content, if the change wins.
func (t *Table) change(c *Change, s uint32) Outcome {
	m := t.meta(s)
	v, wins := t.winningVersion(c, s)
	if !wins {
		return Stale
	}
	// again is true if the kernel's content may differ from the change. race is true if a write by syncd may
	// have reached the map after a delete.
	again := t.uncertain(c, m)
	race := m.is(flagDirty|flagWritten) || !t.ours(m.owner)
	// The data plane wrote the entry before the writer deleted it from a full map. The event arrived later.
	gone := m.flags&displaced == displaced && c.Op == OpUpdate && c.Time <= m.seen
	t.enter(c, s, v)
	if gone {
		t.markDirty(s)
	}
	if again {
		t.requestReread(s)
	} else {
		m.flags &^= flagPacketDelete
	}
	if c.Op == OpDelete && c.Context < ContextSyscall {
		m.flags |= flagPacketDelete // the event of an earlier write on another CPU may follow
	}
	if race && c.Op != OpUpdate && c.Context != ContextReread {
		m.flags |= raced
	}
	return Accepted
}

// winningVersion returns the version of a change that differs from the record's content. wins is false if the change does
// not win: the key is then reread.
func (t *Table) winningVersion(c *Change, s uint32) (v Version, wins bool) {
	m := t.meta(s)
	v = t.versionAt(c.Time)
	switch {
	case c.Context == ContextReread && t.predates(c, s):
		t.requestReread(s)
		return 0, false
	case m.live() && m.owner == selfID && !m.is(flagUnversioned|flagEvicted|flagHeld) && m.seen-c.Time > timestampMargin &&
		(!m.is(flagCleared) || c.Op != OpDelete || c.Context >= ContextSyscall): // a reread that found no entry saw this delete
		// The change is older than the newest evidence for a record of this node. Its version may still be
		// higher if the skew has grown since. For keys that a reread has found absent, the evidence may be
		// newer than changes whose events have not arrived yet.
	case v > m.version || (c.Time >= m.seen && t.withdrawn(m)):
		return v, true
	case c.Time >= m.seen:
		// The change is later than all evidence, so it must win. A peer may have raised the record's
		// version above the local clock.
		return m.version + 1, true
	}
	t.noteLateChange(c, s)
	return 0, false
}

// enter makes a change the record's content, with version v and this incarnation as the owner.
func (t *Table) enter(c *Change, s uint32, v Version) {
	b := t.observe(c, s)
	t.replaced.forget(c.Key)
	t.unheld.noteChanged(c.Key) // from now on, the map is evidence for the key
	m := t.meta(s)
	t.joinEligible(c, s)
	revived := (!m.live() || m.is(flagEvicted)) && c.Op == OpUpdate
	if m.noteEvidence(c); revived {
		// The record was seen as deleted or evicted at the time of a receipt or a reread. The next delete of
		// the key may be earlier than that.
		m.seen = c.Time
	}
	deletes := m.flags & (flagDeleteSeen | flagPacketDelete) // may be later than this change
	t.put(s, c.Value, c.Op != OpUpdate, c.Time)
	t.setFlags(m, flagWritten|flagEvicted, deletes)
	t.clearDirty(s)
	t.stamp(s, v, selfID)
	t.hold(s, b)
}

// noteEvidence notes a change as evidence for the record, even if the change modifies nothing. An earlier
// event of another CPU may still arrive.
func (m *meta) noteEvidence(c *Change) {
	switch {
	case c.Context == ContextReread:
		m.flags &^= flagUncertain | flagDoubted
		if !m.is(flagReread) { // otherwise the reread after the delete follows
			m.flags &^= flagDeleteSeen
			if m.live() || c.Op == OpUpdate { // an absence confirms the delete of a tombstone
				m.flags &^= flagPacketDelete
			}
		}
		m.setCPU(cpuNone) // a reread is not ordered with the events of any CPU
	case m.seen == 0 || c.Time-m.seen > timestampMargin:
		m.setCPU(c.CPU)
	case m.lastCPU() != c.CPU:
		m.setCPU(cpuNone)
	}
	m.seen = max(m.seen, c.Time)
}
