package replicate

import (
	"fmt"
	"testing"

	"mapsync/syncd/table"
)

// TestCoverage checks which records a node sends to which peer.
func TestCoverage(t *testing.T) {
	peers := func(names string) (p []Peer) {
		for _, c := range names {
			p = append(p, Peer{Node: string(c), Incarnation: 2})
		}
		return p
	}
	owner := func(name string, inc uint64) table.Owner { return table.Owner{Node: name, Incarnation: inc} }
	a := newView(nil, owner("a", 2), peers("bc"))
	nothing, orphaned, ofC := &ownerRequest{}, &ownerRequest{orphaned: true}, &ownerRequest{nodes: []string{"c"}}
	for _, tc := range []struct {
		request       *ownerRequest
		owner, target table.Owner
		want          bool
	}{
		{nothing, owner("a", 2), owner("b", 2), true},  // own record
		{nothing, owner("a", 1), owner("b", 2), true},  // own record of an earlier incarnation
		{nothing, owner("b", 2), owner("b", 2), false}, // record of the receiver
		{nothing, owner("b", 1), owner("b", 2), true},  // record of an earlier incarnation of the receiver
		{nothing, owner("c", 2), owner("b", 2), false}, // c sends it
		{ofC, owner("c", 2), owner("b", 2), true},      // requested, because c does not reach the receiver
		{nothing, owner("d", 2), owner("b", 2), false},
		{orphaned, owner("d", 2), owner("b", 2), true},
		{orphaned, owner("c", 2), owner("b", 2), false},
		{ofC, owner("d", 2), owner("b", 2), false},
	} {
		if got := (coverage{a, tc.request}).sends(tc.owner, tc.target); got != tc.want {
			t.Errorf("sends %v to %v under %+v: got %v, want %v", tc.owner, tc.target, *tc.request, got, tc.want)
		}
	}
	join, leave := newView(a, a.self, peers("bcd")), newView(a, a.self, peers("b"))
	for _, tc := range []struct {
		name     string
		now, was coverage
		want     bool
	}{
		{"no state and an empty request", coverage{a, nothing}, coverage{}, false},
		{"no state", coverage{a, orphaned}, coverage{}, true},
		{"a node joins", coverage{join, orphaned}, coverage{a, orphaned}, false},
		{"a node leaves", coverage{leave, orphaned}, coverage{a, orphaned}, true},
		{"a node leaves and the request is empty", coverage{leave, nothing}, coverage{a, nothing}, false},
		{"the request grows", coverage{a, orphaned}, coverage{a, nothing}, true},
		{"the request shrinks", coverage{a, nothing}, coverage{a, orphaned}, false},
		{"a live node is requested", coverage{a, ofC}, coverage{a, orphaned}, true},
		{"a live node is requested again", coverage{join, ofC}, coverage{a, ofC}, false},
	} {
		if got := tc.now.exceeds(tc.was); got != tc.want {
			t.Errorf("%s: coverage exceeds the earlier one: got %v, want %v", tc.name, got, tc.want)
		}
	}
	if a.members != newView(nil, owner("c", 9), peers("ab")).members || a.members == join.members {
		t.Error("members: got different values for the same live nodes, or equal values for others")
	}
}

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
		t.Error("load: the delivered records do not match the token")
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
		t.Errorf("history of %d coverages: too long, or the dropped coverages count as delivered", len(long.history))
	}
	if m.load(table.Owner{Node: "b", Incarnation: 3}, second).history == nil {
		t.Error("load for another incarnation: got the state of this one")
	}
	for i := range 2 * maxRememberedPeers {
		m.store(table.Owner{Node: fmt.Sprint(i), Incarnation: 1}, states)
	}
	if len(m.peers) > maxRememberedPeers {
		t.Errorf("remembered peers: got %d, want at most maxRememberedPeers", len(m.peers))
	}
}
