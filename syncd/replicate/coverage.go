package replicate

import (
	"fmt"
	"slices"
	"sync"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// A sender sends its own records, and what an earlier incarnation of the receiver owned.
// What it sends besides, the receiver requests, per map: it alone knows from which peers
// it receives that map.

// maxRequested bounds the live nodes in a request.
const maxRequested = 64

// ownerRequest says which other owners' records a receiver wants. It does not change.
type ownerRequest struct {
	serial   uint64
	orphaned bool
	nodes    []string // sorted
	again    bool
	token    uint64
}

// allOrphaned is the request of a receiver that makes none.
var allOrphaned = &ownerRequest{orphaned: true}

// readOwners checks a request. Its errors wrap errProtocol.
func readOwners(m *mapsyncv1.OwnerRequest) (*ownerRequest, error) {
	if m == nil {
		return allOrphaned, nil
	}
	q := &ownerRequest{
		serial: m.GetSerial(), orphaned: m.GetOrphaned(), nodes: slices.Clone(m.GetNodes()),
		again: m.GetAgain(), token: m.GetToken(),
	}
	if len(q.nodes) > maxRequested {
		return nil, fmt.Errorf("request the records of %d nodes, more than %d: %w", len(q.nodes), maxRequested, errProtocol)
	}
	for _, node := range q.nodes {
		if err := checkName(node); err != nil {
			return nil, fmt.Errorf("request records: %w: %w", errProtocol, err)
		}
	}
	slices.Sort(q.nodes)
	return q, nil
}

// coverage is a request under a view: which records of other owners are sent. The zero
// coverage has none.
type coverage struct {
	view    *view
	request *ownerRequest
}

// has reports whether records of a node that is neither the sender nor the receiver are
// sent.
func (c coverage) has(node string) bool {
	if c.view == nil {
		return false
	}
	if c.request.orphaned && c.view.orphaned(node) {
		return true
	}
	_, found := slices.BinarySearch(c.request.nodes, node)
	return found
}

// sends reports whether this node sends the records of an owner to a target.
func (c coverage) sends(owner, target table.Owner) bool {
	switch owner.Node {
	case target.Node:
		return owner != target // each peer may be the only one that has the last of it
	case c.view.self.Node:
		return true
	}
	return c.has(owner.Node)
}

// exceeds reports whether a coverage may have owners that an older one does not have.
func (c coverage) exceeds(old coverage) bool {
	if old.view == nil {
		return c.request.orphaned || len(c.request.nodes) > 0
	}
	if c.request.orphaned && (!old.request.orphaned || c.view.departures != old.view.departures) {
		return true
	}
	return slices.ContainsFunc(c.request.nodes, func(node string) bool { return !old.has(node) })
}

// maxTrail bounds the coverages in a trail.
const maxTrail = 16

// delivered says what a receiver has that got the OwnersSent with a token: the records, up
// to the position of the stream, of the owners that each coverage since then has.
type delivered struct {
	token uint64
	trail []coverage // oldest first; empty: all records
}

func (d *delivered) add(c coverage) {
	if d.trail = append(d.trail, c); len(d.trail) > maxTrail {
		d.trail = []coverage{{}, c} // costs sending records again
	}
}

// memory remembers what was delivered to each peer. One that comes back resumes where it
// was, and membership and its requests may have changed meanwhile.
type memory struct {
	mu    sync.Mutex
	peers map[string]remembered // by node
	last  uint64                // token
}

// remembered is what one incarnation of a peer got: as of the last OwnersSent, and as of
// the one before, since a stream that breaks may have lost the last.
type remembered struct {
	incarnation uint64
	states      []delivered
}

// maxRemembered bounds the peers remembered. To forget one costs sending it some records
// again.
const maxRemembered = 1024

// note remembers the states of a stream. It keeps copies.
func (m *memory) note(target table.Owner, states []delivered) {
	kept := make([]delivered, len(states))
	for i, d := range states {
		kept[i] = delivered{d.token, slices.Clone(d.trail)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.peers[target.Node]; m.peers == nil || (!ok && len(m.peers) >= maxRemembered) {
		m.peers = make(map[string]remembered)
	}
	m.peers[target.Node] = remembered{target.Incarnation, kept}
}

// find returns what a peer has that got a token.
func (m *memory) find(target table.Owner, token uint64) delivered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.peers[target.Node]; token != 0 && was.incarnation == target.Incarnation {
		for _, d := range was.states {
			if d.token == token {
				return delivered{token, slices.Clone(d.trail)}
			}
		}
	}
	return delivered{trail: []coverage{{}}}
}

// token returns a token that was not used before.
func (m *memory) token() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	return m.last
}
