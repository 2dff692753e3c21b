package kmap

import "time"

const (
	// extendAfter is the number of regular scans in a row that must find the table unchanged before
	// the time between scans grows.
	extendAfter = 3
	// changeCheck is the longest time between two checks for a change that ends an extended interval.
	changeCheck = time.Second
)

// unchangedScans are the regular scans in a row that found the table unchanged while the interval was
// allowed to grow.
type unchangedScans struct {
	count int
	at    changeCount // after the last scan
}

// changeCount increases with each change of a table, whether or not it is sent.
type changeCount struct {
	head, unsent uint64
}

// finished records a regular scan. A change since the scan before ends the count.
func (u *unchangedScans) finished(at changeCount, mayExtend bool) {
	u.count++
	if at != u.at || !mayExtend {
		u.count = 0
	}
	u.at = at
}

// interval returns the time from the start of the last scan to the start of the next one. It
// doubles with each unchanged scan, from base up to limit.
func (u *unchangedScans) interval(base, limit time.Duration) time.Duration {
	d := base
	for n := extendAfter; n <= u.count && d < limit; n++ {
		d *= 2
	}
	return max(base, min(d, limit))
}

// due reports whether the next regular scan is due since the start of the last one, and if not,
// how long to wait before the next call. A change of the table ends an extended interval, and so does
// the end of the permission to extend it.
func (s *Scanner) due(since time.Duration) (due bool, wait time.Duration) {
	base := s.opts.Interval
	rest := s.unchanged.interval(base, s.opts.MaxInterval) - since
	switch {
	case rest <= 0:
		return true, 0
	case since < base:
		return false, min(rest, base-since)
	case s.changes() != s.unchanged.at || !s.mayExtend():
		return true, 0
	}
	return false, min(rest, base, changeCheck)
}

// mayExtend reports whether the interval may be longer than the configured one now.
func (s *Scanner) mayExtend() bool {
	return s.opts.MayExtend != nil && s.opts.MayExtend()
}

// changes returns the table's count of changes.
func (s *Scanner) changes() changeCount {
	st := s.t.Stats()
	return changeCount{st.Head, st.Unsent}
}
