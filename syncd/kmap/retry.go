package kmap

import (
	"time"

	"mapsync/syncd/table"
)

// retry retries failed writes.
func (s *Syncer) retry(now time.Time) {
	failed := s.t.Stats().Failed
	s.logFailureChange(failed)
	room := false
	s.t.View(func(tx *table.Tx) { room = tx.HasRoom() })
	if failed == 0 || failed < s.lastFailed || room {
		s.backoff, s.retryAt = minBackoff, now
	}
	s.lastFailed = failed
	if failed == 0 || now.Before(s.retryAt) {
		return
	}
	s.t.Update(func(tx *table.Tx) { tx.RequeueFailed(s.m.batch.Cap()) })
	s.retryAt = now.Add(s.backoff)
	s.backoff = min(2*s.backoff, maxBackoff)
}

// logFailureChange logs when writes start to fail, and when the last failed write has succeeded.
func (s *Syncer) logFailureChange(failed int) {
	if (failed > 0) == (s.lastFailed > 0) {
		return
	}
	if failed == 0 {
		s.opts.Logger.Info("all failed writes recovered", "kernel_map", s.m.info.Name)
		return
	}
	st := s.Stats()
	s.opts.Logger.Warn("failed to write entries to the kernel map, retrying", "kernel_map", s.m.info.Name, "entries", failed,
		"max_entries", s.m.info.MaxEntries, "full", st.FailedFull, "memory", st.FailedMemory,
		"busy", st.FailedBusy, "other", st.FailedOther,
		"hint", "full: enlarge the map; memory: free memory of the host, or use a preallocated map")
}
