package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/daemon"
)

// The status must not show a peer without an outbound stream as a peer without lag. It must not
// show a map as in sync if it differs or was never compared.
func TestStatusShowsMapsNotInSync(t *testing.T) {
	peer := func(name string, sending bool, m daemon.PeerMapStatus) daemon.PeerStatus {
		m.Name, m.State, m.SendState = "ct", "caught_up", "served"
		return daemon.PeerStatus{Node: name, Receiving: true, Sending: sending, Maps: []daemon.PeerMapStatus{m}}
	}
	var out strings.Builder
	err := printStatus(&out, &daemon.Status{Node: "n", Ready: true, Peers: []daemon.PeerStatus{
		peer("good", true, daemon.PeerMapStatus{Agreed: true}),
		peer("new", true, daemon.PeerMapStatus{}),
		peer("differs", true, daemon.PeerMapStatus{Agreed: true, Divergent: 3}),
		peer("other", true, daemon.PeerMapStatus{Incomparable: "another key"}),
		peer("unserved", false, daemon.PeerMapStatus{Agreed: true}),
	}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`good +ct +caught_up +served +yes +0 +0s`,
		`new +ct +caught_up +served +not compared yet +0`,
		`differs +ct +caught_up +served +3 DIFFER +0`,
		`other +ct +caught_up +served +INCONCLUSIVE +0`,
		`unserved +NOT SENDING`,
		`unserved +ct +caught_up +NOT SERVED +yes +- +-`,
		`peer differs, map ct: entries differ, .syncd diff MAP --peer differs. lists them`,
		`peer other, map ct: cannot be compared: another key`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(out.String()) {
			t.Errorf("status: want the line %q in\n%s", want, out.String())
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
	var out strings.Builder
	if err := printStatus(&out, &s, false); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if !strings.HasPrefix(text, "REDUNDANCY 1/2: lb2 lost 14 s ago\nnode lb1, cluster edge: NOT READY\n") {
		t.Errorf("status: want the redundancy in the first line:\n%s", text)
	}
	for _, want := range []string{
		`lb3 +connected +0 s ago`, `lb2 +LOST +14 s ago`, `old +left +0 s ago`, `lb4 +NEVER SEEN +never`,
		`lb3 +39 maps +caught_up +served +yes +0 +0s +0 +-`, `lb3 +m7 +REFUSED +served +yes +0 +0s +\? +\?`,
		`peer lb3, map m7, m17, m27, m37: map of lb3 does not fit$`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(text) {
			t.Errorf("status: want the line %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n > 43+25 {
		t.Errorf("status: got %d lines, want at most 68:\n%s", n, text)
	}
	for line := range strings.Lines(text) {
		if len(line) > width+1 {
			t.Errorf("status: got %d columns, want at most 100: %s", len(line), line)
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
		}, {Name: "fw", State: "pending", SendState: "waiting"}, {Name: "nat", State: "caught_up", SendState: "waiting", Agreed: true}}}},
	}
	var out strings.Builder
	if err := printStatus(&out, &s, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`lb3 +ct +caught_up +served +yes +0 +0s +201 +300/300`,
		`map ct: 2 entries do not go into the kernel map \(10 records for 8 entries\)`,
		`map ct: only scans find the writes of program tracer \(Kprobe, id 9\)`,
		`map ct: the programs whose writes only scans find are unknown: list programs: operation not\n +permitted`,
		`map ct: only scans find changes in place: it needs fexit`,
		`map ct: 7 entries cannot be sent to any peer\n  \{addr=10.0.0.1\}: padding of the key is not zero\n  and 6 more`,
		`peer lb3, map ct: 200 entries do not go into the peer's kernel map \(500 records for 300 entries\)`,
		`peer lb3, map ct: 1 entries of the peer cannot be held here\n  \{addr=10.0.0.1\}: padding`,
		`peer lb3, map ct: 1 entries of this node cannot be held by the peer\n  \{addr=10.0.0.1\}: padding`,
		`peer lb3, map ct: 4 entries cannot be sent by the peer`,
		`lb3 +fw +PENDING +NOT SERVED`,
		`peer lb3, map fw: the peer does not have the map`,
		`peer lb3, map nat: not sent: the peer has not subscribed to it`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(out.String()) {
			t.Errorf("status: want the line %q in\n%s", want, out.String())
		}
	}
}
