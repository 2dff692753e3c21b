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

// maxLoggedOwners bounds the owners that one log line names.
const maxLoggedOwners = 5

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
	moved := make(map[string]bool)
	for node := range v.live {
		delete(r.goneAt, node)
		if r.gone[node] {
			moved[node] = false
		}
	}
	for node := range old.live {
		if _, ok := v.live[node]; !ok {
			moved[node] = true
		}
	}
	r.setGone(moved)
	for _, p := range v.live {
		r.relink(p)
	}
	for node, gone := range moved {
		if gone {
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

// setGone records which nodes are gone (true) and which are back or forgotten (false). The lock
// is held.
func (r *Replicator) setGone(nodes map[string]bool) {
	if len(nodes) == 0 {
		return
	}
	now := time.Now()
	for node, gone := range nodes {
		switch {
		case !gone:
			delete(r.gone, node)
			continue
		case !r.proven[node]:
			r.strangerAt = now
		case r.goneAt[node].IsZero():
			r.goneAt[node] = now
		}
		r.gone[node] = true
	}
	for _, m := range r.localMaps() {
		m.table.Update(func(tx *table.Tx) { tx.SetGone(nodes) })
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
	moved, strangers := make(map[string]bool), []string(nil)
	for node := range owners {
		if v.orphaned(node) && !r.gone[node] {
			moved[node] = true
			strangers = append(strangers, node)
		}
	}
	for node := range r.gone {
		if !owners[node] {
			moved[node] = false
		}
	}
	r.setGone(moved)
	r.logStrangers(strangers)
	known := len(r.proven)
	maps.DeleteFunc(r.proven, func(node string, _ bool) bool {
		return v.orphaned(node) && !owners[node] && r.goneAt[node].IsZero()
	})
	if len(r.proven) < known {
		r.setMembers()
	}
}

// logStrangers logs that owners were never seen, in one line: peers can name any number of them.
func (r *Replicator) logStrangers(nodes []string) {
	if len(nodes) == 0 {
		return
	}
	slices.Sort(nodes)
	r.opt.Logger.Info("owners of records were never seen and count as gone",
		slog.Int("owners", len(nodes)), slog.Any("peers", nodes[:min(len(nodes), maxLoggedOwners)]))
}
