package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mapsync/syncd/capture"
)

const (
	// lossInterval is how often the counters of the hooks are looked at.
	lossInterval = 250 * time.Millisecond
	// lossLogInterval is how often at most the log tells of losses.
	lossLogInterval = time.Second
)

// losses follows what the hooks count as lost until scans have repaired it. A loss does
// not say which map it is of, so it is repaired once each map has been scanned by a
// scan that began after it.
type losses struct {
	mu       sync.Mutex
	seen     capture.Stats // when looked at last
	told     capture.Stats // when logged last
	toldAt   time.Time
	since    time.Time // of the first loss that is not repaired; zero: there is none
	last     int64     // when the latest was seen, ns of the daemon's clock
	repaired uint64    // times that all were
}

// watchLosses has maps scanned when changes were lost, and says so.
func (d *Daemon) watchLosses(ctx context.Context) error {
	tick := time.NewTicker(lossInterval)
	defer tick.Stop()
	for {
		d.repairLosses()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// repairLosses looks once. The clock is read after the counters: a scan that begins later
// finds all that they tell of.
func (d *Daemon) repairLosses() {
	stats := d.capture.Stats()
	l, now := &d.losses, d.clock.now()
	l.note(&stats, now, d.capture.Attached() == capture.AttachKprobe)
	if lost := l.open(); lost != 0 {
		repaired := true
		for _, m := range d.replicas() {
			repaired = m.repair(lost) && repaired
		}
		l.log(d.log)
		if repaired {
			l.close(d.log, lost)
		}
	}
}

// note compares the counters with those of the last time. With kprobes runs that are
// skipped do not count: each bpf(2) write on the host makes for one, so the
// scans that come anyway have to do.
func (l *losses) note(s *capture.Stats, now int64, kprobe bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.seen
	l.seen = *s
	if kprobe {
		l.seen.Skipped = 0
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

// open returns when the latest loss was seen, 0 if all are repaired.
func (l *losses) open() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return 0
	}
	return l.last
}

// log says what was lost since it last did.
func (l *losses) log(log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, t := &l.seen, &l.told
	lost := capture.Stats{
		LostReservations: s.LostReservations - t.LostReservations, PerfLost: s.PerfLost - t.PerfLost,
		SequenceGaps: s.SequenceGaps - t.SequenceGaps, Nested: s.Nested - t.Nested, Skipped: s.Skipped - t.Skipped,
		Malformed: s.Malformed - t.Malformed,
	}
	if lost.Lost()+lost.Malformed == 0 || time.Since(l.toldAt) < lossLogInterval {
		return
	}
	l.told, l.toldAt = l.seen, time.Now()
	log.Warn("changes were lost, scanning", "buffer_full", lost.LostReservations, "perf", lost.PerfLost,
		"gaps", lost.SequenceGaps, "nested", lost.Nested, "skipped", lost.Skipped, "malformed", lost.Malformed)
}

// close notes that all losses up to one are repaired, unless there are later ones.
func (l *losses) close(log *slog.Logger, lost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != lost {
		return
	}
	l.repaired++
	log.Info("losses are repaired", "seconds", time.Since(l.since).Seconds())
	l.since = time.Time{}
}

// state returns for how long a loss has been open, 0 if none is, and how often all were
// repaired.
func (l *losses) state() (open time.Duration, repaired uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		open = max(time.Since(l.since), 1)
	}
	return open, l.repaired
}
