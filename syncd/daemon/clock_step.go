package daemon

import (
	"log/slog"
	"time"

	"mapsync/syncd/table"
)

// noteStep notes a step of the wall clock, and makes watchMaps handle it. The caller may hold any lock.
func (d *Daemon) noteStep(step time.Duration) {
	d.clockSteps.Add(1)
	d.stepped.Add(int64(step))
	d.poke()
}

// followClock makes everything follow a step of the wall clock.
func (d *Daemon) followClock() {
	d.clock.follow()
	for _, m := range d.replicas() {
		m.followClock()
	}
	step := time.Duration(d.stepped.Swap(0))
	if step == 0 {
		return
	}
	d.replicator.ClockStepped()
	if step.Abs() >= d.config.MaxClockAhead/2 {
		d.remoteLog.Warn("wall clock stepped", slog.Float64("seconds", step.Seconds()),
			slog.String("hint", "versions and time stamps follow the clock; if the machine was not suspended, see docs/night.md#clock"))
	}
}

// followClock makes the versions of the replica's tables follow the wall clock.
func (m *replica) followClock() {
	m.mu.Lock()
	current, offered := m.table, m.offered
	m.mu.Unlock()
	if current != nil {
		m.followClockIn(current)
	}
	if offered != nil && offered != current {
		m.followClockIn(offered)
	}
}

func (m *replica) followClockIn(t *table.Table) {
	c, withdraw := m.daemon.clock, false
	t.Update(func(tx *table.Tx) { withdraw = tx.FollowClock(c.now(), c.offset.Load()) })
	if !withdraw {
		return
	}
	at := t.NewCursor(0)
	defer at.Close()
	before := t.Stats().Withdrawn
	for more := true; more; {
		t.Update(func(tx *table.Tx) { more = tx.Withdraw(c.now(), at, expireChunk) })
	}
	m.log.Warn("records got new versions, because the clock was set back", "records", t.Stats().Withdrawn-before,
		"hint", "peers refused the former versions: they were further ahead than max-clock-ahead")
}
