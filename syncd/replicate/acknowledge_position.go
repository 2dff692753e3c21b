package replicate

import (
	"fmt"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// ackQueue is a queue of positions that the table's writer has not applied yet, oldest first. When
// it is full, a new position replaces the newest one, which it includes.
type ackQueue struct {
	// points[:n] are in use. Their positions and heads do not decrease.
	points [32]ackPoint
	// n is at most len(points). push and pop change it, and the end of a subscription sets it to 0.
	n int
}

// ackPoint is a position of the peer that the kernel map holds once the writer has applied head, a
// position of this node's table.
type ackPoint struct {
	// position is never above inboundMap.position.
	position uint64
	// head is the head of this node's table when all records up to position were merged. It is never above the current one.
	head uint64
}

// push appends a position that the kernel map holds once the writer has applied head. Neither
// decreases between calls.
func (q *ackQueue) push(position, head uint64) {
	// The newest element is replaced: a later position includes it.
	if q.n == len(q.points) {
		q.n--
	}
	q.points[q.n] = ackPoint{position, head}
	q.n++
}

// pop removes all positions that the writer has applied, and returns the highest of them.
func (q *ackQueue) pop(applied uint64) (position uint64, ok bool) {
	n := 0
	for n < q.n && q.points[n].head <= applied {
		position, ok = q.points[n].position, true
		n++
	}
	q.n = copy(q.points[:], q.points[n:q.n])
	return position, ok
}

// appendAcks appends acknowledgements of the positions that the kernel maps hold by now, and of changes of Ack.unheld.
//
// Only the requesting goroutine calls it. An acknowledgement lets the owner forget tombstones, so
// it must not be early: the kernel map holds the records, except for those that it refused.
func (s *inboundStream) appendAcks(out []*mapsyncv1.SubscribeRequest) []*mapsyncv1.SubscribeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	for index, in := range s.byIndex {
		position := in.appliedPosition()
		// A position covers what was filtered before it, so it is determined first.
		unheld := in.unheld.Load()
		if position <= in.ackedPosition && (unheld == in.ackedUnheld || !in.served()) {
			continue
		}
		in.ackedPosition, in.ackedUnheld = max(position, in.ackedPosition), unheld
		out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{
			Ack: &mapsyncv1.Ack{Map: index, Position: in.ackedPosition, Unheld: unheld},
		}})
	}
	return out
}

// appliedPosition returns a position of the peer that is in the kernel map: the writer has applied the changes that were merged up
// to it. 0: no other one than before. The caller holds inboundStream.mu.
func (in *inboundMap) appliedPosition() (position uint64) {
	if in.pendingAcks.n == 0 {
		return 0
	}
	var applied uint64
	in.m.table.View(func(tx *table.Tx) { applied = tx.AppliedPosition() })
	position, _ = in.pendingAcks.pop(applied)
	return position
}

// handleAck stores an acknowledged position. The caller holds s.mu. Replicator.acknowledge reads it
// later. The error wraps errProtocol.
func (s *outboundStream) handleAck(a *mapsyncv1.Ack) error {
	if a.GetMap() > s.lastIndex {
		return fmt.Errorf("acknowledgement for unknown subscription %d: %w", a.GetMap(), errProtocol)
	}
	out := s.findMap(a.GetMap())
	if out == nil {
		return nil // it has ended in the meantime
	}
	// A position that was not sent would let the table forget tombstones that the peer does not have.
	if sent := out.sentPosition.Load(); a.GetPosition() > sent {
		return fmt.Errorf("acknowledgement of position %d of %q, sent up to %d: %w", a.GetPosition(), out.name, sent, errProtocol)
	}
	out.unheld.Store(a.GetUnheld())
	if m := s.r.localMaps()[out.name]; m != nil && a.GetUnheld() {
		m.unheldPeers.note(s.target.Node, time.Now(), m.table.TombstoneTTL())
	}
	// Only the receiving goroutine stores the position. It never decreases: the kernel map has held
	// this position once, or newer entries in its place.
	if a.GetPosition() > out.ackedPosition.Load() {
		out.ackedPosition.Store(a.GetPosition())
	}
	return nil
}

// noteAcknowledged stores the position of acknowledgedBy for the maps of which a full sync or a resend is about to be
// requested, and 0 for the others: one of them may become due before its request. Only the requesting goroutine calls it.
func (s *inboundStream) noteAcknowledged() {
	var due []*inboundMap
	s.mu.Lock()
	for _, in := range s.maps {
		in.acknowledged = 0
		if in.index == 0 || in.comparison.resendBuckets != nil || !in.repeatFullSyncAt.IsZero() {
			due = append(due, in)
		}
	}
	s.mu.Unlock()
	for _, in := range due {
		position := s.r.acknowledgedBy(s.peer, in.m)
		s.mu.Lock()
		in.acknowledged = position
		s.mu.Unlock()
	}
}

// acknowledgedBy returns the position of a map up to which a peer has merged the records of its earlier
// incarnations. It is 0 if the peer is not served, or has not merged all of those that this node has sent. It takes Replicator.mu, and then the lock of each stream to the peer.
func (r *Replicator) acknowledgedBy(peer table.Owner, m *localMap) (position uint64) {
	r.mu.Lock()
	var streams []*outboundStream
	for s := range r.outboundStreams {
		if s.target == peer {
			streams = append(streams, s)
		}
	}
	r.mu.Unlock()
	for _, s := range streams {
		out := s.servedMap(m.name)
		if out == nil {
			continue
		}
		// handleAck stores unheld before the position that depends on it.
		if acked := out.ackedPosition.Load(); !out.unheld.Load() {
			position = max(position, acked)
		}
	}
	return position
}
