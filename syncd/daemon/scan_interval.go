package daemon

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// scanIntervalFactor is the default of max-scan-interval, as a multiple of scan-interval.
const scanIntervalFactor = 4

// maxScanInterval returns the longest time between two scans of a map that does not change.
func (d *Daemon) maxScanInterval() time.Duration {
	return cmp.Or(d.config.MaxScanInterval, scanIntervalFactor*d.config.ScanInterval)
}

// mayExtendScans reports whether a map that does not change may be scanned less often than every
// scan-interval: hooks report all changes but those in place. After a peer was lost, its sessions
// arrive at this node and may be changed in place, so that scans stay frequent for a while.
func (m *replica) mayExtendScans(info *kmap.Info) bool {
	d := m.daemon
	m.mu.Lock()
	detected := m.programsOf == info.ID && len(m.undetected) == 0
	m.mu.Unlock()
	return detected && d.capture.HooksMaps() && !d.evictionsUnseen(info) && !d.perCPUUpdatesUnseen(info) &&
		time.Since(d.contacts.lastLoss()) > d.maxScanInterval()
}

// perCPUUpdatesUnseen reports whether no hook reports updates of a per-CPU map by programs.
func (d *Daemon) perCPUUpdatesUnseen(info *kmap.Info) bool {
	return (info.Type == ebpf.PerCPUHash || info.Type == ebpf.LRUCPUHash) &&
		slices.ContainsFunc(d.capture.Missing(), func(symbol string) bool { return strings.Contains(symbol, "percpu") })
}
