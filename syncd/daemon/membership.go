package daemon

import (
	"context"
	"time"

	"mapsync/syncd/replicate"
)

// firstJoinWait bounds the wait for the first attempt to join, which may have to resolve names.
const firstJoinWait = 5 * time.Second

// followMembers passes the members of gossip to the replicator, at every change. The replicator
// dials these nodes. Nodes that prove their name become peers. It begins once gossip has joined, or after firstJoinWait, so
// that the replicator receives the members at the same time, and does not take one for the only peer.
func (d *Daemon) followMembers(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	cancel := d.cluster.Subscribe(changed)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil
	case <-d.cluster.Joined():
	case <-time.After(firstJoinWait):
	}
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

// membershipReason returns the reason why no map can be compared with those of peers, or "". The
// reason is that membership is not settled yet.
func (d *Daemon) membershipReason() string {
	stats := d.replicator.Stats()
	switch {
	case d.replicator.UndialledNodes() > 0:
		return "membership is changing"
	case len(d.config.Join) > 0 && stats.Peers == 0 && !d.pastSyncTimeout(d.followed):
		return "no peer has been reached yet"
	}
	return ""
}

func (d *Daemon) pastSyncTimeout(since time.Time) bool {
	return time.Since(since) > d.config.SyncTimeout
}
