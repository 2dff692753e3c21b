package replicate

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// touchChunk bounds how many records one Update looks at.
const touchChunk = 1024

// maxDeparted bounds the links kept of nodes that have left, for their positions should the
// same incarnation come back.
const maxDeparted = 256

// SetPeers tells which nodes are live, other than this one. Streams to new ones
// begin, those to and from nodes that are gone end, and a peer with a new
// incarnation is met afresh. The slice is not kept.
//
// A node that was live and is not any more has left: any node may delete its records,
// and fallback senders send them.
func (r *Replicator) SetPeers(live []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.view.Load()
	v := newView(old, r.opt.Self, live)
	r.view.Store(v)
	if r.known.IsZero() {
		r.known = time.Now()
	}
	for node := range v.live {
		r.proven[node] = true
	}
	r.setMembers()
	for node, p := range v.live {
		delete(r.goneAt, node)
		if r.gone[node] {
			r.setGone(node, false)
		}
		r.relink(p)
	}
	for node := range old.live {
		if _, ok := v.live[node]; !ok {
			r.setGone(node, true)
			r.links[node].leave()
			r.opt.Logger.Info("peer is gone", slog.String("peer", node))
		}
	}
	r.forgetLinks(v)
	for s := range r.sessions {
		s.checkPeer(old, v)
	}
	r.notify()
}

// members returns the names of the live nodes, and of those that were live. The lock is held.
func (r *Replicator) members() (live, left []string) {
	v := r.view.Load()
	for node := range r.proven {
		if _, ok := v.live[node]; !ok {
			left = append(left, node)
		}
	}
	return v.names(), left
}

func (r *Replicator) setMembers() {
	live, left := r.members()
	for _, m := range r.localMaps() {
		m.table.View(func(tx *table.Tx) { tx.SetMembers(live, left) })
	}
}

// relink makes the link to a live peer what it has to be. The lock is held.
func (r *Replicator) relink(p Peer) {
	l := r.links[p.Node]
	switch {
	case l == nil:
	case l.peer.Incarnation != p.Incarnation:
		l.stop() // and with it go the positions of the peer's earlier life
	case l.current().Addr != p.Addr:
		l.move(p.Addr)
		return
	default:
		return
	}
	r.links[p.Node] = newLink(r, p)
}

// forgetLinks drops the links that were kept longest of nodes that have left, beyond what
// is kept. The lock is held.
func (r *Replicator) forgetLinks(v *view) {
	if len(r.links) <= len(v.live)+maxDeparted {
		return
	}
	var left []*link
	for node, l := range r.links {
		if _, live := v.live[node]; !live && !l.running() {
			left = append(left, l)
		}
	}
	slices.SortFunc(left, func(a, b *link) int { return a.left().Compare(b.left()) })
	for _, l := range left[:max(0, len(left)-maxDeparted)] {
		delete(r.links, l.peer.Node)
	}
}

// setGone records that a node is gone or has come back. The lock is held.
func (r *Replicator) setGone(node string, gone bool) {
	if gone {
		r.gone[node] = true
		if r.goneAt[node].IsZero() {
			r.goneAt[node] = time.Now()
		}
	} else {
		delete(r.gone, node)
	}
	for _, m := range r.localMaps() {
		m.table.Update(func(tx *table.Tx) { tx.SetGone(node, gone) })
	}
}

// reviewOwners takes owners that no membership has for gone: they left before this node
// started, and while they do not count as gone no node may delete their records. It forgets
// the names of nodes that are gone and of which no record is left. The lock is held.
func (r *Replicator) reviewOwners() {
	v, owners := r.view.Load(), make(map[string]bool)
	for _, m := range r.localMaps() {
		for _, node := range m.owners() {
			owners[node] = true
		}
	}
	for node := range owners {
		if v.orphaned(node) && !r.gone[node] {
			r.opt.Logger.Info("owner of records was never seen and counts as gone", slog.String("peer", node))
			r.setGone(node, true)
		}
	}
	for node := range r.gone {
		if !owners[node] {
			r.setGone(node, false)
		}
	}
	known := len(r.proven)
	maps.DeleteFunc(r.proven, func(node string, _ bool) bool {
		return v.orphaned(node) && !owners[node] && r.goneAt[node].IsZero()
	})
	if len(r.proven) < known {
		r.setMembers()
	}
}
