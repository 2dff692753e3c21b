package replicate

import (
	"fmt"
	"testing"

	"mapsync/syncd/table"
)

// TestDeliveryState checks which records a sender assumes to be delivered to a peer that resumes.
func TestDeliveryState(t *testing.T) {
	a := newView(nil, table.Owner{Node: "a", Incarnation: 2}, nil)
	orphaned, nothing := coverage{a, &ownerRequest{orphaned: true}}, coverage{a, &ownerRequest{}}
	peer := table.Owner{Node: "b", Incarnation: 2}
	var m deliveries
	has := func(token uint64) bool { d := m.load(peer, token); return d.hasRecordsOf("z") }
	if has(0) || has(7) {
		t.Error("load an unknown token: got delivered records, want none")
	}
	first, second := m.newToken(), m.newToken()
	states := []deliveryState{{token: first, history: []coverage{nothing, orphaned}}, {token: second, history: []coverage{orphaned}}}
	m.store(peer, states)
	if has(first) || !has(second) {
		t.Error("load: the delivered records do not match the token, want those of the second token only")
	}
	states[1].add(nothing)
	states[1].add(orphaned)
	if !has(second) {
		t.Error("stored states: got a change with the stream, want copies")
	}
	if m.store(peer, states); has(second) {
		t.Error("records passed while they were not requested: got delivered, want not delivered")
	}
	var long deliveryState
	for range 10 * maxCoverageHistory {
		long.add(orphaned)
	}
	if len(long.history) > maxCoverageHistory || long.hasRecordsOf("y") {
		t.Errorf("history: got %d coverages, records of dropped ones delivered %t, want at most %d and false",
			len(long.history), long.hasRecordsOf("y"), maxCoverageHistory)
	}
	if m.load(table.Owner{Node: "b", Incarnation: 3}, second).history == nil {
		t.Error("load for another incarnation: got no history, want one without delivered records")
	}
	for i := range 2 * maxRememberedPeers {
		m.store(table.Owner{Node: fmt.Sprint(i), Incarnation: 1}, states)
	}
	if len(m.peers) > maxRememberedPeers {
		t.Errorf("stored peers: got %d, want at most maxRememberedPeers", len(m.peers))
	}
}
