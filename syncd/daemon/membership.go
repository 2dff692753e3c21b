package daemon

import (
	"context"
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// followMembers hands gossip's membership to the replicator, at every change. The
// replicator dials the nodes: those that prove their name are peers.
func (d *Daemon) followMembers(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	cancel := d.cluster.Subscribe(changed)
	defer cancel()
	for {
		d.replicator.Discover(d.members())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (d *Daemon) members() []replicate.Peer {
	members := d.cluster.Members()
	live := make([]replicate.Peer, len(members))
	for i, m := range members {
		live[i] = replicate.Peer{Node: m.Name, Incarnation: m.Incarnation, Addr: m.ServiceAddr}
	}
	return live
}

// withoutPeers returns what keeps all maps from being compared with those of peers, if
// anything: membership that is not settled yet.
func (d *Daemon) withoutPeers() string {
	stats := d.replicator.Stats()
	switch {
	case d.replicator.Settling() > 0:
		return "membership is changing"
	case len(d.config.Join) > 0 && stats.Peers == 0 && !d.pastSyncTimeout(d.started):
		return "no peer has been reached yet"
	}
	return ""
}

func (d *Daemon) pastSyncTimeout(since time.Time) bool {
	return time.Since(since) > d.config.SyncTimeout
}

// claimChunk is how many records are claimed at a time, so that nobody waits for the
// table's lock.
const claimChunk = 4096

func claimAll(t *table.Table) {
	for more := true; more; {
		t.Update(func(tx *table.Tx) { more = tx.Claim(claimChunk) })
	}
}

// claim ends the first synchronisation once every live peer has told what it knows, or the
// time limit is over: what was found in the map, and no peer knows, is then a change of this
// node.
func (m *replica) claim() {
	m.mu.Lock()
	state, t, since := m.state, m.table, m.since
	m.mu.Unlock()
	switch state {
	case MapSyncing:
	case MapReplicating:
		m.rememberWhenApplied()
		return
	default:
		return
	}
	// Asked for only now: before the map was offered to peers none was waited for.
	waiting := m.daemon.waitingFor(m.name)
	switch {
	case waiting != "" && !m.daemon.pastSyncTimeout(since):
		return
	case waiting != "":
		m.log.Warn("peers did not answer within sync-timeout, going on without them", "waiting_for", waiting)
	}
	unversioned := t.Stats().Unversioned
	claimAll(t)
	m.mu.Lock()
	if m.state == MapSyncing {
		m.state = MapReplicating
	}
	m.mu.Unlock()
	m.log.Info("the map is replicating", "claimed", unversioned, "live", t.Stats().Live)
}

// rememberWhenApplied notes the kernel map for the next incarnation, once it
// holds what peers told: only from then on does an absent key mean a delete. A node
// that has met no peer does not know what they hold of its earlier lives.
func (m *replica) rememberWhenApplied() {
	m.mu.Lock()
	remembered, heard := m.remembered || m.kernel == nil || m.state != MapReplicating, m.heard != nil
	m.mu.Unlock()
	if remembered {
		return
	}
	heard = heard || m.daemon.replicator.Stats().Peers > 0 && m.daemon.waitingFor(m.name) == ""
	m.mu.Lock()
	defer m.mu.Unlock()
	if !heard || m.kernel == nil {
		return
	}
	if m.heard == nil {
		m.table.View(func(tx *table.Tx) { m.heard = tx.Owe() })
	}
	if m.owes(m.heard) > 0 {
		return // what did not fit was not deleted
	}
	m.remembered = true
	info := m.kernel.m.Info()
	m.daemon.state.remember(m.name, identityOf(&info))
}
