package replicate

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Resync has every live peer tell a map from the beginning, deletes what they no longer
// have, has them compare it with this node's, and returns once all that is merged and the
// digests agree. Progress, if not nil, is called from time to time with how many peers are
// still waited for, and how many records they have told of how many. Errors wrap
// ErrNoPeer when there is no such map, or are those of ctx.
func (r *Replicator) Resync(ctx context.Context, name string, progress func(peers []string, done, total int)) error {
	if r.localMaps()[name] == nil {
		return fmt.Errorf("resync map %q: %w", name, ErrNoPeer)
	}
	began := time.Now()
	r.mu.Lock()
	for node := range r.view.Load().live {
		r.links[node].forceWalk(name, began)
	}
	for s := range r.sessions {
		s.hurry(name)
	}
	r.mu.Unlock()
	tick := time.NewTicker(housekeeping / 5)
	defer tick.Stop()
	for {
		waiting, done, total := r.resyncing(name, began)
		if len(waiting) == 0 {
			return nil
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

// forceWalk has a map walked from the beginning, and counts only what agrees then.
func (l *link) forceWalk(name string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in := l.intakes[name]; in != nil {
		in.rewalk, in.comparing.forced, in.told = now, now, 0
		in.comparing.agreed = false
		poke(l.wake)
	}
}

// hurry has digests of a map sent now.
func (s *session) hurry(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.feeds {
		if f.name == name && !f.observe {
			f.telling.hurry.Store(true)
			poke(s.wake)
		}
	}
}

// resyncing returns the peers that a resync waits for.
func (r *Replicator) resyncing(name string, began time.Time) (peers []string, done, total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		l := r.links[node]
		l.mu.Lock()
		in := l.intakes[name]
		if in == nil || in.rewalk.Equal(began) || in.awaitsAgreement(began) {
			peers = append(peers, node)
			if in != nil {
				done, total = done+in.told, total+max(in.comparing.live, in.told)
			}
		}
		l.mu.Unlock()
	}
	slices.Sort(peers)
	return peers, done, total
}

// awaitsAgreement reports whether digests are yet to agree since some time.
func (in *intake) awaitsAgreement(since time.Time) bool {
	switch in.state {
	case StatePending, StateRefused:
		return false
	case StateWaiting, StateFailed:
		return true // what it agreed on was before the stream broke
	}
	c := &in.comparing
	if c.impossible != "" {
		return !in.synced || !in.rewalk.IsZero()
	}
	return !c.agreed || !c.current || c.at.Before(since)
}

// Agreed reports whether this node was seen to hold, of every map, what each live peer
// told over the stream that it has now, and if not, which are waited for, as peer/map. A
// map that a peer does not have, or that does not match its own, is not waited for, and
// neither is one that cannot be compared. Before the first SetPeers nobody knows.
func (r *Replicator) Agreed() (ok bool, missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known.IsZero() {
		return false, []string{"membership"}
	}
	for node := range r.view.Load().live {
		l := r.links[node]
		l.mu.Lock()
		for name, m := range r.localMaps() {
			in := l.intakes[name]
			if in == nil || in.m != m || in.awaitsAgreement(in.comparing.forced) {
				missing = append(missing, node+"/"+name)
			}
		}
		l.mu.Unlock()
	}
	slices.Sort(missing)
	return len(missing) == 0, missing
}
