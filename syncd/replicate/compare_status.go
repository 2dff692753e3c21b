package replicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ErrUnknown is wrapped by the errors about comparisons that could not be made: nothing is
// known about whether the nodes hold the same.
var ErrUnknown = errors.New("not known whether both hold the same")

// Resync has every live peer tell a map from the beginning, deletes what they no longer
// have, has them compare it with this node's, and returns once all that is merged and the
// digests agree. Progress, if not nil, is called from time to time with how many peers are
// still waited for, and how many records they have told of how many. Errors wrap
// ErrNoPeer when the map is unknown, ErrUnknown when all is merged and cannot be
// compared, or are those of ctx.
func (r *Replicator) Resync(ctx context.Context, name string, progress func(peers []string, done, total int)) error {
	if r.localMaps()[name] == nil {
		return fmt.Errorf("resync map %q: %w", name, ErrNoPeer)
	}
	began := time.Now()
	for _, s := range r.forceWalks(name, began) {
		s.hurry(name)
	}
	tick := time.NewTicker(housekeeping / 5)
	defer tick.Stop()
	for {
		if r.localMaps()[name] == nil {
			return fmt.Errorf("resync map %q: the map was removed", name)
		}
		waiting, done, total, unknown := r.resyncing(name, began)
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

// forceWalks requests the full syncs of a resync, and returns the sessions. Their locks are
// taken by the caller, after the replicator's is released.
func (r *Replicator) forceWalks(name string, began time.Time) []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		r.links[node].forceWalk(name, began)
	}
	return slices.Collect(maps.Keys(r.sessions))
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

// resyncing returns the peers that a resync waits for, and an error about the others that
// have sent all and cannot be compared with.
func (r *Replicator) resyncing(name string, began time.Time) (peers []string, done, total int, unknown error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		l := r.links[node]
		l.mu.Lock()
		in := l.intakes[name]
		switch {
		case in == nil || in.rewalk.Equal(began):
			peers = append(peers, node)
		case in.awaitsAgreement(began) && in.comparing.impossible != "" && in.state == StateCaughtUp:
			unknown = errors.Join(unknown, fmt.Errorf("compare map %q with %s: %s: %w", name, node, in.comparing.impossible, ErrUnknown))
		case in.awaitsAgreement(began) && in.excused():
			unknown = errors.Join(unknown, fmt.Errorf("compare map %q with %s: %d records rejected: %w: %w", name, node, in.excepted.limited(), errLimit, ErrUnknown))
		case in.awaitsAgreement(began):
			peers = append(peers, node)
		}
		if in != nil {
			done, total = done+in.told, total+max(in.comparing.live, in.told)
		}
		l.mu.Unlock()
	}
	slices.Sort(peers)
	return peers, done, total, unknown
}

// awaitsAgreement reports whether digests are yet to agree since some time. A comparison
// that could not be made proves nothing.
func (in *intake) awaitsAgreement(since time.Time) bool {
	switch in.state {
	case StatePending, StateRefused, StateExcluded:
		return false
	case StateWaiting, StateFailed:
		return true // what it agreed on was before the stream broke
	}
	c := &in.comparing
	return c.impossible != "" || !c.agreed || !c.current || c.at.Before(since) ||
		c.departures != in.l.r.view.Load().departures
}

// unproven returns why the last comparison proves nothing, empty: it may prove something.
func (c *comparing) unproven() string {
	if c.impossible != "" {
		return c.impossible
	}
	return c.unknown
}

// Agreed reports whether this node was seen to hold, of every map, what each live peer
// sent over the stream that it has now, and if not, which are waited for: peer/map, and in
// brackets why they could not be compared. A map that a peer does not have, or that does
// not match its own, is not waited for, nor is a peer with more records than the table may
// hold, once it has sent all. Before the first SetPeers nothing has agreed.
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
			switch {
			case in == nil || in.m != m:
				missing = append(missing, node+"/"+name)
			case in.awaitsAgreement(in.comparing.forced) && !in.excused():
				missing = append(missing, node+"/"+name+in.reason())
			}
		}
		l.mu.Unlock()
	}
	slices.Sort(missing)
	return len(missing) == 0, missing
}

// reason returns what is to be added to the name of a map that is not proven. The lock is
// held.
func (in *intake) reason() string {
	if via := in.requesting.via; via != "" {
		return " (nothing is received from it, its records come through " + via + ")"
	}
	if why := in.comparing.unproven(); why != "" {
		return " (unknown: " + why + ")"
	}
	return ""
}
