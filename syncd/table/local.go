package table

// sameMoment is how far apart in nanoseconds the events of two CPUs must be for
// their times to tell which write the map took last. Between the map's lock and
// the hook that takes the time there is an interrupt's worth of delay.
const sameMoment = 1_000_000

// Local enters a change of the local map.
//
// A change wins if its version, its time plus the table's skew, is above the
// record's, or if it is later than everything known of the key here. It then
// makes this incarnation the owner. Only a delete that means it travels: a
// bpf(2) delete of a record that another live node owns is the expiry of a
// standby's copy, and the record is Restored instead. Of a record that nobody has
// claimed it is forgotten, until whoever owns it tells.
func (tx *Tx) Local(c *Change) Outcome {
	o := tx.t.local(c)
	tx.t.refreeze()
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

func (t *Table) local(c *Change) Outcome {
	// Not so evictions: what the daemon's own write pushed out of an LRU map is
	// gone like any other victim.
	if c.Context == ContextOwn && c.Op != OpEvict {
		t.stats.LocalOwn++
		return Ignored
	}
	if len(c.Key) != t.opt.KeySize || c.Op > OpEvict || (c.Op == OpUpdate && len(c.Value) != t.opt.ValueSize) {
		t.stats.Refused++
		return Refused
	}
	h, s := t.open(c.Key)
	switch {
	case s == 0:
	case c.Context != ContextReread:
		t.outdate(s)
	case t.meta(s).is(flagDirty):
		t.recheck(s)
		return Ignored
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

func (t *Table) localUpdate(c *Change, h, s uint32) Outcome {
	if s == 0 {
		if c.Read.missed(h) {
			t.rereadUnknown(c.Key) // it may be from before the key was deleted
			return Stale
		}
		if s = t.create(h, c.Key); s == 0 {
			return Refused
		}
		t.enter(c, s, t.versionAt(c.Time))
		if t.strays.match(h, c) {
			t.recheck(s)
		}
		t.settleLater(0, h, s, c.Time, neverChanged)
		return Accepted
	}
	m := t.meta(s)
	if m.is(flagReleased) && c.Context == ContextReread && t.held(s, c.Value) {
		m.witness(c)
		return Unchanged // not used since its owner gave it up
	}
	if t.ownWrite(c, s) {
		m.flags &^= raced // once: whoever writes it again means it
		m.witness(c)
		t.markDirty(s)
		t.moveTail(s)
		return Stale
	}
	// A write to an unversioned record claims it even when it changes nothing:
	// the data plane uses that key now. To have read it again says nothing new.
	claims := m.is(flagUnversioned) && c.Context != ContextReread
	if m.live() && !claims && t.same(s, c.Value) && !t.refreshes(c, s) {
		if c.Context == ContextReread && (m.is(flagEvicted) || !t.held(s, c.Value)) && t.overwritten(c, s) {
			t.recheck(s)
			return Stale
		}
		if c.Time >= m.seen {
			m.flags &^= flagEvicted // unless it was read before it was thrown out
			t.keepUntold(c, s)
		}
		m.witness(c)
		return Unchanged
	}
	again := !m.live()
	outcome := t.change(c, s)
	if again && outcome == Accepted {
		t.settleLater(0, h, s, c.Time, neverChanged)
	}
	return outcome
}

// refreshes reports whether a change that is none by itself is to be told
// nevertheless, because the record was told long ago.
func (t *Table) refreshes(c *Change, s uint32) bool {
	m := t.meta(s)
	if t.opt.Refresh == 0 || m.is(flagUnversioned) || t.versionAt(c.Time) < m.version+Version(t.opt.Refresh) {
		return false
	}
	// To find a value as it was says nothing; to write it anew says that it is used.
	touched := m.is(flagUntold) || !t.held(s, c.Value) || (c.Context < ContextSyscall && t.foreign(m))
	if touched {
		t.stats.Refreshed++
	}
	return touched
}

// keepUntold takes over a value that nobody is told for now.
func (t *Table) keepUntold(c *Change, s uint32) {
	if !t.held(s, c.Value) {
		t.meta(s).flags |= flagUntold
	}
	copy(t.value(s), c.Value)
}

func (t *Table) localDelete(c *Change, h, s uint32) Outcome {
	if s == 0 {
		t.vanished(h, c.Time, c.CPU)
		if t.loading != nil {
			t.loading.note(c)
		}
		return Unchanged
	}
	m := t.meta(s)
	if !m.live() || (m.is(flagEvicted) && c.Context == ContextReread) {
		if m.is(flagReleased) && t.predates(c, s) {
			t.recheck(s) // it may have been written since
			return Stale
		}
		if m.is(flagReleased) && m.is(flagDirty) {
			t.markDirty(s) // the writer may have put it back after that
			t.moveTail(s)
		}
		t.unrelease(m)
		m.witness(c)
		return Unchanged
	}
	if c.Context == ContextReread && t.opt.EvictionsUnseen {
		if t.predates(c, s) {
			t.recheck(s)
			return Stale
		}
		m.witness(c)
		return t.localEvict(c, s) // put back it would drive out another
	}
	if m.is(flagUnversioned) && c.Context >= ContextSyscall {
		return t.vanish(c, s)
	}
	if t.foreign(m) && c.Context >= ContextSyscall {
		if c.Context == ContextReread && t.predates(c, s) {
			t.recheck(s)
			return Stale
		}
		t.markDirty(s)
		t.moveTail(s)
		return Restored
	}
	return t.change(c, s)
}

// vanish notes that a key which nobody has claimed yet is not in the map any more. Whose
// it was will be told: a peer's is put back then, one of an earlier incarnation of this
// node is deleted.
func (t *Table) vanish(c *Change, s uint32) Outcome {
	m := t.meta(s)
	if c.Context == ContextReread && t.predates(c, s) {
		t.recheck(s)
		return Stale
	}
	m.witness(c)
	t.clearDirty(s)
	t.kill(s, c.Time)
	return Accepted
}

// localEvict notes that the kernel no longer holds a key, so that not finding
// it is no surprise, and that it is written again when its owner changes it.
func (t *Table) localEvict(c *Change, s uint32) Outcome {
	t.stats.Evictions++
	if s == 0 {
		return Ignored
	}
	if m := t.meta(s); !m.live() {
		if m.is(flagReleased) && (m.is(flagDirty) || t.predates(c, s)) {
			t.recheck(s) // it may have been written since
			return Ignored
		}
		t.unrelease(m)
		return Ignored
	}
	if m := t.meta(s); !t.opt.EvictionDeletes || t.foreign(m) {
		// A dirty record is about to be written anyway.
		if !m.is(flagDirty) {
			if t.predates(c, s) || (c.Context != ContextReread && m.cpu != c.CPU && c.Time-m.seen <= sameMoment) {
				t.recheck(s) // it may have been written since
			}
			m.flags |= flagEvicted
			m.seen = max(m.seen, c.Time)
			t.queueEvicted(s)
		}
		return Ignored
	}
	if t.meta(s).is(flagUnversioned) {
		return t.vanish(c, s)
	}
	return t.change(c, s)
}

// foreign reports whether another node that is still there owns the record.
func (t *Table) foreign(m *meta) bool {
	o := &t.owners.list[m.owner]
	return !m.is(flagUnversioned) && !o.ours && !o.gone
}

// change enters a change that differs from what the record says, if it wins.
func (t *Table) change(c *Change, s uint32) Outcome {
	m := t.meta(s)
	v := t.versionAt(c.Time)
	switch {
	case c.Context == ContextReread && t.predates(c, s):
		t.recheck(s)
		return Stale
	case m.live() && m.owner == selfID && !m.is(flagUnversioned|flagEvicted) && m.seen-c.Time > sameMoment:
		// Older than the newest evidence for an own record. Its version may be higher all the same,
		// if the skew has grown since. Of deleted and evicted records the evidence may be newer than
		// changes that are still to come.
		t.outrun(c, s)
		return Stale
	case v > m.version:
	case c.Time >= m.seen:
		// Later than all evidence, so it must win, although a version that was
		// raised above a peer's is ahead of the clock.
		v = m.version + 1
	default:
		t.outrun(c, s)
		return Stale
	}
	again := t.doubtful(c, m)
	race := m.is(flagDirty|flagWritten) || !t.ours(m.owner)
	// Written before the daemon took the key out of a full map, told after.
	gone := m.flags&displaced == displaced && c.Op == OpUpdate && c.Time <= m.seen
	t.enter(c, s, v)
	if gone {
		t.markDirty(s)
	}
	if again {
		t.recheck(s)
	}
	if race && c.Op != OpUpdate && c.Context != ContextReread {
		m.flags |= raced
	}
	return Accepted
}

// outrun notes a change that arrives after a later one, and has the key read again: times are not exact
// enough to order two CPUs. A dirty record is not read, because the writer is about to write it; if both
// changes came at one moment it may have done so.
func (t *Table) outrun(c *Change, s uint32) {
	m := t.meta(s)
	again := !m.is(flagDirty) || m.seen-c.Time <= sameMoment
	m.witness(c)
	if again {
		t.recheck(s)
	}
}

// raced marks a tombstone of this node's whose last value the daemon may have written
// after the delete: it was on its way into the map when the data plane deleted the key.
// The slot still has that value, as the bytes of a tombstone are left alone.
const raced = flagUntold

// ownWrite reports whether what a reread found of a deleted key is what the daemon wrote
// itself. It would come back to life otherwise, with nobody using it.
func (t *Table) ownWrite(c *Change, s uint32) bool {
	m := t.meta(s)
	const asked = raced | flagDoubt
	return c.Context == ContextReread && !m.live() && m.flags&asked == asked && !t.predates(c, s) && t.held(s, c.Value)
}

// predates reports whether a reread may have been made before the newest
// evidence for the record, or before the daemon's own last write to it.
func (t *Table) predates(c *Change, s uint32) bool {
	return t.overwritten(c, s) || c.Time < t.meta(s).seen
}

// overwritten reports whether a reread may have been made before the last change of the
// record, or before the daemon's own last write to it.
func (t *Table) overwritten(c *Change, s uint32) bool {
	if c.Read != nil {
		return c.Read.outdates(s)
	}
	return t.meta(s).is(flagWritten)
}

// doubtful reports whether the kernel may hold something else than the change
// that is about to be entered.
func (t *Table) doubtful(c *Change, m *meta) bool {
	switch {
	case m.is(flagUnversioned):
		return !m.live() // it may have vanished after that
	case c.Context == ContextReread:
		// A write may land after the time in its event, and after the read.
		return c.Time-m.seen <= sameMoment
	case m.is(flagWritten), !t.ours(m.owner):
		// The daemon's own write of the record may have come later.
		return true
	default:
		return c.Time < m.seen || (m.cpu != c.CPU && c.Time-m.seen <= sameMoment)
	}
}

// enter makes a change the record's content.
func (t *Table) enter(c *Change, s uint32, v Version) {
	m := t.meta(s)
	revived := !m.live() && c.Op == OpUpdate
	if m.witness(c); revived {
		m.seen = c.Time // that of the delete may be the time at which the table learnt of it
	}
	t.put(s, c.Value, c.Op != OpUpdate, c.Time)
	m.flags &^= flagWritten | flagEvicted
	t.clearDirty(s)
	t.stamp(s, v, selfID)
}

// witness notes a change as evidence for the record, also when it brings
// nothing new: an event of another CPU may be underway.
func (m *meta) witness(c *Change) {
	switch {
	case c.Context == ContextReread:
		m.flags &^= flagDoubt
		m.cpu = cpuNone // it has no place in the order of any CPU's events
	case m.seen == 0 || c.Time-m.seen > sameMoment:
		m.cpu = c.CPU
	case m.cpu != c.CPU:
		m.cpu = cpuNone
	}
	m.seen = max(m.seen, c.Time)
}

// versionAt returns the version of a change made at a time.
func (t *Table) versionAt(now int64) Version {
	return Version(min(max(now+t.skew.at(now), 1), int64(maxVersion)))
}

const (
	// skewGrace is how long in nanoseconds a skew lasts that no record confirms, and
	// skewDecay how many nanoseconds it takes from then on to lose one. Versions still
	// grow with time.
	skewGrace = 10_000_000_000
	skewDecay = 4
)

// skew is how far ahead of this node's clock peers' versions are. One record far ahead
// moves it for a while, not for ever.
type skew struct {
	ahead int64
	since int64 // when a record was that far ahead last
}

// at returns the skew at a time.
func (s *skew) at(now int64) int64 {
	return max(s.ahead-max(now-s.since-skewGrace, 0)/skewDecay, 0)
}

// raise takes in that a version was so far ahead, of which at most limit counts; 0 is no
// limit. A write of that key wins all the same, by the key's version.
func (s *skew) raise(ahead, now, limit int64) {
	if limit > 0 {
		ahead = min(ahead, limit)
	}
	if ahead > 0 && ahead >= s.at(now) {
		s.ahead, s.since = ahead, now
	}
}
