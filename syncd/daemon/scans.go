package daemon

import (
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"golang.org/x/sys/unix"
)

// ScanStatus is the part of MapStatus about scans, which compare the kernel map with the table.
type ScanStatus struct {
	Scans    uint64 `json:"scans"`
	Urgent   uint64 `json:"urgent"` // of Scans, requested because of losses or handovers
	Failures uint64 `json:"failures"`
	Entries  uint64 `json:"entries"`
	Found    uint64 `json:"found"` // differences between kernel map and table
	// Interval is the effective time between two scans. It is longer than scan-interval if the map
	// does not change, or if scan-budget is too low.
	Interval float64 `json:"interval_seconds"`
	Last     float64 `json:"last_seconds"` // duration of the last scan, with pauses
	Work     float64 `json:"work_seconds"` // duration of the last scan, without pauses
	// Failing reports that the last scan failed, Late that it took longer than scan-interval.
	Failing bool `json:"failing,omitempty"`
	Late    bool `json:"late,omitempty"`
}

// scanCPUs returns the CPUs of the setting scan-cpus, nil for any. It fails if this process may use none of them.
func scanCPUs(c *config.Config) (*unix.CPUSet, error) {
	cpus, err := c.ScanCPUSet()
	if err == nil && cpus != nil {
		err = kmap.CheckScanCPUs(cpus)
	}
	return cpus, err
}

func (m *replica) newScanner(a *attachment, t *table.Table) (*kmap.Scanner, error) {
	d, info := m.daemon, a.m.Info()
	c := capture.Covers(d.capture.Attached(), d.capture.Missing(), info.Type)
	if isLRU(&info) && (!c.Programs || !c.Syscalls) && !d.config.EvictionDeletes {
		m.log.Warn("not all deletes from LRU map are captured",
			"hint", "set attach: auto; otherwise undetected deletes count as evictions, and peers keep the entries for evicted-ttl")
	}
	o := scanIntervals(&d.config, m.name, &info)
	o.MayExtend, o.Budget, o.Now, o.Logger = d.mayExtendScans, d.scanBudget, d.clock.now, m.log
	return kmap.NewScanner(t, a.m, o)
}

// scanIntervals returns the times between scans of a map. They do not grow for a map that processes write through mmap(2),
// because hooks do not detect these writes. With takeover-expiry, costly scans are as frequent as
// others, because they show this and other nodes which entries are in use.
func scanIntervals(c *config.Config, name string, info *kmap.Info) kmap.ScannerOptions {
	o := kmap.ScannerOptions{Interval: c.ScanInterval}
	if info.Mappable() {
		return o
	}
	o.MaxInterval = c.LongestScanInterval()
	if _, set := c.TakeoverExpiry(name); !set {
		o.MaxCostlyInterval = c.LongestCostlyScanInterval()
	}
	return o
}

// scannedSince reports whether a scan that began after a time, such as that of a loss, has
// compared the kernel map with the table. The time is in ns of the daemon's clock. Without such
// a scan, scannedSince requests one, once for each time.
func (m *replica) scannedSince(lost int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.kernel
	switch {
	case a == nil || a.began > lost:
		return true // a map is read completely when it is attached
	case a.scanner == nil:
		return false // the map is being read
	case a.scanner.Stats().Began > lost:
		return true
	case a.requested < lost:
		a.requested = lost
		a.scanner.Request()
	}
	return false
}

// scanIfUnread requests a scan if the table has dropped requests for rereads, because too many keys
// waited.
func (m *replica) scanIfUnread() {
	m.mu.Lock()
	a := m.kernel
	if a == nil {
		m.mu.Unlock()
		return
	}
	if n := m.table.Stats().RereadsDropped; n > a.unread {
		if a.unreadAt == 0 {
			m.log.Info("too many keys to reread, scanning map", "keys", n-a.unread)
		}
		a.unread, a.unreadAt = n, m.daemon.clock.now()
	}
	at := a.unreadAt
	m.mu.Unlock()
	if at != 0 && m.scannedSince(at) {
		m.mu.Lock()
		if a.unreadAt == at {
			a.unreadAt = 0
		}
		m.mu.Unlock()
	}
}

func scanStatus(s *kmap.Scanner) *ScanStatus {
	if s == nil {
		return nil
	}
	st := s.Stats()
	return &ScanStatus{
		Scans: st.Scans, Urgent: st.Urgent, Failures: st.Failures, Entries: st.Entries, Found: st.Found,
		Interval: st.Interval.Seconds(), Last: st.Last.Seconds(), Work: st.Work.Seconds(), Failing: st.Failing, Late: st.Late,
	}
}

// LossStatus is the part of CaptureStatus about losses and their repair by scans.
type LossStatus struct {
	Open        bool    `json:"open"`                   // some losses are not repaired yet
	OpenSeconds float64 `json:"open_seconds,omitempty"` // since the first of these losses
	Repaired    uint64  `json:"repaired"`               // number of times that all losses were repaired
}

func (d *Daemon) lossStatus() LossStatus {
	open, repaired := d.losses.state()
	return LossStatus{Open: open > 0, OpenSeconds: open.Round(time.Millisecond).Seconds(), Repaired: repaired}
}

// maxLive is Daemon.maxLive for this map. In a map of sums, the table leaves the room of this node's sums.
func (m *replica) maxLive(info *kmap.Info) int {
	if c := &m.daemon.config; c.DrainSums(m.name) {
		return int(float64(info.MaxEntries) * c.RecordsFactor / (1 + c.RecordsFactor))
	}
	return m.daemon.maxLive(info)
}

// maxLive returns the maximum number of live records in the table of a map. For an LRU map it
// includes the evicted records.
func (d *Daemon) maxLive(info *kmap.Info) int {
	n := int(d.config.RecordsFactor * float64(info.MaxEntries))
	switch {
	case !isLRU(info):
		return n
	case d.config.MaxEvicted > 0:
		return n + d.config.MaxEvicted
	default:
		return n + info.MaxEntries
	}
}
