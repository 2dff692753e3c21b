package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// printed returns the status as text, with the problems that its fields show.
func printed(t *testing.T, s *daemon.Status) string {
	t.Helper()
	list := problem.NewList(slog.New(slog.DiscardHandler))
	list.Set(s.StateProblems(), time.Now(), true)
	s.Problems = list.All()
	var out strings.Builder
	if err := printStatus(&out, s, false); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The status must not show a peer without an outbound stream as a peer without lag. It must not
// show a map as in sync if it differs or was never compared.
func TestStatusShowsMapsNotInSync(t *testing.T) {
	peer := func(name string, sending bool, m daemon.PeerMapStatus) daemon.PeerStatus {
		m.Name, m.State, m.SendState = "ct", "caught_up", "served"
		return daemon.PeerStatus{Node: name, Receiving: true, Sending: sending, Maps: []daemon.PeerMapStatus{m}}
	}
	text := printed(t, &daemon.Status{Node: "n", Ready: true, Peers: []daemon.PeerStatus{
		peer("good", true, daemon.PeerMapStatus{Agreed: true}),
		peer("new", true, daemon.PeerMapStatus{}),
		peer("differs", true, daemon.PeerMapStatus{Agreed: true, Divergent: 3}),
		peer("other", true, daemon.PeerMapStatus{Incomparable: "another key"}),
		peer("unserved", false, daemon.PeerMapStatus{Agreed: true}),
	}})
	for _, want := range []string{
		`good +ct +caught_up +served +yes +0 +0s`,
		`new +ct +caught_up +served +not compared yet +0`,
		`differs +ct +caught_up +served +3 DIFFER +0`,
		`other +ct +caught_up +served +INCONCLUSIVE +0`,
		`unserved +NOT SENDING`,
		`unserved +ct +caught_up +NOT SERVED +yes +- +-`,
		`CRITICAL divergent, map ct, peer differs, for 0 s: 3 entries differ from those that the peer sent\n  remedy: syncd diff ct --peer differs$`,
		`WARNING comparison-impossible, map ct, peer other, for 0 s: another key$`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(text) {
			t.Errorf("status: want the line %q in\n%s", want, text)
		}
	}
}

// The status begins with the most important facts, and many maps do not hide them.
func TestStatusBeginsWithRedundancy(t *testing.T) {
	s := daemon.Status{
		Node: "lb1", Cluster: "edge", Redundancy: daemon.Redundancy{Expected: 2, Live: 1, Problem: "lb2 lost 14 s ago"},
		NotReady: []string{"m0, m1, m2, m3, m4 and 38 more maps: initial sync is under way with lb3"},
		Absent:   []daemon.AbsentPeer{{Node: "lb2", Expected: true, LastContact: time.Now().Add(-14 * time.Second)}, {Node: "old", LastContact: time.Now()}, {Node: "lb4", Expected: true}},
		Peers:    []daemon.PeerStatus{{Node: "lb3", Receiving: true, Sending: true, LastContact: time.Now()}},
	}
	for i := range 43 {
		name := fmt.Sprint("m", i)
		s.Maps = append(s.Maps, daemon.MapStatus{Name: name, State: daemon.MapReplicating})
		m := daemon.PeerMapStatus{Name: name, State: "caught_up", SendState: "served", Agreed: true}
		if i%10 == 7 {
			m.State, m.Error = "refused", "map of lb3 does not fit"
		}
		s.Peers[0].Maps = append(s.Peers[0].Maps, m)
	}
	text := printed(t, &s)
	if !strings.HasPrefix(text, "REDUNDANCY 1/2: lb2 lost 14 s ago\nnode lb1, cluster edge: NOT READY\n") {
		t.Errorf("status: want the redundancy in the first line:\n%s", text)
	}
	for _, want := range []string{
		`lb3 +connected +0 s ago`, `lb2 +LOST +14 s ago`, `old +left +0 s ago`, `lb4 +NEVER SEEN +never`,
		`lb3 +39 maps +caught_up +served +yes +0 +0s +0 +-`, `lb3 +m7 +REFUSED +served +yes +0 +0s +\? +\?`,
		`CRITICAL map-unserved, map m17, m27, m37, m7, peer lb3, for 0 s: map of lb3 does not fit$`, `CRITICAL redundancy, for 0 s: 1/2: lb2 lost 14 s ago$`,
		`CRITICAL not-ready, for 0 s: m0, m1, m2, m3, m4 and 38 more maps: initial sync is under way with lb3\n`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(text) {
			t.Errorf("status: want the line %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n > 43+29 {
		t.Errorf("status: got %d lines, want at most 72:\n%s", n, text)
	}
	for line := range strings.Lines(text) {
		if len(line) > width+1 {
			t.Errorf("status: got %d columns, want at most 100: %s", len(line), line)
		}
	}
}

// TestRemedyHasTheAddress: the command of the remedy for a peer that does not answer has its address.
func TestRemedyHasTheAddress(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.4:7947": "nc -vz 10.0.0.4 7947", "[fd00::4]:7947": "nc -vz fd00::4 7947", "": "nc -vz ADDRESS PORT"} {
		text := printed(t, &daemon.Status{Node: "lb1", Peers: []daemon.PeerStatus{{Node: "lb4", Address: addr}}})
		if !strings.Contains(text, want) {
			t.Errorf("peer at %q: want %q in\n%s", addr, want, text)
		}
	}
}

// The status lists entries that are not replicated with their reasons, on both sides.
func TestStatusListsUnheldEntries(t *testing.T) {
	list := []daemon.Exception{{Entry: "{addr=10.0.0.1}", Reason: "padding of the key is not zero"}}
	s := daemon.Status{
		Node: "lb1", Ready: true,
		Maps: []daemon.MapStatus{{Name: "ct", State: daemon.MapReplicating, Failed: 2, Live: 10, MaxEntries: 8, Unsent: 7, Exceptions: list, UndetectedPrograms: []string{"tracer (Kprobe, id 9)"}, UndetectedProblem: "list programs: operation not permitted", InPlaceProblem: "it needs fexit"}},
		Peers: []daemon.PeerStatus{{Node: "lb3", Receiving: true, Sending: true, Maps: []daemon.PeerMapStatus{{
			Name: "ct", State: "caught_up", SendState: "served", Agreed: true, Refused: 1, Exceptions: list, PeerUnsent: 4,
			Report: &daemon.PeerReport{Live: 500, MaxEntries: 300, Failed: 200, Refused: 1, Exceptions: list},
		}, {
			// The map of a third node lacks records of all nodes, and reports those of this node.
			Name: "full", State: "caught_up", SendState: "served", Agreed: true, Report: &daemon.PeerReport{Live: 500, MaxEntries: 300, Failed: 100, FailedAll: 250},
		}, {
			Name: "lru", State: "caught_up", SendState: "served", Agreed: true, Report: &daemon.PeerReport{Live: 800, MaxEntries: 512, Failed: 300, Evicted: 116},
		}, {Name: "fw", State: "pending", SendState: "waiting"}, {Name: "nat", State: "caught_up", SendState: "waiting", Agreed: true}}}},
	}
	text := printed(t, &s)
	for _, want := range []string{
		`lb3 +ct +caught_up +served +yes +0 +0s +201 +300/300`,
		`lb3 +full +caught_up +served +yes +0 +0s +100 +250/300`,
		`lb3 +lru +caught_up +served +yes +0 +0s +416 +384/512`,
		`CRITICAL failed-writes, map ct, for 0 s: 2 entries do not go into the kernel map \(10 records for 8\n +entries\)\n  remedy: enlarge the map ct of the load balancer$`,
		`WARNING undetected-programs, map ct, tracer \(Kprobe, id 9\), for 0 s: only scans find the writes of\n +program tracer \(Kprobe, id 9\)$`,
		`WARNING undetected-programs-unknown, map ct, for 0 s: list programs: operation not permitted$`,
		`WARNING in-place-unavailable, map ct, for 0 s: it needs fexit$`,
		`WARNING unsent-entries, map ct, for 0 s: 7 entries cannot be sent to any peer\n  \{addr=10.0.0.1\}: padding of the key is not zero\n  and 6 more\n  remedy: syncd diff ct$`,
		`WARNING not-held, map ct, peer lb3, for 0 s: 200 entries of this node are not in the peer's kernel\n +map \(500 records for 300 entries\)$`,
		`WARNING refused-entries, map ct, peer lb3, for 0 s: 1 entries of the peer cannot be held here\n  \{addr=10.0.0.1\}: padding`,
		`WARNING not-held, map ct, peer lb3, refused, for 0 s: 1 entries of this node cannot be held by the\n +peer\n  \{addr=10.0.0.1\}: padding`,
		`WARNING peer-unsent-entries, map ct, peer lb3, for 0 s: 4 entries cannot be sent by the peer$`,
		`lb3 +fw +PENDING +NOT SERVED`,
		`CRITICAL map-unserved, map fw, peer lb3, for 0 s: the peer does not have the map$`,
		`CRITICAL map-unserved, map nat, peer lb3, for 0 s: not sent: the peer has not subscribed to it$`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(text) {
			t.Errorf("status: want the line %q in\n%s", want, text)
		}
	}
}
