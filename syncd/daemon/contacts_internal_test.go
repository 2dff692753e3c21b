package daemon

import (
	"testing"

	"mapsync/syncd/replicate"
)

func TestLossesOfPeersAreNoted(t *testing.T) {
	contact := func(node string, live bool) replicate.Contact { return replicate.Contact{Node: node, Live: live} }
	for name, c := range map[string]struct {
		seen [][]replicate.Contact
		lost bool
	}{
		"no peers":            {[][]replicate.Contact{nil, nil}, false},
		"a peer joins":        {[][]replicate.Contact{nil, {contact("a", true)}}, false},
		"a peer is lost":      {[][]replicate.Contact{{contact("a", true)}, {contact("a", false)}}, true},
		"a peer is forgotten": {[][]replicate.Contact{{contact("a", true)}, nil}, true},
		"another peer joins at the same time": {[][]replicate.Contact{
			{contact("a", true)}, {contact("a", false), contact("b", true)},
		}, true},
		"a former peer stays away": {[][]replicate.Contact{{contact("a", false)}, {contact("a", false)}}, false},
	} {
		var all contacts
		for _, seen := range c.seen {
			all.note(seen)
		}
		if lost := !all.lastLoss().IsZero(); lost != c.lost {
			t.Errorf("%s: got loss %t, want %t", name, lost, c.lost)
		}
	}
}
