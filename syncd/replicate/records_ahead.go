package replicate

import (
	"time"

	"mapsync/syncd/table"
)

// latestVersion returns the highest version that a merge at now accepts.
func (in *inboundMap) latestVersion(now time.Time) table.Version {
	return table.Version(now.Add(in.stream.r.opt.MaxClockAhead).UnixNano())
}

// skipAhead reports whether the version of a record is too far ahead of the clock, and counts
// such a record.
func (in *inboundMap) skipAhead(d *table.Delta) bool {
	// The record of a wrong clock would win over later changes of all nodes. A repeated full sync
	// brings the record later, when this node's clock has passed its version.
	if d.Version > in.maxVersion {
		in.result.ahead++
		return true
	}
	return false
}
