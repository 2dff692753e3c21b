package kmap

import (
	"cmp"
	"math"
	"time"
)

const (
	// extendAfter is the number of regular scans in a row that must find the table unchanged before
	// the time between scans grows.
	extendAfter = 3
	// changeCheck is the longest time between two checks for a change that ends an extended interval.
	changeCheck = time.Second
	// restShare is the share of a core that scans of an unchanged map may use without a longer interval:
	// 1/restShare.
	restShare = 100
)

// unchangedScans are the regular scans in a row that found the table unchanged while the interval was
// allowed to grow.
type unchangedScans struct {
	count int
	at    changeCount   // after the last scan
	work  time.Duration // processor time of the last scan
}

// changeCount increases with each change of a table, whether or not it is sent.
type changeCount struct {
	head, unsent uint64
}

// finished records a regular scan. A change since the scan before ends the count.
func (u *unchangedScans) finished(at changeCount, mayExtend bool, work time.Duration) {
	u.count++
	if at != u.at || !mayExtend {
		u.count = 0
	}
	u.at, u.work = at, work
}

// interval returns the time from the start of the last scan to the start of the next one after n
// unchanged scans. It doubles with each of them, from Interval up to MaxInterval, and up to MaxCostlyInterval while the
// work of a scan is more than 1 % of a core.
func (o *ScannerOptions) interval(n int, work time.Duration) time.Duration {
	d := cmp.Or(o.Interval, defaultScanInterval)
	for ; n >= extendAfter; n-- {
		switch {
		case d < o.MaxInterval:
			d += min(d, o.MaxInterval-d)
		case d < o.MaxCostlyInterval && work*restShare > d:
			d += min(d, o.MaxCostlyInterval-d)
		default:
			return d
		}
	}
	return d
}

// IntervalAtRest returns the longest time from the start of a scan to the start of the next one, for a map that does
// not change and whose scan needs the given processor time.
func (o *ScannerOptions) IntervalAtRest(work time.Duration) time.Duration {
	return o.interval(math.MaxInt, work)
}

// due reports whether the next regular scan is due since the start of the last one, and if not,
// how long to wait before the next call. A change of the table ends an extended interval, and so does
// the end of the permission to extend it.
func (s *Scanner) due(since time.Duration) (due bool, wait time.Duration) {
	base := s.opts.Interval
	rest := s.opts.interval(s.unchanged.count, s.unchanged.work) - since
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
