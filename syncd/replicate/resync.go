package replicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrInconclusive is wrapped by the errors about comparisons that could not be made. It is then
// unknown whether the nodes hold the same records. Everything is merged in that case.
var ErrInconclusive = errors.New("comparison inconclusive")

// Resync requests a full sync of a map from all live peers, deletes records that the peers no
// longer have, and requests a comparison in both directions. It returns once everything is merged
// and the digests agree. If progress is not nil, Resync calls it periodically with the peers that
// it waits for, the number of records received and the expected total. The errors wrap ErrNotFound
// if the map is unknown, wrap ErrInconclusive if everything is merged and cannot be compared, or
// are those of ctx.
//
// A peer that leaves meanwhile is not waited for, one that joins is. The records of this node stay
// during the full syncs: the end of each one deletes only records of its peer that the peer no
// longer has.
func (r *Replicator) Resync(ctx context.Context, name string, progress func(peers []string, done, total int)) error {
	if r.localMaps()[name] == nil {
		return fmt.Errorf("resync map %q: %w", name, ErrNotFound)
	}
	// Both directions are compared: this node requests full syncs, and sends its own digests at once.
	began := time.Now()
	for _, s := range r.forceFullSyncs(name, began) {
		// The peers compare with this node's digests, so that Resync covers both directions.
		s.sendDigestNow(name)
	}
	tick := time.NewTicker(housekeepingInterval / 5)
	defer tick.Stop()
	for {
		// The operator may remove the map while Resync waits.
		if r.localMaps()[name] == nil {
			return fmt.Errorf("resync map %q: the map was removed", name)
		}
		waiting, done, total, unknown := r.resyncProgress(name, began)
		if len(waiting) == 0 {
			return unknown
		}
		if progress != nil {
			progress(waiting, done, total)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("resync map %q, waiting for %v: %w", name, waiting, ctx.Err())
		case <-tick.C:
		}
	}
}

// forceFullSyncs requests the full syncs of a resync, and returns the outbound streams. The caller
// takes their locks after this function has released Replicator.mu. A peer without a subscription
// so far begins with a full sync anyway.
func (r *Replicator) forceFullSyncs(name string, began time.Time) []*outboundStream {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		r.inboundStreams[node].forceFullSync(name, began)
	}
	return slices.Collect(maps.Keys(r.outboundStreams))
}

// forceFullSync requests a full sync of a map. Only agreements of digests after now count. It
// replaces a repeated full sync that is due later. It takes inboundStream.mu.
func (s *inboundStream) forceFullSync(name string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.maps[name]; in != nil {
		// The next round of requests ends the subscription and begins a new one at position 0.
		in.repeatFullSyncAt, in.comparison.resyncStart, in.fullSyncRecords = now, now, 0
		in.comparison.inSync = false
		poke(s.wake)
	}
}

// sendDigestNow makes the next digest of a map due now. The peer then compares without waiting for
// an interval. It takes s.mu, so the caller must not hold Replicator.mu.
func (s *outboundStream) sendDigestNow(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, out := range s.maps {
		if out.name == name && !out.observe {
			out.comparison.digestNow.Store(true)
			poke(s.wake)
		}
	}
}

// resyncProgress returns the peers that a resync waits for, and an error about the other peers that
// have sent everything and cannot be compared. done and total count records of all peers together.
// total is an estimate, because the peers continue to change their maps. Neither decides when the
// resync ends.
func (r *Replicator) resyncProgress(name string, began time.Time) (peers []string, done, total int, unknown error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		s := r.inboundStreams[node]
		s.mu.Lock()
		in := s.maps[name]
		// A resync waits for a peer whose full sync has not begun, or whose digests have not agreed
		// since. It does not wait for a peer that cannot be compared.
		switch {
		// accept clears repeatFullSyncAt, so the full sync that was requested at began has not
		// started.
		case in == nil || in.repeatFullSyncAt.Equal(began):
			peers = append(peers, node)
		case in.awaitsInSync(began) && in.comparison.impossibleReason != "" && in.state == StateCaughtUp:
			unknown = errors.Join(unknown, fmt.Errorf("compare map %q with %s: %s: %w", name, node, in.comparison.impossibleReason, ErrInconclusive))
		// The table has no room for the peer's records, so the digests cannot agree.
		case in.awaitsInSync(began) && in.completeAboveLimit():
			unknown = errors.Join(unknown, fmt.Errorf("compare map %q with %s: %d records rejected: %w: %w", name, node, in.exceptions.aboveLimitCount(), errAboveLimit, ErrInconclusive))
		case in.awaitsInSync(began):
			peers = append(peers, node)
		}
		if in != nil {
			done, total = done+in.fullSyncRecords, total+max(in.comparison.peerLive, in.fullSyncRecords)
		}
		s.mu.Unlock()
	}
	slices.Sort(peers)
	return peers, done, total, unknown
}
