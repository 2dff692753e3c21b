package daemon

import (
	"context"
	"strings"
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// followMembers tells the replicator who lives, at every change of membership.
func (d *Daemon) followMembers(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	cancel := d.cluster.Subscribe(changed)
	defer cancel()
	for {
		d.replicator.SetPeers(d.livePeers())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (d *Daemon) livePeers() []replicate.Peer {
	members := d.cluster.Members()
	live := make([]replicate.Peer, len(members))
	for i, m := range members {
		live[i] = replicate.Peer{Node: m.Name, Incarnation: m.Incarnation, Addr: m.ServiceAddr}
	}
	return live
}

// waitingForPeers says which first synchronisation is still under way, if any.
func (d *Daemon) waitingForPeers() string {
	// Whoever gossip knows and the replicator does not is about to be told of.
	peers, members := d.replicator.Stats().Peers, len(d.cluster.Members())
	switch {
	case members > peers:
		return "membership is changing"
	case len(d.config.Join) > 0 && peers == 0 && !d.pastSyncTimeout(d.started):
		return "no peer has been reached yet"
	}
	if done, waiting := d.replicator.SyncedAll(); !done {
		return "first synchronisation is under way: " + strings.Join(waiting, ", ")
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
	waiting := m.daemon.waitingForPeers()
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
	heard = heard || m.daemon.replicator.Stats().Peers > 0 && m.daemon.waitingForPeers() == ""
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
	m.remembered = true // tried once: a full disk must not flood the log
	info := m.kernel.m.Info()
	if err := m.daemon.state.remember(m.name, identityOf(&info)); err != nil {
		m.log.Error("the map is not remembered: after a restart its deletes will be undone", "error", err)
	}
}
