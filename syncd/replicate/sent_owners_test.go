package replicate

import (
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
		{"no state and a live node", coverage{a, ofC}, coverage{}, true},
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
		t.Error("members: got different values for the same live nodes, or equal values for others, " +
			"want equal values for the same live nodes only")
	}
}
