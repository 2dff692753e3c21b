package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/replicate"
)

// Redundancy is how many peers hold copies of this node's maps, of how many that should.
type Redundancy struct {
	// Expected is the number of peers that expected-peers asks for; 0: it is not set.
	Expected int `json:"expected"`
	// Live is the number of those that are connected in both directions; of all peers where
	// expected-peers is a number or not set.
	Live int `json:"live"`
	// Problem is what is missing, for people, or empty: "lb2 lost 14 s ago".
	Problem string `json:"problem,omitempty"`
}

// AbsentPeer is a node that is expected, or was a peer, and is not one now.
type AbsentPeer struct {
	Node string `json:"node"`
	// Expected says that expected-peers names it, or that it is among the peers lost last
	// of which a number is expected.
	Expected bool `json:"expected"`
	// LastContact is when its last message came; absent: none since this daemon started.
	LastContact time.Time `json:"last_contact,omitzero"`
}

const (
	// contactInterval is how often contacts with peers are noted.
	contactInterval = time.Second
	// redundancyLogInterval is the least time between two log lines about redundancy.
	redundancyLogInterval = 10 * time.Second
	// maxContacts bounds the nodes whose last contact is remembered, and maxAbsent those
	// of them that are listed.
	maxContacts = 256
	maxAbsent   = 64
)

// contacts remembers when each peer was heard last, beyond its membership.
type contacts struct {
	mu   sync.Mutex
	last map[string]time.Time // by node; at most maxContacts, the oldest goes first

	// Of watchRedundancy.
	whole    bool // redundancy was complete once
	logged   Redundancy
	loggedAt time.Time
}

// note takes in what the replicator has seen.
func (c *contacts) note(seen []replicate.Contact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = make(map[string]time.Time)
	}
	for _, s := range seen {
		if s.Last.After(c.last[s.Node]) {
			c.last[s.Node] = s.Last
		}
	}
	for len(c.last) > maxContacts {
		oldest := ""
		for node, at := range c.last {
			if oldest == "" || at.Before(c.last[oldest]) {
				oldest = node
			}
		}
		delete(c.last, oldest)
	}
}

// known returns a copy of the last contacts.
func (c *contacts) known() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[string]time.Time, len(c.last))
	for node, at := range c.last {
		m[node] = at
	}
	return m
}

// redundancy returns how many peers there are of how many that should be, and which nodes
// are not peers now that were or should be: those that are expected first, then by their
// last contact, the latest first.
func (d *Daemon) redundancy(now time.Time) (Redundancy, []AbsentPeer) {
	seen := d.replicator.Contacts()
	d.contacts.note(seen)
	names, count := d.config.Expected()
	r := Redundancy{Expected: count}
	live := make(map[string]bool)
	var problems []string
	for _, s := range seen {
		if !s.Live || names != nil && !slices.Contains(names, s.Node) {
			continue
		}
		live[s.Node] = true
		if s.Connected && s.Serving {
			r.Live++
		} else {
			problems = append(problems, broken(&s))
		}
	}
	missing := count - len(live)
	absent := d.absent(seen, names, missing)
	for _, a := range absent {
		if a.Expected {
			problems = append(problems, a.text(now))
			missing--
		}
	}
	if r.Live < r.Expected {
		if names == nil && missing > 0 {
			problems = append(problems, fmt.Sprintf("%d never seen", missing))
		}
		slices.Sort(problems)
		r.Problem = strings.Join(problems, ", ")
	}
	return r, absent
}

// broken says which stream of a live peer is missing.
func broken(s *replicate.Contact) string {
	switch {
	case s.Connected:
		return s.Node + " does not receive from this node"
	case s.Serving:
		return "no stream from " + s.Node
	}
	return "no streams with " + s.Node
}

// absent returns the nodes that are not live: those that are expected by name, and those
// that were peers. missing is how many of the latter are expected where a number is.
func (d *Daemon) absent(seen []replicate.Contact, names []string, missing int) []AbsentPeer {
	last := d.contacts.known()
	for _, name := range names {
		if _, known := last[name]; !known {
			last[name] = time.Time{}
		}
	}
	for _, s := range seen {
		if s.Live {
			delete(last, s.Node)
		}
	}
	list := make([]AbsentPeer, 0, len(last))
	for node, at := range last {
		list = append(list, AbsentPeer{Node: node, LastContact: at, Expected: slices.Contains(names, node)})
	}
	slices.SortFunc(list, func(a, b AbsentPeer) int {
		switch {
		case a.Expected != b.Expected && a.Expected:
			return -1
		case a.Expected != b.Expected:
			return 1
		}
		return cmp.Or(b.LastContact.Compare(a.LastContact), cmp.Compare(a.Node, b.Node))
	})
	if names == nil {
		for i := range min(max(missing, 0), len(list)) {
			list[i].Expected = true
		}
	}
	return list[:min(len(list), maxAbsent+len(names))]
}

func (a *AbsentPeer) text(now time.Time) string {
	if a.LastContact.IsZero() {
		return a.Node + " never seen"
	}
	return fmt.Sprintf("%s lost %s ago", a.Node, Ago(now.Sub(a.LastContact)))
}

// Ago returns a duration for people, in the largest two units: "14 s", "3 min 5 s", "2 h 10 min".
func Ago(d time.Duration) string {
	s := int64(max(d, 0).Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s%86400/3600)
}

// watchRedundancy notes contacts with peers, and logs when fewer peers than expected are
// live, and when all are again.
func (d *Daemon) watchRedundancy(ctx context.Context) error {
	tick := time.NewTicker(contactInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			r, _ := d.redundancy(now)
			d.contacts.log(d.log, r, now, d.pastSyncTimeout(d.started))
		}
	}
}

// log writes a line when redundancy changed since the last one. At the start missing peers
// are given time: until late, or all were there.
func (c *contacts) log(log *slog.Logger, r Redundancy, now time.Time, late bool) {
	whole := r.Live >= r.Expected
	c.whole = c.whole || whole && r.Expected > 0
	was := c.logged
	switch {
	case r.Expected == 0 || !c.whole && !late:
		return
	case whole == (was.Live >= was.Expected) && (whole || r.Live == was.Live):
		return
	case now.Sub(c.loggedAt) < redundancyLogInterval:
		return // the next look sees what has come of it
	}
	c.logged, c.loggedAt = r, now
	attrs := []any{slog.Int("live", r.Live), slog.Int("expected", r.Expected)}
	if whole {
		log.Info("redundancy is complete again", attrs...)
		return
	}
	log.Warn("redundancy is reduced", append(attrs, slog.String("missing", r.Problem),
		slog.String("hint", "a failure of this node loses the sessions that no other peer holds"))...)
}
