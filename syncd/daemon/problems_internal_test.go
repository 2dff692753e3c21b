package daemon

import (
	"testing"
	"time"
)

// TestProblemsOfStates: states that no test can bring about in this package are problems, each one alone.
func TestProblemsOfStates(t *testing.T) {
	for id, change := range map[string]func(s *Status){
		"version-skew":                func(s *Status) { s.Peers[0].Release = "v0.2" },
		"former-maps-unknown":         func(s *Status) { s.Maps[0].FormerUsersUnknown = true },
		"undetected-programs-unknown": func(s *Status) { s.Maps[0].UndetectedProblem = "list programs: operation not permitted" },
		"scan-failing":                func(s *Status) { s.Maps[0].Scan.Failing, s.Maps[0].Scan.Late = true, true },
		"false-digests":               func(s *Status) { s.Peers[0].Maps[0].FalseDigests = true },
		"":                            func(*Status) {},
	} {
		s := &Status{
			Version: "v0.1",
			Maps:    []MapStatus{{Name: "ct", State: MapReplicating, Scan: &ScanStatus{}, DrainSums: &DrainSumsStatus{MissingAt: time.Time{}}}},
			Peers: []PeerStatus{{
				Node: "n2", Release: "v0.1", Receiving: true, Sending: true,
				Maps: []PeerMapStatus{{Name: "ct", State: "caught_up", SendState: "served"}},
			}},
		}
		change(s)
		list := s.StateProblems()
		if id == "" && len(list) > 0 || id != "" && (len(list) != 1 || list[0].ID != id || list[0].Text == "") {
			t.Errorf("problems: got %+v, want %q alone", list, id)
		}
	}
}
