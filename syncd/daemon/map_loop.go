package daemon

import (
	"context"
	"time"

	"mapsync/syncd/table"
)

// Intervals of the checks of maps: short while a map becomes ready or the node is being drained,
// and long when all maps are ready. Wake-ups are most of the cost of an idle node.
const (
	readyInterval = 20 * time.Millisecond
	drainInterval = 50 * time.Millisecond
	idleInterval  = time.Second
)

// expireChunk is the number of tombstones that are checked while the table's lock is held once.
const expireChunk = 256

// watchMaps adopts entries that no peer has, decides when maps become ready, updates the health
// service, and follows a handover.
func (d *Daemon) watchMaps(ctx context.Context) error {
	defer d.health.Shutdown() // the health service reports that it does not serve
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := (Readiness{}); ; timer.Reset(d.checkInterval()) {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wakeMaps:
		case <-timer.C:
		}
		d.followClock()
		for _, m := range d.replicas() {
			m.adopt()
			m.expireUnwritten()
			m.logClear()
		}
		d.endDrain()
		d.checkReadiness()
		if now := d.publish(); now.Ready != last.Ready || len(now.Unproven) != len(last.Unproven) {
			d.logReadiness(&now)
			last = now
		}
		if d.drain.inProgress() {
			d.checkHandover(time.Now())
		}
	}
}

// expireUnwritten removes old tombstones without a kernel map, because peers continue to
// delete. Otherwise the writer of the kernel map removes them.
func (m *replica) expireUnwritten() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kernel != nil || m.table == nil {
		return
	}
	now := m.daemon.clock.now()
	for more := true; more; {
		m.table.Update(func(tx *table.Tx) { more = tx.ExpireUnwritten(now, expireChunk) })
	}
}

// poke makes watchMaps check the maps at once.
func (d *Daemon) poke() {
	select {
	case d.wakeMaps <- struct{}{}:
	default:
	}
}

// checkInterval returns the time until the next check of the maps.
func (d *Daemon) checkInterval() time.Duration {
	for _, m := range d.replicas() {
		if m.becomingReady() {
			return readyInterval
		}
	}
	if d.drain.begun() {
		return drainInterval
	}
	return idleInterval
}
