package replicate

import (
	"maps"
	"math"
	"time"

	"mapsync/syncd/table"
)

// subscribeGrace is the time after which a connected peer that has not subscribed to a map does
// not hold it.
const subscribeGrace = time.Minute

// ackView is the outbound side of all map streams at one moment: what has to be acknowledged
// before a table may forget a tombstone early.
type ackView struct {
	now      time.Time
	live     map[string]Peer
	sessions []*session
	goneAt   map[string]time.Time
	stranger time.Time // Replicator.strangerAt
	known    time.Time // of the first SetPeers
	expected int
}

// acknowledge notes in each table the position up to which every node that may hold a
// record has acknowledged its changes.
func (r *Replicator) acknowledge(now time.Time) {
	v := r.ackView(now)
	for _, m := range r.localMaps() {
		position := v.position(m)
		m.table.View(func(tx *table.Tx) { tx.SetAcknowledged(position) })
	}
}

// ackView returns the present state. The locks of sessions are taken after the replicator's lock
// is released.
func (r *Replicator) ackView(now time.Time) *ackView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &ackView{
		now: now, live: r.view.Load().live, known: r.known, expected: r.opt.Expected,
		goneAt: make(map[string]time.Time), stranger: r.strangerAt,
	}
	r.forgetDepartures(now)
	maps.Copy(v.goneAt, r.goneAt)
	for s := range r.sessions {
		v.sessions = append(v.sessions, s)
	}
	return v
}

// forgetDepartures drops the nodes that left longer ago than any tombstone lives. The lock is held.
func (r *Replicator) forgetDepartures(now time.Time) {
	longest := time.Duration(0)
	for _, m := range r.localMaps() {
		longest = max(longest, m.table.TombstoneTTL())
	}
	maps.DeleteFunc(r.goneAt, func(_ string, at time.Time) bool { return now.Sub(at) >= longest })
}

// position returns the position of a map that all have acknowledged; 0 if a node is away that may
// come back within the lifetime of a tombstone.
func (v *ackView) position(m *localMap) uint64 {
	ttl := m.table.TombstoneTTL()
	if v.known.IsZero() || v.absent(ttl) {
		return 0
	}
	least := uint64(math.MaxUint64)
	served := make(map[string]bool, len(v.live))
	for _, s := range v.sessions {
		position, state := s.acknowledged(m)
		p, live := v.live[s.target.Node]
		switch {
		case state == ackObserver:
			least = min(least, position)
		case !live || p.Incarnation != s.target.Incarnation:
		case state == ackServed:
			served[s.target.Node] = true
			least = min(least, position)
		case state == ackUnwanted && v.now.Sub(s.begun) > subscribeGrace:
			served[s.target.Node] = true // the peer has no such map
		}
	}
	for node := range v.live {
		if !served[node] {
			return 0
		}
	}
	return least
}

// absent reports whether a known node left less than a time ago, an owner that was never live was
// found less than a time ago, or expected nodes were not seen yet. Such an owner may be cut off
// since before this node started, and come back with the records that it had.
func (v *ackView) absent(ttl time.Duration) bool {
	for _, at := range v.goneAt {
		if v.now.Sub(at) < ttl {
			return true
		}
	}
	return v.now.Sub(v.stranger) < ttl || len(v.live) < v.expected && v.now.Sub(v.known) < ttl
}

// ackState is what a session has to do with a map.
type ackState uint8

const (
	ackUnwanted ackState = iota // no subscription
	ackPending                  // a subscription that is not served yet
	ackServed
	ackObserver
)

// acknowledged returns the position of a map that the peer has acknowledged, or that an observer
// was sent.
func (s *session) acknowledged(m *localMap) (position uint64, state ackState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.feeds {
		switch {
		case f.name != m.name || f.unwanted.Load():
		case !f.serving.Load():
			if !f.observe {
				return 0, ackPending
			}
		case f.observe:
			return f.sent.Load(), ackObserver
		default:
			return f.acked.Load(), ackServed
		}
	}
	return 0, ackUnwanted
}
