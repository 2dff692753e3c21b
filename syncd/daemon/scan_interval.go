package daemon

import "time"

// mayExtendScans reports whether a map that does not change may be scanned less often than every
// scan-interval: hooks report all changes but those in place. After a peer was lost, its sessions
// arrive at this node and may be changed in place, so that scans stay frequent for a while.
func (d *Daemon) mayExtendScans() bool {
	return d.capture.DetectsAllWrites() && time.Since(d.contacts.lastLoss()) > d.config.LongestScanInterval()
}
