package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mapsync/syncd/capture"
)

const (
	// lossInterval is the interval at which the counters of the hooks are checked.
	lossInterval = 250 * time.Millisecond
	// lossLogInterval is the minimum time between two log lines about losses.
	lossLogInterval = time.Second
)

// losses tracks the events that the hooks count as lost until scans have repaired them. The
// counters do not name the map of a loss. A loss is repaired when every map has been scanned by a
// scan that began after the loss.
type losses struct {
	mu       sync.Mutex
	seen     capture.Stats // counters at the last check
	logged   capture.Stats // counters at the last log line
	loggedAt time.Time
	since    time.Time // time of the first loss that is not repaired; zero: none
	last     int64     // when the latest loss was detected, ns of the daemon's clock
	repaired uint64    // number of times that all losses were repaired
}

// watchLosses requests scans after losses, and logs the losses, until ctx ends.
func (d *Daemon) watchLosses(ctx context.Context) error {
	checkRegularly(ctx, d.checkLosses)
	return nil
}

// checkRegularly calls check at once and every lossInterval, until ctx ends.
func checkRegularly(ctx context.Context, check func()) {
	tick := time.NewTicker(lossInterval)
	defer tick.Stop()
	for {
		check()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkLosses checks the counters once. It reads the clock after the counters, so that a scan
// that begins later finds all changes that the counters cover.
func (d *Daemon) checkLosses() {
	stats := d.capture.Stats()
	l, now := &d.losses, d.clock.now()
	l.note(&stats, now, d.capture.Attached() != capture.AttachFexit)
	for _, m := range d.replicas() {
		m.scanIfUnread()
	}
	if lost := l.open(); lost != 0 {
		repaired := true
		for _, m := range d.replicas() {
			repaired = m.scannedSince(lost) && repaired
		}
		l.log(d.log)
		if repaired {
			l.close(d.remoteLog, lost) // traffic can cause losses at any rate
		}
	}
}

// note compares the counters with those of the last check. Skipped runs count as losses only with
// fexit, and at the return of bpf(2). With kprobe, each bpf(2) write on the host causes one. With
// syscall, most of them are of other system calls. The regular scans repair them.
func (l *losses) note(s *capture.Stats, now int64, ignoreSkipped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.seen
	l.seen = *s
	if ignoreSkipped {
		l.seen.Skipped = s.SkippedCalls
	}
	if s.LostReservations <= was.LostReservations && s.PerfLost <= was.PerfLost && s.SequenceGaps <= was.SequenceGaps &&
		s.Nested <= was.Nested && s.Malformed <= was.Malformed && l.seen.Skipped <= was.Skipped {
		return
	}
	if l.since.IsZero() {
		l.since = time.Now()
	}
	l.last = now
}

// open returns when the latest loss was detected, in ns of the daemon's clock, or 0 if all are
// repaired.
func (l *losses) open() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return 0
	}
	return l.last
}

// log logs the losses since its last log line, at most once per lossLogInterval.
func (l *losses) log(log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, t := &l.seen, &l.logged
	lost := capture.Stats{
		LostReservations: s.LostReservations - t.LostReservations, PerfLost: s.PerfLost - t.PerfLost,
		SequenceGaps: s.SequenceGaps - t.SequenceGaps, Nested: s.Nested - t.Nested, Skipped: s.Skipped - t.Skipped,
		Malformed: s.Malformed - t.Malformed,
	}
	if lost.Lost()+lost.Malformed == 0 || time.Since(l.loggedAt) < lossLogInterval {
		return
	}
	l.logged, l.loggedAt = l.seen, time.Now()
	log.Warn("changes were lost, scanning", "buffer_full", lost.LostReservations, "perf", lost.PerfLost,
		"gaps", lost.SequenceGaps, "nested", lost.Nested, "skipped", lost.Skipped, "malformed", lost.Malformed,
		"hint", "buffer_full: double buffer-size; skipped: set attach: fexit if syncd check reports that it works")
}

// close records that all losses up to the time lost are repaired, unless there are later losses.
func (l *losses) close(log *slog.Logger, lost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != lost {
		return
	}
	l.repaired++
	log.Info("losses repaired", "seconds", time.Since(l.since).Seconds())
	l.since = time.Time{}
}

// state returns how long a loss has been open, or 0 if all are repaired, and the number of times
// that all losses were repaired.
func (l *losses) state() (open time.Duration, repaired uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		open = max(time.Since(l.since), 1)
	}
	return open, l.repaired
}
