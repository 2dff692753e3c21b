package replicate

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// touchChunk bounds how many records one Update looks at.
const touchChunk = 1024

// touchWork is one node's records in one map, to be moved to the tail.
type touchWork struct {
	m    *localMap
	node string
}

// SetPeers tells which nodes are live, other than this one. Streams to new ones
// begin, those to and from nodes that are gone end, and a peer with a new
// incarnation is met afresh. The slice is not kept.
//
// A node that was live and is not any more is gone: its records may be deleted
// by anyone, and the designated survivor streams them.
func (r *Replicator) SetPeers(live []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.view.Load()
	v := newView(old.epoch+1, r.opt.Self, live)
	r.view.Store(v)
	if r.known.IsZero() {
		r.known = time.Now()
	}
	for node, p := range v.live {
		r.seen[node] = true
		if r.gone[node] {
			r.setGone(node, false)
		}
		r.relink(p)
	}
	for node := range r.seen {
		if _, ok := v.live[node]; !ok && !r.gone[node] {
			r.setGone(node, true)
			r.links[node].stop()
			r.opt.Logger.Info("peer is gone", slog.String("peer", node))
		}
	}
	for s := range r.sessions {
		s.checkPeer(old, v)
	}
	r.planTouch(old, v)
	r.notify()
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

// setGone records that a node is gone or has come back. The lock is held.
func (r *Replicator) setGone(node string, gone bool) {
	if gone {
		r.seen[node], r.gone[node] = true, true
	} else {
		delete(r.gone, node)
	}
	for _, m := range r.localMaps() {
		m.table.Update(func(tx *table.Tx) { tx.SetGone(node, gone) })
	}
}

// findUnknown takes owners that no membership ever showed for gone. They died
// before this node started; while nobody says so, nobody may delete their
// records. The lock is held.
func (r *Replicator) findUnknown() {
	for _, m := range r.localMaps() {
		for _, node := range m.newOwners() {
			if node != r.opt.Self.Node && !r.seen[node] {
				r.opt.Logger.Info("owner of records was never seen and counts as gone", slog.String("peer", node))
				r.setGone(node, true)
			}
		}
	}
}

// planTouch notes whose records this node streams from now on in their owner's or another
// survivor's place. The lock is held.
func (r *Replicator) planTouch(old, v *view) {
	targets := make(map[string]bool)
	for s := range r.sessions {
		if !s.observing.Load() {
			targets[s.target.Node] = true
		}
	}
	for _, m := range r.localMaps() {
		for _, owner := range m.owners() {
			for target := range targets {
				if v.takesOver(old, owner, target) {
					r.touch[touchWork{m, owner}] = struct{}{}
				}
			}
		}
	}
}

// planResume does the same for a stream that goes on where one under an old view ended.
func (r *Replicator) planResume(m *localMap, old *view, target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, before := r.view.Load(), len(r.touch)
	for _, owner := range m.owners() {
		if v.takesOver(old, owner, target) {
			r.touch[touchWork{m, owner}] = struct{}{}
		}
	}
	if len(r.touch) > before {
		poke(r.wake)
	}
}

// doTouch moves the records of planned nodes to the tails of their tables, in
// chunks, so that nobody waits long for the table.
func (r *Replicator) doTouch(ctx context.Context) {
	r.mu.Lock()
	work := slices.Collect(maps.Keys(r.touch))
	clear(r.touch)
	r.mu.Unlock()
	for _, w := range work {
		r.opt.Logger.Info("streaming records in their owner's place",
			slog.String("peer", w.node), slog.String("map", w.m.name))
		c := w.m.table.NewCursor(0)
		for more := true; more && ctx.Err() == nil; {
			w.m.table.Update(func(tx *table.Tx) { more = tx.Touch(w.node, c, touchChunk) })
		}
		c.Close()
	}
}
