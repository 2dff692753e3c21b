package replicate

import "slices"

// InitialSyncDone reports whether the initial sync of every map from every live peer is merged. If
// not, waiting lists what is missing: peer/map, or "membership" before the first SetPeers. It does
// not wait for a map that a peer lacks or that does not match the peer's.
//
// The initial sync from a peer that has not adopted its own entries yet is empty: two nodes that
// start together would otherwise wait for each other. A peer whose table was complete before a new map brought
// unversioned entries is waited for. It may become false again, when a peer joins
// or a map is added.
func (r *Replicator) InitialSyncDone() (ok bool, waiting []string) { return r.received(fromAdopted) }

// FittingReceived is InitialSyncDone, but also waits for peers that have not adopted their own entries
// yet. It reports whether every live peer whose map fits has sent all its records. The daemon decides about absent entries
// after that.
func (r *Replicator) FittingReceived() (ok bool, waiting []string) { return r.received(fromFitting) }

// AllReceived is FittingReceived, but also waits for peers whose map does not fit: they may hold records. The
// daemon stores the identity of the kernel map only after that.
func (r *Replicator) AllReceived() (ok bool, waiting []string) { return r.received(fromAll) }

// receivedFrom is the set of peers whose records received waits for. Each contains the ones before.
type receivedFrom uint8

const (
	fromAdopted receivedFrom = iota // peers that have adopted their own entries
	fromFitting                     // peers whose map fits
	fromAll
)

// received is InitialSyncDone, FittingReceived or AllReceived.
func (r *Replicator) received(from receivedFrom) (ok bool, waiting []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.membershipSince.IsZero() {
		return false, []string{"membership"}
	}
	v := r.view.Load()
	for node := range v.live {
		for _, name := range r.inboundStreams[node].unsyncedMaps(v, r.localMaps(), from) {
			waiting = append(waiting, node+"/"+name)
		}
	}
	slices.Sort(waiting)
	return len(waiting) == 0, waiting
}

// unsyncedMaps returns the names of the maps whose records received waits for. Nothing is complete before the roles are
// decided under the present view: if the fallback sender has left, another peer sends its records. The caller holds
// Replicator.mu, so no decision is under way. unsyncedMaps takes inboundStream.mu.
func (s *inboundStream) unsyncedMaps(v *view, maps map[string]*localMap, from receivedFrom) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range maps {
		if in := s.maps[name]; in == nil || in.m != m || m.rolesView != v || !in.synced(from) {
			names = append(names, name)
		}
	}
	return names
}

// synced reports whether nothing is left to wait for. A peer that does not have the map holds no records. A peer
// whose map does not fit may hold some, so it has not sent all of them. A state counts from the next decision about roles on:
// if the peer was to be the fallback sender and lacks the map, another one is asked for orphaned records then, and a peer that
// serves the map has only the request of newInboundOwners before. The caller holds inboundStream.mu.
func (in *inboundMap) synced(from receivedFrom) bool {
	if was := in.owners.decidedState; was != in.state && (was != StateSyncing || in.state != StateCaughtUp) {
		return false
	}
	switch in.state {
	case StatePending, StateExcluded:
		return true
	case StateRefused:
		return from < fromAll || in.allReceived
	}
	return in.fullSyncDone && in.requestsComplete() && (from == fromAdopted || in.allReceived)
}

// requestsComplete reports whether everything requested from the peer was received. A request for
// nothing is complete at once. The caller holds inboundStream.mu.
func (in *inboundMap) requestsComplete() bool {
	q := &in.owners
	return !in.stream.supportsOwnerRequests || q.confirmedSerial == q.serial || (!q.requested.orphaned && len(q.requested.nodes) == 0)
}
