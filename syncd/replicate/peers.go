package replicate

import (
	"log/slog"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// maxDeparted bounds the inbound streams kept for nodes that have left. They keep positions for the
// case that the same incarnation comes back.
const maxDeparted = 256

// SetPeers sets the live nodes other than this one. It starts streams to new nodes and ends those
// to and from nodes that have left. A peer with a new incarnation gets a new stream without
// positions. The slice is not kept.
//
// A node that was live and is not in the list has left. Any node may then delete its records, and
// fallback senders send them.
//
// If Discover is in use, only verifyNodes calls SetPeers. It takes Replicator.mu, and within it the
// locks of inbound streams and tables. It waits for no stream.
func (r *Replicator) SetPeers(live []Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.view.Load()
	v := newView(old, r.opt.Self, live)
	// Streams read the view without a lock, so from here on some of them use it and some do not.
	r.view.Store(v)
	if r.membershipSince.IsZero() {
		r.membershipSince = time.Now()
	}
	for node := range v.live {
		r.everLive[node] = true
	}
	// everLive is complete before the tables use it to recognise unverified owners.
	r.setMembers()
	moved := r.movedNodes(old, v)
	r.setGone(moved)
	// The tables have the new members. Now the streams follow.
	for _, p := range v.live {
		r.updateInboundStream(p)
	}
	// The streams of nodes that have left end, but their positions are kept.
	for node, gone := range moved {
		if gone {
			// The same incarnation may come back after a partition, and then resumes.
			r.inboundStreams[node].peerDeparted()
			r.opt.Logger.Info("peer has left", slog.String("peer", node))
		}
	}
	r.forgetInboundStreams(v)
	// cancel does not wait, so it may be called with r.mu held.
	for s := range r.outboundStreams {
		s.checkPeer(old, v)
	}
	r.notify()
}

// movedNodes returns the nodes whose state changes from the view old to v: false for those that are back, true for those
// that left. The caller holds mu.
func (r *Replicator) movedNodes(old, v *view) map[string]bool {
	moved := make(map[string]bool)
	for node := range v.live {
		delete(r.goneAt, node)
		if r.gone[node] {
			moved[node] = false
		}
	}
	// A node that has restarted is in both views. It has not left, and its records are not
	// orphaned.
	for node := range old.live {
		if _, ok := v.live[node]; !ok {
			moved[node] = true
		}
	}
	return moved
}

// members returns the names of the live nodes, and of nodes that were live earlier. The caller
// holds r.mu. A node that membership never had is in neither list: tables treat it as an unverified owner.
func (r *Replicator) members() (live, left []string) {
	v := r.view.Load()
	for node := range r.everLive {
		if _, ok := v.live[node]; !ok {
			left = append(left, node)
		}
	}
	return v.names(), left
}

// setMembers passes the current members to all tables. The caller holds r.mu. AddMap does the same
// for a table that is added later.
func (r *Replicator) setMembers() {
	live, left := r.members()
	for _, m := range r.localMaps() {
		m.table.View(func(tx *table.Tx) { tx.SetMembers(live, left) })
	}
}

// updateInboundStream creates or updates the inbound stream of a live peer. The caller holds r.mu.
// It only creates the stream. Run starts it.
func (r *Replicator) updateInboundStream(p Peer) {
	s := r.inboundStreams[p.Node]
	switch {
	case s == nil:
	case s.peer.Incarnation != p.Incarnation:
		s.stop() // discards the positions of the earlier incarnation
	case s.currentPeer().Addr != p.Addr:
		// The positions stay valid: it is the same process at another address.
		s.setAddr(p.Addr)
		return
	default:
		return
	}
	r.inboundStreams[p.Node] = newInboundStream(r, p)
}

// forgetInboundStreams removes the inbound streams of nodes that have left, above maxDeparted,
// those that left first. The caller holds r.mu. A forgotten node begins with full syncs if it
// returns, which costs time and loses nothing. A stream that is still ending is kept until the next
// call.
func (r *Replicator) forgetInboundStreams(v *view) {
	if len(r.inboundStreams) <= len(v.live)+maxDeparted {
		return
	}
	var left []*inboundStream
	for node, s := range r.inboundStreams {
		if _, live := v.live[node]; !live && !s.running() {
			left = append(left, s)
		}
	}
	slices.SortFunc(left, func(a, b *inboundStream) int { return a.departedAt().Compare(b.departedAt()) })
	for _, s := range left[:max(0, len(left)-maxDeparted)] {
		delete(r.inboundStreams, s.peer.Node)
	}
}
