package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mapsync/syncd/table"
)

// undrainWait is the maximum time for which Undrain waits until the node is in service.
const undrainWait = 5 * time.Second

// maxRereadWait is the maximum time after a scan for which the end of a handover waits for rereads. Peers may change
// entries all the time.
const maxRereadWait = 10 * time.Second

// inProgress reports whether the node is drained and does not return to service.
func (r *drain) inProgress() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.since.IsZero() && !r.ending
}

// returns reports whether the node is in service or returns to it. since is the time at which the last drain ended, in ns
// of the daemon's clock.
func (r *drain) returns() (since int64, returns bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endedAt, r.since.IsZero() || r.ending
}

// restoreDrain continues the drain that was in progress when syncd stopped.
func (d *Daemon) restoreDrain() {
	saved := d.state.drained()
	if saved == nil {
		return
	}
	r := &d.drain
	r.begin(saved.Since)
	r.forced = saved.Forced
	if d.config.EndDrainAtStart {
		r.ending, r.endedAt = true, d.clock.now()
		d.log.Info("drain ends at the start of syncd", "since", r.since.Format(time.DateTime))
		return
	}
	d.log.Warn("the node is drained since before the start of syncd", "since", r.since.Format(time.DateTime),
		"hint", "syncd drain --undo returns the node to service")
}

// restoreHandover sets what an earlier incarnation of this node has handed over of the map, before the map is read.
func (m *replica) restoreHandover(t *table.Table) {
	h := m.daemon.state.handover(m.name)
	if h.Incarnation > m.daemon.self.Incarnation { // the clock was set back: peers have refused its records
		m.daemon.state.setHandover(m.name, table.Handover{})
		return
	}
	t.Update(func(tx *table.Tx) { tx.SetHandover(m.daemon.self.Node, h) })
}

// handOver hands the maps over, unless this node has changed one of them since its watermark. It returns why the drain is
// not complete yet. The state file has the handover before the drain is complete: the load balancer may clear its map as
// soon as that is reported, and syncd may restart then.
func (d *Daemon) handOver(marks []watermark) (waiting []string) {
	for i := range marks {
		if !d.handOverMap(&marks[i]) {
			return []string{"entries still change here"}
		}
	}
	// If the file cannot be written, log and status show it, and the drain does not wait.
	if !d.state.written() {
		return []string{"the state is being saved"}
	}
	return nil
}

// handOverMap hands a map over unless that was done before. It reports whether the map is handed over.
func (d *Daemon) handOverMap(k *watermark) (done bool) {
	var h table.Handover
	k.table.Update(func(tx *table.Tx) {
		switch {
		case tx.Handover(d.self.Node) != table.Handover{}:
			done = true
		case tx.LocalAccepted() == k.changes:
			h, done = tx.BeginHandover(), true
		}
	})
	if h != (table.Handover{}) {
		d.state.setHandover(k.name, h)
	}
	return done
}

// Undrain puts the node into service again. It waits until the kernel maps are refilled, for
// undrainWait at most.
func (d *Daemon) Undrain(ctx context.Context) Handover {
	d.undrain("")
	ctx, cancel := context.WithTimeout(ctx, undrainWait)
	defer cancel()
	for ctx.Err() == nil {
		if !d.drain.begun() && d.state.written() {
			break // a syncd that is killed now starts in service
		}
		select {
		case <-ctx.Done():
		case <-time.After(readyInterval):
		}
	}
	return d.Handover()
}

// undrain begins the end of a drain. why is the reason if syncd cancels the drain, and empty if an
// operator ends it.
func (d *Daemon) undrain(why string) {
	r := &d.drain
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() || r.ending || (why != "" && r.forced) { // an operator has forced the drain meanwhile
		return
	}
	if why != "" {
		d.log.Warn("drain cancelled", "reason", why, "hint", "syncd drain --force drains the last node")
	} else {
		d.log.Info("drain cancelled")
	}
	r.cancelled, r.ending, r.endedAt = why, true, d.clock.now()
	r.done, r.waiting, r.notHeld = false, []string{"the first check"}, nil
	d.poke()
}

// endDrain ends the handover of the maps of a node that is in service or returns to it. It returns the node to service
// once the attached maps have their entries again.
func (d *Daemon) endDrain() {
	since, returns := d.drain.returns()
	if !returns {
		return
	}
	waiting := []string{}
	for _, m := range d.replicas() {
		if reason := m.endHandover(since); reason != "" {
			waiting = append(waiting, reason)
		}
	}
	r := &d.drain
	r.mu.Lock()
	if r.since.IsZero() || !r.ending {
		r.mu.Unlock()
		return
	}
	if r.waiting = waiting; len(waiting) > 0 {
		r.mu.Unlock()
		return
	}
	r.since, r.watermarks, r.waiting, r.ending = time.Time{}, nil, nil, false
	r.forced, r.peers = false, 0
	d.state.setDrain(nil)
	r.mu.Unlock()
	d.publish()
}

