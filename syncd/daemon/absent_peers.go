package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"mapsync/syncd/replicate"
)

// AbsentPeer is a node that is expected, or was a peer, and is not live now.
type AbsentPeer struct {
	Node string `json:"node"`
	// Expected is set if expected-peers names the node. If expected-peers is a number, it is set
	// for the nodes that were lost last, as many as are missing.
	Expected bool `json:"expected"`
	// LastContact is the time of the node's last message; absent: none since this daemon started.
	LastContact time.Time `json:"last_contact,omitzero"`
}

// contacts stores the time of the last message of each peer, also after the peer has left.
type contacts struct {
	mu     sync.Mutex
	last   map[string]time.Time // by node; at most maxContacts, the oldest is removed first
	live   map[string]bool      // by node, at the last call of note
	lostAt time.Time            // when note last detected the loss of a peer
}

// note records the contacts that the replicator has seen.
func (c *contacts) note(seen []replicate.Contact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = make(map[string]time.Time)
	}
	live := make(map[string]bool)
	for _, s := range seen {
		live[s.Node] = s.Live
		if s.Last.After(c.last[s.Node]) {
			c.last[s.Node] = s.Last
		}
	}
	for node, was := range c.live {
		if was && !live[node] {
			c.lostAt = time.Now()
		}
	}
	c.live = live
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

// lastLoss returns when a live peer was last lost, or the zero time.
func (c *contacts) lastLoss() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lostAt
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
