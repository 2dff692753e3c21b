package replicate

import "testing"

// TestDialTargets checks the addresses at which a node is dialled in turn.
func TestDialTargets(t *testing.T) {
	verified, later := peerX(5), peerX(6)
	hint, introduction := peerX(5), peerX(5)
	hint.Addr, introduction.Addr = "192.0.2.2:1", "192.0.2.3:1"
	latest := peerX(7)
	for name, c := range map[string]struct {
		q                discoveredNode
		connected, fresh bool
		want             []Peer
	}{
		"unknown":                            {discoveredNode{}, false, false, nil},
		"hint":                               {discoveredNode{hint: hint}, false, false, []Peer{hint}},
		"caller":                             {discoveredNode{introduction: introduction}, false, false, []Peer{introduction}},
		"introduced and hint":                {discoveredNode{introduction: introduction, hint: hint}, false, false, []Peer{introduction, hint}},
		"introduced and hint, connected":     {discoveredNode{introduction: introduction, hint: hint}, true, true, []Peer{introduction, hint}},
		"connected":                          {discoveredNode{verified: verified, hint: verified}, true, true, nil},
		"connected, silent":                  {discoveredNode{verified: verified, hint: verified}, true, false, nil},
		"connected, no hint":                 {discoveredNode{verified: verified}, true, true, nil},
		"connected, no hint, silent":         {discoveredNode{verified: verified}, true, false, []Peer{verified}},
		"connected, other addresses":         {discoveredNode{verified: verified, hint: hint, introduction: introduction}, true, true, nil},
		"connected, earlier":                 {discoveredNode{verified: later, hint: hint, introduction: introduction}, true, true, nil},
		"connected, later introduction":      {discoveredNode{verified: verified, hint: verified, introduction: later}, true, true, []Peer{later}},
		"connected, later hint":              {discoveredNode{verified: verified, hint: later}, true, true, []Peer{later}},
		"connected, later, silent":           {discoveredNode{verified: verified, hint: latest, introduction: later}, true, false, []Peer{later, latest, verified}},
		"disconnected":                       {discoveredNode{verified: verified, hint: verified}, false, false, nil},
		"disconnected, no hint":              {discoveredNode{verified: verified}, false, false, []Peer{verified}},
		"disconnected, hint elsewhere":       {discoveredNode{verified: verified, hint: hint}, false, false, []Peer{verified, hint}},
		"disconnected, introduced":           {discoveredNode{verified: verified, introduction: verified}, false, false, []Peer{verified}},
		"disconnected, introduced elsewhere": {discoveredNode{verified: verified, hint: verified, introduction: introduction}, false, false, []Peer{introduction}},
		"disconnected, introduced and hint":  {discoveredNode{verified: verified, hint: hint, introduction: introduction}, false, false, []Peer{verified, introduction, hint}},
	} {
		for failures := range 4 {
			c.q.failures = failures
			got, ok := c.q.target(c.connected, c.fresh)
			switch {
			case ok != (len(c.want) > 0) || !ok && got != (Peer{}):
				t.Errorf("%s: got target %+v, %t, want a target: %t", name, got, ok, len(c.want) > 0)
			case ok && got != c.want[failures%len(c.want)]:
				t.Errorf("%s: after %d failures: got target %+v, want %+v", name, failures, got, c.want[failures%len(c.want)])
			}
		}
	}
}

// TestMatchesGossip checks that gossip matches only with exactly the verified process.
func TestMatchesGossip(t *testing.T) {
	for name, c := range map[string]struct {
		q             discoveredNode
		live, vouched bool
	}{
		"unknown":             {discoveredNode{}, false, false},
		"hint":                {discoveredNode{hint: peerX(5)}, false, false},
		"live":                {discoveredNode{verified: peerX(5)}, true, false},
		"both":                {discoveredNode{verified: peerX(5), hint: peerX(5)}, true, true},
		"another incarnation": {discoveredNode{verified: peerX(5), hint: peerX(6)}, true, false},
	} {
		if c.q.live() != c.live || c.q.matchesGossip() != c.vouched {
			t.Errorf("%s: got live %t, matches %t, want %t and %t", name, c.q.live(), c.q.matchesGossip(), c.live, c.vouched)
		}
	}
}
