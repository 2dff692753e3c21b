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

// Redundancy is the number of peers that hold copies of this node's maps, and the expected
// number.
type Redundancy struct {
	// Expected is the number of peers according to expected-peers; 0: it is not set.
	Expected int `json:"expected"`
	// Live is the number of these that are connected in both directions. If expected-peers is a
	// number or not set, Live counts all peers.
	Live int `json:"live"`
	// Problem names the missing peers, as text for operators, or is empty: "lb2 lost 14 s ago".
	Problem string `json:"problem,omitempty"`
}

// AbsentPeer is a node that is expected, or was a peer, and is not live now.
type AbsentPeer struct {
	Node string `json:"node"`
	// Expected is set if expected-peers names the node. If expected-peers is a number, it is set
	// for the nodes that were lost last, as many as are missing.
	Expected bool `json:"expected"`
	// LastContact is the time of the node's last message; absent: none since this daemon started.
	LastContact time.Time `json:"last_contact,omitzero"`
}

const (
	// contactInterval is the interval at which contacts with peers are recorded.
	contactInterval = time.Second
	// redundancyLogInterval is the minimum time between two log lines about redundancy.
	redundancyLogInterval = 10 * time.Second
	// maxContacts is the maximum number of nodes whose last contact is stored. maxAbsent is the
	// maximum number of them that are listed, besides the nodes that expected-peers names.
	maxContacts = 256
	maxAbsent   = 64
)

// contacts stores the time of the last message of each peer, also after the peer has left.
type contacts struct {
	mu   sync.Mutex
	last map[string]time.Time // by node; at most maxContacts, the oldest is removed first

	// Fields of watchRedundancy.
	wasComplete bool // redundancy was complete once
	logged      Redundancy
	loggedAt    time.Time
}

// note records the contacts that the replicator has seen.
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

// snapshot returns a copy of the last contacts.
func (c *contacts) snapshot() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[string]time.Time, len(c.last))
	for node, at := range c.last {
		m[node] = at
	}
	return m
}

// redundancy returns the number of live peers and of expected peers, and the absent nodes.
// Expected nodes come first. Within both groups, the node with the latest contact comes first.
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
	if r.Live < r.Expected {
		r.Problem = problemText(problems, absent, names == nil, missing, now)
	}
	return r, absent
}

// problemText lists the problems of connections, the expected peers that are absent and, if the settings give
// a number instead of names, how many of the missing peers were never seen.
func problemText(problems []string, absent []AbsentPeer, number bool, missing int, now time.Time) string {
	for _, a := range absent {
		if a.Expected {
			problems = append(problems, a.text(now))
			missing--
		}
	}
	if number && missing > 0 {
		problems = append(problems, fmt.Sprintf("%d never seen", missing))
	}
	slices.Sort(problems)
	return strings.Join(problems, ", ")
}

// broken returns which stream of a live peer is missing.
func broken(s *replicate.Contact) string {
	switch {
	case s.Connected:
		return s.Node + " does not receive from this node"
	case s.Serving:
		return "no stream from " + s.Node
	}
	return "no streams with " + s.Node
}

// absent returns the nodes that are not live: the nodes in names, and former peers. missing is
// the number of missing peers. If names is nil, as many former peers count as expected.
func (d *Daemon) absent(seen []replicate.Contact, names []string, missing int) []AbsentPeer {
	last := d.contacts.snapshot()
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
	slices.SortFunc(list, compareAbsent)
	if names == nil {
		for i := range min(max(missing, 0), len(list)) {
			list[i].Expected = true
		}
	}
	return list[:min(len(list), maxAbsent+len(names))]
}

// compareAbsent orders expected peers before others, then by the time of the last contact, latest first.
func compareAbsent(a, b AbsentPeer) int {
	switch {
	case a.Expected != b.Expected && a.Expected:
		return -1
	case a.Expected != b.Expected:
		return 1
	}
	return cmp.Or(b.LastContact.Compare(a.LastContact), cmp.Compare(a.Node, b.Node))
}

func (a *AbsentPeer) text(now time.Time) string {
	if a.LastContact.IsZero() {
		return a.Node + " never seen"
	}
	return fmt.Sprintf("%s lost %s ago", a.Node, Ago(now.Sub(a.LastContact)))
}

// Ago returns a duration as text, in its two largest units: "14 s", "3 min 5 s", "2 h 10 min".
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

// watchRedundancy records contacts with peers until ctx ends. It logs when fewer peers than
// expected are live, and when all are live again.
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

// log writes a line if redundancy has changed since the last line. After the start it first waits
// until redundancy was complete once, or until late is set.
func (c *contacts) log(log *slog.Logger, r Redundancy, now time.Time, late bool) {
	complete := r.Live >= r.Expected
	c.wasComplete = c.wasComplete || complete && r.Expected > 0
	was := c.logged
	switch {
	case r.Expected == 0 || !c.wasComplete && !late:
		return
	case complete == (was.Live >= was.Expected) && (complete || r.Live == was.Live):
		return
	case now.Sub(c.loggedAt) < redundancyLogInterval:
		return // a later call logs the change
	}
	c.logged, c.loggedAt = r, now
	attrs := []any{slog.Int("live", r.Live), slog.Int("expected", r.Expected)}
	if complete {
		log.Info("redundancy restored", attrs...)
		return
	}
	log.Warn("redundancy is reduced", append(attrs, slog.String("missing", r.Problem),
		slog.String("hint", "a failure of this node loses the sessions that no other peer holds"))...)
}