// endHandover ends the handover of the map, if there is one: it refills the kernel map with the entries that it lacks. A
// scan that began after since must have found them, because an absence that is found later counts as a delete. It returns
// what it waits for, or "". A map without a kernel map is refilled later, and is not ready until then.
func (m *replica) endHandover(since int64) (waiting string) {
	m.mu.Lock()
	t, state, attached := m.table, m.state, m.kernel != nil
	m.mu.Unlock()
	if t == nil || !attached {
		return ""
	}
	if !m.handedOver(t) {
		return m.restoring()
	}
	switch {
	case state != MapReplicating:
		return "peers are sending the records of " + m.name
	case !m.scannedSince(since):
		return m.daemon.scanReason(m.name)
	}
	if m.endScanned.IsZero() {
		m.endScanned = time.Now()
	}
	if t.Stats().PendingRereads > 0 && time.Since(m.endScanned) < maxRereadWait {
		return "keys of " + m.name + " are being reread"
	}
	m.endScanned = time.Time{}
	return m.refillHandedOver(t)
}

// refillHandedOver restores the entries that the kernel map lacks and ends the handover. The state file keeps the handover
// until they are written: a syncd that is killed before must not take their absence for deletes.
func (m *replica) refillHandedOver(t *table.Table) (waiting string) {
	var restored int
	m.mu.Lock()
	if m.table != t || m.kernel == nil {
		m.mu.Unlock()
		return "the map " + m.name + " is being replaced"
	}
	m.removeBarrier(&m.returnBarrier)
	t.Update(func(tx *table.Tx) {
		restored = tx.EndHandover(m.daemon.clock.now())
		m.returnBarrier = tx.AddBarrier()
	})
	// The map may lack entries whose records peers have yet to send. Their absence means nothing at the next start either.
	m.identitySaved, m.restores = false, false
	m.removeBarrier(&m.syncBarrier)
	m.daemon.state.removeIdentity(m.name)
	m.mu.Unlock()
	m.log.Info("handover ended, the map is refilled", "restored", restored)
	return m.restoring()
}

// restoring returns what is left to write after the end of a handover, or "". Entries that do not fit do not count. A kernel
// map that was attached meanwhile may lack entries, too.
func (m *replica) restoring() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kernel == nil || m.daemon.state.handover(m.name) == (table.Handover{}) {
		return ""
	}
	n := 0
	m.table.View(func(tx *table.Tx) {
		if m.returnBarrier == nil {
			m.returnBarrier = tx.AddBarrier()
		}
		n = tx.PendingWrites(m.returnBarrier) - tx.FailedWrites(m.returnBarrier)
	})
	if n > 0 {
		return fmt.Sprintf("%d entries are being written to %s", n, m.name)
	}
	m.removeBarrier(&m.returnBarrier)
	m.daemon.state.setHandover(m.name, table.Handover{})
	return ""
}

// handedOver reports whether this node has handed over the records of a table of the map.
func (m *replica) handedOver(t *table.Table) (yes bool) {
	t.View(func(tx *table.Tx) { yes = tx.Handover(m.daemon.self.Node) != table.Handover{} })
	return yes
}

// awaitsRefill reports whether the kernel map may lack entries since a drain, although the node returns to service.
func (m *replica) awaitsRefill() bool {
	t, _ := m.current()
	_, returns := m.daemon.drain.returns()
	return returns && t != nil && m.handedOver(t)
}

// scanReason returns why a scan of a map that was requested is not complete.
func (d *Daemon) scanReason(name string) string {
	if until := d.scanBudget.PausedUntil(); !until.IsZero() {
		return fmt.Sprintf("scans are paused until %s: `syncd scans resume` ends the pause", until.Format(time.RFC3339))
	}
	return "the map of " + name + " is being scanned"
}

// drainReason returns why a drained node is not ready.
func (d *Daemon) drainReason() (reason string, drained bool) {
	h := d.Handover()
	switch {
	case !h.Drained:
		return "", false
	case h.Ending:
		return "returning to service after a drain: " + strings.Join(h.Waiting, ", "), true
	}
	return fmt.Sprintf("drained since %s (`syncd drain --undo` puts the node into service)", h.Since.Format(time.DateTime)), true
}
