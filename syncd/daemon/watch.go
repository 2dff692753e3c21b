package daemon

import (
	"context"
	"time"

	"mapsync/syncd/table"
)

// Maps are looked at often while one is on its way to being ready, or a node is being
// drained, and rarely once all are: to wake for nothing is most of what a node at rest costs.
const (
	readyInterval = 20 * time.Millisecond
	drainInterval = 50 * time.Millisecond
	calmInterval  = time.Second
)

// expireChunk is how many tombstones are looked at under the table's lock.
const expireChunk = 256

// watchMaps claims what no peer knows, decides when maps become ready, tells the health
// service, and follows a handover.
func (d *Daemon) watchMaps(ctx context.Context) error {
	defer d.health.Shutdown() // not serving any more
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := (Readiness{}); ; timer.Reset(d.lookInterval()) {
		select {
		case <-ctx.Done():
			return nil
		case <-d.look:
		case <-timer.C:
		}
		for _, m := range d.replicas() {
			m.claim()
			m.expireUnwritten()
		}
		d.judge()
		if now := d.publish(); now.Ready != last.Ready || len(now.Unproven) != len(last.Unproven) {
			d.logReadiness(&now)
			last = now
		}
		if _, drained := d.drain.begun(); drained {
			d.handOver(time.Now())
		}
	}
}

// expireUnwritten forgets old deletes while there is no kernel map: the writer of one does
// it otherwise, and for as long as a map is away peers go on.
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

// poke has the maps looked at soon.
func (d *Daemon) poke() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}

// lookInterval returns how soon to look at the maps again.
func (d *Daemon) lookInterval() time.Duration {
	for _, m := range d.replicas() {
		if m.underWay() {
			return readyInterval
		}
	}
	if _, drained := d.drain.begun(); drained {
		return drainInterval
	}
	return calmInterval
}
