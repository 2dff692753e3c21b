package replicate

import "slices"

// InitialSyncDone reports whether the initial sync of every map from every live peer is merged. If
// not, waiting lists what is missing: peer/map, or "membership" before the first SetPeers. It does
// not wait for a map that a peer lacks or that does not match the peer's.
//
// The initial sync from a peer that has not adopted its own entries yet is empty: two nodes that
// start together would otherwise wait for each other. It may become false again, when a peer joins
// or a map is added.
func (r *Replicator) InitialSyncDone() (ok bool, waiting []string) { return r.received(false) }

// AllReceived is InitialSyncDone, but also waits for peers that have not adopted their own entries
// yet, and for peers whose map does not fit. It reports whether every live peer has sent all its records. The
// daemon stores the identity of the kernel map only after that.
func (r *Replicator) AllReceived() (ok bool, waiting []string) { return r.received(true) }

// received is InitialSyncDone, or AllReceived if all is set.
func (r *Replicator) received(all bool) (ok bool, waiting []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.membershipSince.IsZero() {
		return false, []string{"membership"}
	}
	for node := range r.view.Load().live {
		for _, name := range r.inboundStreams[node].unsyncedMaps(r.localMaps(), all) {
			waiting = append(waiting, node+"/"+name)
		}
	}
	slices.Sort(waiting)
	return len(waiting) == 0, waiting
}

// unsyncedMaps returns the names of the maps whose initial sync from the peer is not complete. If
// all is set, these include maps of which the peer has not sent all records: see AllReceived. It
// takes inboundStream.mu.
func (s *inboundStream) unsyncedMaps(maps map[string]*localMap, all bool) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range maps {
		if in := s.maps[name]; in == nil || in.m != m || !in.synced(all) {
			names = append(names, name)
		}
	}
	return names
}

// synced reports whether nothing is left to wait for. A peer that does not have the map holds no records. A peer
// whose map does not fit may hold some, so it has not sent all of them. The caller holds inboundStream.mu.
func (in *inboundMap) synced(all bool) bool {
	switch in.state {
	case StatePending, StateExcluded:
		return true
	case StateRefused:
		return !all || in.allReceived
	}
	return in.fullSyncDone && in.requestsComplete() && (!all || in.allReceived)
}

// requestsComplete reports whether everything requested from the peer was received. A request for
// nothing is complete at once. The caller holds inboundStream.mu.
func (in *inboundMap) requestsComplete() bool {
	q := &in.owners
	return !in.stream.supportsOwnerRequests || q.confirmedSerial == q.serial || (!q.requested.orphaned && len(q.requested.nodes) == 0)
}
