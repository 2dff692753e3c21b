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
	if len(d.config.Join) > 0 && len(d.cluster.Members()) == 0 && !d.pastSyncTimeout(d.started) {
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

// Claiming looks this often, and works in chunks so that nobody waits for the
// table's lock.
const (
	claimInterval = 20 * time.Millisecond
	claimChunk    = 4096
)

// claimWhenSynced turns what was found in the maps at their start, and no peer
// knows, into changes of this node: once every live peer has told what it knows,
// or the time limit is over.
func (d *Daemon) claimWhenSynced(ctx context.Context) error {
	tick := time.NewTicker(claimInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, m := range d.maps {
			m.claim()
		}
	}
}

func claimAll(t *table.Table, now func() int64) {
	for more := true; more; {
		t.Update(func(tx *table.Tx) { more = tx.Claim(now(), claimChunk) })
	}
}
