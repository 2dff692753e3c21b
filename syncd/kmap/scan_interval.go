package kmap

import (
	"time"

	"mapsync/syncd/table"
)

// extendAfter is the number of regular scans in a row that must find the table unchanged before
// the time between scans grows.
const extendAfter = 3

// unchangedScans are the regular scans in a row that found the table unchanged while the interval was
// allowed to grow.
type unchangedScans struct {
	count int
	head  uint64 // the table's position after the last scan
}

// finished records a regular scan. A change since the scan before ends the count.
func (u *unchangedScans) finished(head uint64, mayExtend bool) {
	u.count++
	if head != u.head || !mayExtend {
		u.count = 0
	}
	u.head = head
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
	rest := s.unchanged.interval(s.opts.Interval, s.opts.MaxInterval) - since
	if rest <= 0 || since >= s.opts.Interval && (s.position() != s.unchanged.head || !s.mayExtend()) {
		return true, 0
	}
	return false, min(rest, s.opts.Interval)
}

// mayExtend reports whether the interval may be longer than the configured one now.
func (s *Scanner) mayExtend() bool {
	return s.opts.MayExtend != nil && s.opts.MayExtend()
}

// position returns the position of the newest change of the table.
func (s *Scanner) position() (head uint64) {
	s.t.View(func(tx *table.Tx) { head = tx.Head() })
	return head
}
