package replicate

import (
	"testing"
)

// TestTargetsOfProofs: the places that a prospect is dialled at, one after the other.
func TestTargetsOfProofs(t *testing.T) {
	proven, later := peerX(5), peerX(6)
	hint, claim := peerX(5), peerX(5)
	hint.Addr, claim.Addr = "192.0.2.2:1", "192.0.2.3:1"
	latest := peerX(7)
	for name, c := range map[string]struct {
		q                prospect
		connected, fresh bool
		want             []Peer
	}{
		"unknown":                       {prospect{}, false, false, nil},
		"hint":                          {prospect{hint: hint}, false, false, []Peer{hint}},
		"caller":                        {prospect{claim: claim}, false, false, []Peer{claim}},
		"caller and hint":               {prospect{claim: claim, hint: hint}, false, false, []Peer{claim, hint}},
		"caller and hint, link up":      {prospect{claim: claim, hint: hint}, true, true, []Peer{claim, hint}},
		"connected":                     {prospect{proven: proven, hint: proven}, true, true, nil},
		"connected, silent":             {prospect{proven: proven, hint: proven}, true, false, nil},
		"connected, no hint":            {prospect{proven: proven}, true, true, nil},
		"connected, no hint, silent":    {prospect{proven: proven}, true, false, []Peer{proven}},
		"connected, other places":       {prospect{proven: proven, hint: hint, claim: claim}, true, true, nil},
		"connected, earlier":            {prospect{proven: later, hint: hint, claim: claim}, true, true, nil},
		"connected, later caller":       {prospect{proven: proven, hint: proven, claim: later}, true, true, []Peer{later}},
		"connected, later hint":         {prospect{proven: proven, hint: later}, true, true, []Peer{later}},
		"connected, later, silent":      {prospect{proven: proven, hint: latest, claim: later}, true, false, []Peer{later, latest, proven}},
		"disconnected":                  {prospect{proven: proven, hint: proven}, false, false, nil},
		"disconnected, no hint":         {prospect{proven: proven}, false, false, []Peer{proven}},
		"disconnected, hint elsewhere":  {prospect{proven: proven, hint: hint}, false, false, []Peer{proven, hint}},
		"disconnected, caller here":     {prospect{proven: proven, claim: proven}, false, false, []Peer{proven}},
		"disconnected, other caller":    {prospect{proven: proven, hint: proven, claim: claim}, false, false, []Peer{claim}},
		"disconnected, caller and hint": {prospect{proven: proven, hint: hint, claim: claim}, false, false, []Peer{proven, claim, hint}},
	} {
		for failures := range 4 {
			c.q.failures = failures
			got, ok := c.q.target(c.connected, c.fresh)
			switch {
			case ok != (len(c.want) > 0) || !ok && got != (Peer{}):
				t.Errorf("%s: dials %+v, %t", name, got, ok)
			case ok && got != c.want[failures%len(c.want)]:
				t.Errorf("%s: after %d failures dials %+v, want %+v", name, failures, got, c.want[failures%len(c.want)])
			}
		}
	}
}

// TestNodesThatGossipVouchesFor: gossip has the very process that was proved.
func TestNodesThatGossipVouchesFor(t *testing.T) {
	for name, c := range map[string]struct {
		q             prospect
		live, vouched bool
	}{
		"unknown":             {prospect{}, false, false},
		"hint":                {prospect{hint: peerX(5)}, false, false},
		"live":                {prospect{proven: peerX(5)}, true, false},
		"both":                {prospect{proven: peerX(5), hint: peerX(5)}, true, true},
		"another incarnation": {prospect{proven: peerX(5), hint: peerX(6)}, true, false},
	} {
		if c.q.live() != c.live || c.q.vouched() != c.vouched {
			t.Errorf("%s: live %t, vouched %t", name, c.q.live(), c.q.vouched())
		}
	}
}
