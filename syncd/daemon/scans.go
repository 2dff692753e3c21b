package daemon

import (
	"slices"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// ScanStatus is the part of MapStatus about the comparisons of the kernel map with
// what is known of it.
type ScanStatus struct {
	Scans    uint64 `json:"scans"`
	Urgent   uint64 `json:"urgent"` // of these, because of losses
	Failures uint64 `json:"failures"`
	Entries  uint64 `json:"entries"`
	Found    uint64 `json:"found"` // differences
	// Interval is the time from one scan to the next as it is: longer than the setting
	// where the budget does not allow for more.
	Interval float64 `json:"interval_seconds"`
	Last     float64 `json:"last_seconds"` // that the last one took
	Work     float64 `json:"work_seconds"` // that it had a processor
}

func (m *replica) newScanner(a *attachment, t *table.Table) (*kmap.Scanner, error) {
	d := m.daemon
	if info := a.m.Info(); d.evictionsUnseen(&info) && !d.config.EvictionDeletes {
		m.log.Warn("evictions of this map are not seen here: an entry of this node that a scan finds gone counts as evicted and stays on peers until evicted-ttl")
	}
	return kmap.NewScanner(t, a.m, kmap.ScannerOptions{
		Interval: d.config.ScanInterval, Budget: d.scanBudget, Now: d.clock.now, Logger: m.log,
	})
}

// evictionsUnseen reports whether what an LRU map threw out cannot be told from what was
// deleted: nobody sees it go, and the scan finds it gone.
func (d *Daemon) evictionsUnseen(info *kmap.Info) bool {
	return isLRU(info) && (d.capture.Attached() == capture.AttachNone || slices.Contains(d.capture.Missing(), "htab_lru_map_delete_node"))
}

// isLRU reports whether the kernel evicts entries of a map.
func isLRU(info *kmap.Info) bool {
	return info.Type == ebpf.LRUHash || info.Type == ebpf.LRUCPUHash
}

// repair reports whether a scan that began after a time (a loss was seen, say) has compared
// the kernel map with the table, and asks for one, once for each time, where none has.
func (m *replica) repair(lost int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.kernel
	switch {
	case a == nil || a.began > lost:
		return true // a map that comes is read whole
	case a.scanner == nil:
		return false // it is being read
	case a.scanner.Stats().Began > lost:
		return true
	case a.requested < lost:
		a.requested = lost
		a.scanner.Request()
	}
	return false
}

func scanStatus(s *kmap.Scanner) *ScanStatus {
	if s == nil {
		return nil
	}
	st := s.Stats()
	return &ScanStatus{
		Scans: st.Scans, Urgent: st.Urgent, Failures: st.Failures, Entries: st.Entries, Found: st.Found,
		Interval: st.Interval.Seconds(), Last: st.Last.Seconds(), Work: st.Work.Seconds(),
	}
}

// LossStatus is the part of CaptureStatus about losses and their repair by scans.
type LossStatus struct {
	Open        bool    `json:"open"`                   // some are not repaired yet
	OpenSeconds float64 `json:"open_seconds,omitempty"` // since the first of them
	Repaired    uint64  `json:"repaired"`               // times that all were repaired
}

func (d *Daemon) lossStatus() LossStatus {
	open, repaired := d.losses.state()
	return LossStatus{Open: open > 0, OpenSeconds: open.Round(time.Millisecond).Seconds(), Repaired: repaired}
}

// maxLive returns how many live records the table of a map holds. Evicted records of an LRU map come
// on top.
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
