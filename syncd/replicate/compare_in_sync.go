package replicate

import (
	"slices"
	"time"
)

// awaitsInSync reports whether the digests have not agreed since the given time. A comparison that
// could not be made is not an agreement.
//
// An agreement from before the last departure does not count: the records of the departed node are
// orphaned now, and belong to another digest. The caller holds inboundStream.mu.
func (in *inboundMap) awaitsInSync(since time.Time) bool {
	switch in.state {
	case StatePending, StateRefused, StateExcluded:
		// The peer has no copy of the map to compare with.
		return false
	case StateWaiting, StateFailed:
		return true // any agreement is from before the stream broke
	}
	c := &in.comparison
	return c.impossibleReason != "" || !c.inSync || !c.onThisStream || c.inSyncAt.Before(since) ||
		c.departures != in.stream.r.view.Load().departures
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
		s := r.inboundStreams[node]
		s.mu.Lock()
		for name, m := range r.localMaps() {
			in := s.maps[name]
			switch {
			case in == nil || in.m != m:
				// The map was added just now and is not subscribed to yet.
				missing = append(missing, node+"/"+name)
			case in.awaitsInSync(in.comparison.resyncStart) && !in.completeAboveLimit():
				missing = append(missing, node+"/"+name+in.notInSyncReason())
			}
		}
		s.mu.Unlock()
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
