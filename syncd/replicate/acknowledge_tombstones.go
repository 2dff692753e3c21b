package replicate

import (
	"maps"
	"math"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// subscribeGrace is the time after which syncd assumes that a connected peer without a subscription
// to a map does not have that map. It begins again when a subscription ends: the peer may subscribe
// again, from an earlier position.
const subscribeGrace = time.Minute

// ackSnapshot is the sending side of all streams at one moment. It decides which positions the table
// may treat as acknowledged, so that it can forget tombstones early. It belongs to one goroutine.
type ackSnapshot struct {
	// now is the wall clock at which the snapshot was taken.
	now time.Time
	// live is the membership of the snapshot, by node name, without this node. It is never changed.
	live map[string]Peer
	// streams are all registered outbound streams, in no order.
	streams []*outboundStream
	// inbound are the inbound streams of the live nodes, in no order.
	inbound []*inboundStream
	// goneAt is a copy of Replicator.goneAt.
	goneAt map[string]time.Time
	// unverifiedAt is Replicator.unverifiedAt: when an owner that was never live was last found.
	unverifiedAt time.Time
	// membershipSince is the time of the first SetPeers. Zero: SetPeers was not called yet.
	membershipSince time.Time
	// expected is Options.Expected, the number of configured peers.
	expected int
}

// acknowledge sets in each table the position up to which every node that may hold a record has
// acknowledged the changes.
func (r *Replicator) acknowledge(now time.Time) {
	v := r.ackSnapshot(now)
	for _, m := range r.localMaps() {
		if m.unsentDeletes.stored() {
			m.resendSendable()
		}
		position := m.arrivals.settle(v, v.position(m), m.table.Stats().Tombstones > 0)
		m.table.View(func(tx *table.Tx) { tx.SetAcknowledged(position) })
		v.forgetUnheldOverflow(m)
	}
}

// ackSnapshot returns the current state. It takes Replicator.mu and no outboundStream.mu. The
// caller takes the locks of the streams later, one at a time.
func (r *Replicator) ackSnapshot(now time.Time) *ackSnapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &ackSnapshot{
		now: now, live: r.view.Load().live, membershipSince: r.membershipSince, expected: r.opt.Expected,
		goneAt: make(map[string]time.Time), unverifiedAt: r.unverifiedAt,
	}
	r.forgetDepartures(now)
	maps.Copy(v.goneAt, r.goneAt)
	for s := range r.outboundStreams {
		v.streams = append(v.streams, s)
	}
	for node := range v.live {
		v.inbound = append(v.inbound, r.inboundStreams[node])
	}
	return v
}

// position returns the position of a map that all live peers and all observers have reached. It
// returns 0 while a node is absent that may return within the lifetime of a tombstone, while a
// live peer is not served, while this node lacks records that it has filtered, and while it cannot send a delete. A peer that
// has been connected for subscribeGrace without a subscription to the map does not count.
func (v *ackSnapshot) position(m *localMap) uint64 {
	ttl := m.table.TombstoneTTL()
	lacks := func(s *inboundStream) bool { return s.lacksFiltered(m, v.now, ttl) }
	if v.membershipSince.IsZero() || v.hasAbsentNodes(ttl) || slices.ContainsFunc(v.inbound, lacks) {
		return 0
	}
	least := uint64(math.MaxUint64)
	served := make(map[string]bool, len(v.live))
	for _, s := range v.streams {
		position, state := s.ackedPosition(m, v.now)
		p, live := v.live[s.target.Node]
		switch {
		case state == ackObserver:
			least = min(least, position)
		case !live || p.Incarnation != s.target.Incarnation:
		case state == ackServed:
			served[s.target.Node] = true
			least = min(least, position)
		case state == ackNone && v.now.Sub(s.withoutMapSince(m.name)) > subscribeGrace:
			served[s.target.Node] = true // the peer does not have the map
		}
	}
	for node := range v.live {
		if !served[node] {
			return 0
		}
	}
	if m.unsentDeletes.stored() { // after the positions were read: a stream notes a delete before the peer acknowledges it
		return 0
	}
	return least
}

// hasAbsentNodes reports whether a node may return with old records within ttl. It returns true in
// these cases:
//
//   - A known node left less than ttl ago.
//   - An owner that was never live was found less than ttl ago. It may have been partitioned since
//     before this node started, and may return with its records.
//   - Fewer peers than expected are live, and the first SetPeers was less than ttl ago.
func (v *ackSnapshot) hasAbsentNodes(ttl time.Duration) bool {
	for _, at := range v.goneAt {
		if v.now.Sub(at) < ttl {
			return true
		}
	}
	return v.now.Sub(v.unverifiedAt) < ttl || len(v.live) < v.expected && v.now.Sub(v.membershipSince) < ttl
}

// lacksFiltered reports whether this node has filtered records of its earlier incarnations that the peer has, or deletes, and
// the full sync that brings them again has not ended. The peer has acknowledged a delete of such a record, too, if its record
// is above the delete. A peer without the map has none. Some records stay filtered for ever, so a tombstone waits for ttl at
// most, as without an acknowledgement. It takes inboundStream.mu.
func (s *inboundStream) lacksFiltered(m *localMap, now time.Time, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.maps[m.name]
	if in == nil || in.m != m || in.state == StatePending || in.state == StateRefused || in.state == StateExcluded {
		return false
	}
	return (in.unheld.Load() || in.sweep) && (in.unheldSince.IsZero() || now.Sub(in.unheldSince) < ttl)
}

// ackState is the state of one map on one outbound stream, for acknowledgements.
type ackState uint8

const (
	ackNone     ackState = iota // the peer has no subscription to the map
	ackPending                  // the subscription is not served yet
	ackServed                   // a replica receives the map; its acknowledged position counts
	ackObserver                 // an observer receives the map; the position sent counts
)

// ackedPosition returns the position of a map that the peer has acknowledged. For an observer,
// which acknowledges nothing, it returns the position sent. The position is 0 for ackNone and
// ackPending, and, for a lifetime of tombstones at most, while the peer has not merged all deletes that it acknowledges, or is not
// ready.
func (s *outboundStream) ackedPosition(m *localMap, now time.Time) (position uint64, state ackState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, out := range s.maps {
		switch {
		case out.name != m.name || out.unsubscribed.Load():
		case !out.serving.Load():
			if !out.observe {
				return 0, ackPending
			}
		case out.observe:
			return out.sentPosition.Load(), ackObserver
		case out.peerIsUnready() && now.Sub(s.startedAt) < m.table.TombstoneTTL():
			return 0, ackServed
		case out.unheld.Load() && m.unheldPeers.hold(s.target.Node, now, m.table.TombstoneTTL()):
			return 0, ackServed
		default:
			return out.ackedPosition.Load(), ackServed
		}
	}
	return 0, ackNone
}

// peerIsUnready reports whether the peer is not ready, or has yet to report its state. It may then have older records of keys that
// other nodes have deleted, and acknowledges only the changes of this node.
func (out *outboundMap) peerIsUnready() bool {
	report := out.peerReport.Load()
	return report == nil || report.m.GetState() == NodeStateNotReady
}

// servedMap returns the stream of a map that is served to a replica, or nil.
func (s *outboundStream) servedMap(name string) *outboundMap {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, out := range s.maps {
		if out.name == name && !out.observe && !out.unsubscribed.Load() && out.serving.Load() {
			return out
		}
	}
	return nil
}

// withoutMapSince returns since when the stream has had no subscription to a map. It is valid only if
// the stream has none.
func (s *outboundStream) withoutMapSince(name string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.endedAt[name]; ok {
		return at
	}
	return s.startedAt
}
