package table

// versionAt returns the version of a change at a time of the table. It never decreases with the time: not
// between two changes around a step of the wall clock either, except in the case of FollowClock.
func (t *Table) versionAt(at int64) Version {
	v, c := t.clockVersion(at), &t.clock
	if at >= c.lowestSince {
		v = max(v, c.lowest)
	}
	return v
}

// clockVersion is versionAt without wallClock.lowest.
func (t *Table) clockVersion(at int64) Version {
	c := &t.clock
	v := at + c.offset + t.skew.at(at)
	if at < c.since {
		// The change is older than the step.
		v = min(at+c.before+c.skewBefore.at(at), c.since+c.offset+t.skew.at(c.since))
	}
	return Version(min(max(v, 1), int64(maxVersion)))
}

// wallClock relates the times of a table, which follow the monotonic clock, to the wall clock, which may be
// stepped. The lock of the table protects it.
type wallClock struct {
	// offset is the wall clock minus the time of the table, in nanoseconds.
	offset int64
	// since is the time of the table at which the offset was set. 0: it never changed.
	since int64
	// before and skewBefore are offset and Table.skew before that.
	before     int64
	skewBefore skew
	// lowest is the lowest version of changes at or after lowestSince, a time of the table: records that this node has handed
	// over may be ahead, and later changes are above them. 0: no handover has begun.
	lowest      Version
	lowestSince int64
	// withdrawAbove is the lowest version that Withdraw keeps. 0: no pass of Withdraw is under way.
	withdrawAbove Version
}

// FollowClock sets the wall clock minus the time of the table. at is the present time of the table. Versions
// follow the wall clock from then on, and do not decrease. After a step back they keep their lead as a skew,
// and grow more slowly than time until the wall clock has reached them.
//
// A lead above twice Options.MaxSkew is an exception: peers refuse such versions. FollowClock then returns
// true, and the caller calls Withdraw. Versions continue with a lead of Options.MaxSkew.
func (tx *Tx) FollowClock(at, offset int64) (withdraw bool) {
	t := tx.t
	c := &t.clock
	if offset == c.offset {
		return c.withdrawAbove > 0 // a pass that did not end, for example because the table was converted
	}
	lead, limit := int64(t.clockVersion(at))-at-offset, int64(t.opt.MaxSkew)
	*c = wallClock{offset: offset, since: at, before: c.offset, skewBefore: t.skew, lowest: c.lowest, lowestSince: c.lowestSince}
	if withdraw = limit > 0 && lead > 2*limit; withdraw {
		lead, c.lowest, c.withdrawAbove = limit, 0, Version(max(at+offset+2*limit, 1))
	}
	// Without grace: no version of a peer confirms the lead.
	t.skew = skew{max(lead, 0), at - skewGrace}
	return withdraw
}

// Withdraw gives a new version to the records of this incarnation whose versions are so far ahead of the
// wall clock that every peer with a correct clock has refused them. It is called after FollowClock, at a time
// of the table. It looks at up to limit records and returns true if there are more: the caller then calls it
// again with the same cursor. The first call needs a new cursor at position 0.
func (tx *Tx) Withdraw(now int64, c *Cursor, limit int) (more bool) {
	t := tx.t
	for range limit {
		s := c.nextBounded()
		if s == 0 {
			t.clock.withdrawAbove = 0
			return false
		}
		var m meta
		t.read(s, &m)
		if !t.withdrawn(&m) {
			continue
		}
		if s&compactBit != 0 {
			s = t.expandTombstone(t.log.hashOf(s), s)
		}
		t.stamp(s, t.versionAt(now), selfID)
		t.stats.Withdrawn++
		t.finishChange()
	}
	return true
}

// withdrawn reports whether Withdraw gives a record a new version.
func (t *Table) withdrawn(m *meta) bool {
	return t.clock.withdrawAbove > 0 && m.owner == selfID && m.version > t.clock.withdrawAbove
}

const (
	// skewGrace is the time in nanoseconds that a skew lasts without a version that confirms it. After
	// that, the skew loses one nanosecond every skewDecay nanoseconds. skewDecay is above 1, so that
	// versions still grow with time.
	skewGrace = 10_000_000_000
	skewDecay = 4
)

// skew is the lead of the peers' versions over this node's clock, with decay. One version far ahead raises
// it for a limited time. The lock of the table protects it.
type skew struct {
	// ahead is the skew in nanoseconds at time since, never negative and at most Options.MaxSkew unless
	// that is 0.
	ahead int64
	// since is the time of the table at the last receipt of a version with that lead.
	since int64
}

// at returns the skew in nanoseconds at a time.
func (s *skew) at(now int64) int64 {
	return max(s.ahead-max(now-s.since-skewGrace, 0)/skewDecay, 0)
}

// raise enters the lead of a received version, in nanoseconds. A lead above limit counts as limit; limit 0
// means no limit. A later write of the same key wins in any case, because its version follows that of the
// record.
func (s *skew) raise(ahead, now, limit int64) {
	if limit > 0 {
		ahead = min(ahead, limit)
	}
	if ahead > 0 && ahead >= s.at(now) {
		s.ahead, s.since = ahead, now
	}
}
