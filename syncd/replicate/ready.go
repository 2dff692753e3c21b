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
// yet. It reports whether every live peer has sent all its records. The daemon stores the identity
// of the kernel map only after that.
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
// takes l.mu.
func (l *inboundStream) unsyncedMaps(maps map[string]*localMap, all bool) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, m := range maps {
		in := l.maps[name]
		if in == nil || in.m != m || ((!in.fullSyncDone || !in.requestsComplete() || (all && !in.allReceived)) && in.state != StatePending && in.state != StateRefused && in.state != StateExcluded) {
			names = append(names, name)
		}
	}
	return names
}

// requestsComplete reports whether everything requested from the peer was received. A request for
// nothing is complete at once. The caller holds inboundStream.mu.
func (in *inboundMap) requestsComplete() bool {
	q := &in.owners
	return !in.l.supportsOwnerRequests || q.confirmedSerial == q.serial || (!q.requested.orphaned && len(q.requested.nodes) == 0)
}

// InSync reports whether the digests of every map have agreed with those of every live peer over
// the current stream. If not, missing lists what is missing as peer/map, with the reason in
// brackets if a comparison could not be made. InSync does not wait for a map that a peer lacks or
// that does not match the peer's. It also does not wait for a peer that has sent everything and has
// more records than the table may hold. It returns false before the first SetPeers.
//
// A node that starts waits for it before it becomes ready, so that it does not receive traffic with
// a copy that lacks records. It takes Replicator.mu and then the lock of each inbound stream.
func (r *Replicator) InSync() (ok bool, missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.membershipSince.IsZero() {
		return false, []string{"membership"}
	}
	for node := range r.view.Load().live {
		l := r.inboundStreams[node]
		l.mu.Lock()
		for name, m := range r.localMaps() {
			in := l.maps[name]
			switch {
			case in == nil || in.m != m:
				// The map was added just now and is not subscribed to yet.
				missing = append(missing, node+"/"+name)
			case in.awaitsInSync(in.comparison.resyncStart) && !in.completeAboveLimit():
				missing = append(missing, node+"/"+name+in.notInSyncReason())
			}
		}
		l.mu.Unlock()
	}
	slices.Sort(missing)
	return len(missing) == 0, missing
}

// notInSyncReason returns the text in brackets for a map that is not in sync, or an empty string.
// The caller holds inboundStream.mu.
func (in *inboundMap) notInSyncReason() string {
	if via := in.owners.via; via != "" {
		return " (nothing is received from it, its records come through " + via + ")"
	}
	if why := in.comparison.incomparableReason(); why != "" {
		return " (unknown: " + why + ")"
	}
	return ""
}
