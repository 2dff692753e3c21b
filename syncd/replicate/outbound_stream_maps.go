package replicate

import (
	"fmt"
	"slices"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
)

// subscribe adds a subscription. The first one of a replica ends the peer's other streams, after
// s.mu is released: Replicator.mu is never taken while s.mu is held.
//
// The receiving goroutine calls it, without a lock. An error ends the stream. It wraps errProtocol
// or is a gRPC status. A stream that observes replaces none: an observer may have several.
func (s *outboundStream) subscribe(m *mapsyncv1.MapSubscription) error {
	first, err := s.addMap(m)
	if err == nil && first && !m.GetObserve() {
		s.r.replaceStreams(s)
	}
	return err
}

// addMap adds the map stream of a subscription, and reports whether it is the first one of the
// stream. The map need not exist: the sending goroutine answers the subscription in its next round,
// and again when the map is added. addMap takes s.mu.
func (s *outboundStream) addMap(m *mapsyncv1.MapSubscription) (first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSubscription(m); err != nil {
		return false, err
	}
	request, err := readOwners(m.GetOwners())
	if err != nil {
		return false, err
	}
	// The first subscription decides whether the stream observes. All others must agree with it.
	if first = s.lastIndex == 0; first {
		if err := s.checkRole(m.GetObserve()); err != nil {
			return false, err
		}
		// Both are set before the map stream is in the list, so that no other goroutine takes an
		// observer for a replica.
		s.observing.Store(m.GetObserve())
		s.subscribed.Store(true)
	}
	s.lastIndex = m.GetMap()
	s.maps = append(s.maps, newOutboundMap(s, m, request))
	poke(s.wake)
	return first, nil
}

// checkSubscription returns an error that wraps errProtocol if a subscription violates the
// protocol. It does not check whether this node has the map or whether the schemas fit: these cases
// are answered with Pending or Refused, and the stream continues. The caller holds s.mu.
func (s *outboundStream) checkSubscription(m *mapsyncv1.MapSubscription) error {
	switch {
	// Numbers ascend and are not used again, so that a late message cannot refer to a newer
	// subscription.
	case m.GetMap() <= s.lastIndex:
		return fmt.Errorf("subscription %d after %d: %w", m.GetMap(), s.lastIndex, errProtocol)
	case len(s.maps) >= 2*MaxMaps:
		// Twice the limit: the list includes subscriptions that have ended and are not removed yet.
		return fmt.Errorf("more than %d subscriptions: %w", MaxMaps, errProtocol)
	case wire.CheckName(m.GetName()) != nil:
		return fmt.Errorf("map name of %d bytes: %w", len(m.GetName()), errProtocol)
	// Two processes with one name would each treat the records of the other as its own.
	case !m.GetObserve() && s.target.Node == s.r.opt.Self.Node:
		return fmt.Errorf("replicate to node name %q, which is this node's own: %w", s.target.Node, errProtocol)
	case s.lastIndex > 0 && m.GetObserve() != s.observing.Load():
		return fmt.Errorf("subscriptions of one stream must all observe or all replicate: %w", errProtocol)
	// The limits of digests and resends count per subscription.
	case slices.ContainsFunc(s.maps, func(out *outboundMap) bool { return out.name == m.GetName() && !out.unsubscribed.Load() }):
		return fmt.Errorf("second subscription to map %q: %w", m.GetName(), errProtocol)
	}
	return nil
}

// unsubscribe marks the map stream of a subscription as ended. The sending goroutine removes it.
// The caller holds s.mu. Batches that were sent before may still arrive at the peer, which ignores
// them. The error wraps errProtocol.
func (s *outboundStream) unsubscribe(index uint32) error {
	if index > s.lastIndex {
		return fmt.Errorf("end of unknown subscription %d: %w", index, errProtocol)
	}
	// The end of a subscription by this node and by the peer may cross, so a missing map stream is
	// not an error.
	if out := s.findMap(index); out != nil {
		out.unsubscribed.Store(true)
		s.noteEnd(out)
		poke(s.wake)
	}
	return nil
}

// findMap returns the map stream of a subscription, or nil. The caller holds s.mu. The result may
// belong to a subscription that has ended and is not removed yet.
func (s *outboundStream) findMap(index uint32) *outboundMap {
	for _, out := range s.maps {
		if out.index == index {
			return out
		}
	}
	return nil
}

// removeMap closes a map stream and removes it from the list. Only the sending goroutine calls it,
// without a lock: it owns the cursors and buffers that close releases.
func (s *outboundStream) removeMap(out *outboundMap) {
	out.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteEnd(out)
	s.maps = slices.DeleteFunc(s.maps, func(o *outboundMap) bool { return o == out })
}

// noteEnd records the time at which the subscription to a map of this node ended. The caller holds
// s.mu.
func (s *outboundStream) noteEnd(out *outboundMap) {
	// The peer chooses the names of other maps.
	if s.r.localMaps()[out.name] == nil {
		return
	}
	if s.endedAt == nil {
		s.endedAt = make(map[string]time.Time)
	}
	s.endedAt[out.name] = time.Now()
}
