package table

// versionAt returns the version of a change at a time in wall clock nanoseconds.
func (t *Table) versionAt(now int64) Version {
	return Version(min(max(now+t.skew.at(now), 1), int64(maxVersion)))
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
	// since is the wall clock in nanoseconds of the last receipt of a version with that lead.
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
