package replicate

import (
	"slices"
	"sync"

	"mapsync/syncd/table"
)

// maxCoverageHistory bounds the coverages in the history of a deliveryState.
const maxCoverageHistory = 16

// deliveryState describes which records of other owners a receiver has that got the OwnersSent with
// a token. For each owner that all coverages of the history include, it has the records up to the
// position of the stream.
type deliveryState struct {
	// token identifies the OwnersSent; 0: the sender has none for the receiver.
	token uint64
	// history are the coverages since then, oldest first, at most maxCoverageHistory. Empty: the
	// stream began at position 0, and the receiver lacks no records of the current coverage.
	history []coverage
}

// add appends a coverage to the history. The newest one comes into force now.
func (d *deliveryState) add(c coverage) {
	if d.history = append(d.history, c); len(d.history) > maxCoverageHistory {
		d.history = []coverage{{}, c} // forgets the rest of the history, at the cost of sending records again
	}
}

// deliveries stores what each peer has received of a map. A peer that reconnects resumes from its
// position, but membership and its requests may have changed in the meantime.
type deliveries struct {
	// mu guards the fields below.
	mu sync.Mutex
	// peers has at most maxRememberedPeers nodes, by name.
	peers map[string]peerDeliveries
	// lastToken is the highest token issued.
	lastToken uint64
}

// peerDeliveries is the delivery state of one incarnation of a peer: the state of the last
// OwnersSent and the one before it. A stream that breaks may lose the last OwnersSent.
type peerDeliveries struct {
	// incarnation is the incarnation of the peer. The states of another incarnation are not used.
	incarnation uint64
	// states are ordered by their token, at most two. They are copies and do not change.
	states []deliveryState
}

// maxRememberedPeers bounds the peers in deliveries. Forgetting a peer costs sending it some
// records again.
const maxRememberedPeers = 1024

// store stores copies of the states of a stream.
func (m *deliveries) store(target table.Owner, states []deliveryState) {
	kept := make([]deliveryState, len(states))
	for i, d := range states {
		kept[i] = deliveryState{d.token, slices.Clone(d.history)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// A full store is emptied: the peers then get some records again.
	if _, ok := m.peers[target.Node]; m.peers == nil || (!ok && len(m.peers) >= maxRememberedPeers) {
		m.peers = make(map[string]peerDeliveries)
	}
	m.peers[target.Node] = peerDeliveries{target.Incarnation, kept}
}

// load returns the delivery state of a peer for a token. If there is none, it returns a state in
// which the peer has no records of other owners.
func (m *deliveries) load(target table.Owner, token uint64) deliveryState {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A token of another incarnation of the peer may not be valid.
	if was := m.peers[target.Node]; token != 0 && was.incarnation == target.Incarnation {
		for _, d := range was.states {
			if d.token == token {
				return deliveryState{token, slices.Clone(d.history)}
			}
		}
	}
	return deliveryState{history: []coverage{{}}}
}

// newToken returns an unused token. Tokens are never 0.
func (m *deliveries) newToken() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastToken++
	return m.lastToken
}
