package replicate

import (
	"cmp"
	"slices"
	"time"
)

// Observer is a stream of a program that receives records and replicates nothing back.
type Observer struct {
	// Name is the name in its Hello. With TLS, its certificate is valid for that name.
	Name string
	// Addr is the address from which it connected, without the port.
	Addr string
	// Since is the time at which it connected.
	Since time.Time
	// Maps are the names of the maps that it receives now, sorted.
	Maps []string
}

// Observers returns all observing streams, oldest first.
//
// A stream counts from its first subscription on, even while no map is served. The caller owns the
// slices. The locks of the replicator and of each stream are held one after the other: see locks.go.
func (r *Replicator) Observers() []Observer {
	r.mu.Lock()
	var sessions []*outboundStream
	for s := range r.outboundStreams {
		if s.observing.Load() {
			sessions = append(sessions, s)
		}
	}
	r.mu.Unlock()
	all := make([]Observer, 0, len(sessions))
	for _, s := range sessions {
		o := Observer{Name: s.target.Node, Addr: s.remote, Since: s.startedAt, Maps: []string{}}
		s.mu.Lock()
		for _, out := range s.maps {
			if out.serving.Load() && !out.unsubscribed.Load() {
				o.Maps = append(o.Maps, out.name)
			}
		}
		s.mu.Unlock()
		slices.Sort(o.Maps)
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Observer) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return all
}
