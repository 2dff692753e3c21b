package main

import (
	"regexp"
	"strings"
	"testing"

	"mapsync/syncd/daemon"
)

// A reader of the table must not take a peer that is not served for one without lag, nor
// one that differs, or was never compared, for one that is equal.
func TestStatusSaysWhatIsNotEqual(t *testing.T) {
	peer := func(name string, sending bool, m daemon.PeerMapStatus) daemon.PeerStatus {
		m.Name, m.State = "ct", "caught_up"
		return daemon.PeerStatus{Node: name, Receiving: true, Sending: sending, Maps: []daemon.PeerMapStatus{m}}
	}
	var out strings.Builder
	err := printStatus(&out, &daemon.Status{Node: "n", Ready: true, Peers: []daemon.PeerStatus{
		peer("good", true, daemon.PeerMapStatus{Agreed: true}),
		peer("new", true, daemon.PeerMapStatus{}),
		peer("differs", true, daemon.PeerMapStatus{Agreed: true, Divergent: 3}),
		peer("other", true, daemon.PeerMapStatus{Incomparable: "another key"}),
		peer("unserved", false, daemon.PeerMapStatus{Agreed: true}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`good +ct +caught_up +yes +0 +0 +0 +0 +0s`,
		`new +ct +caught_up +not proven yet +0`,
		`differs +ct +caught_up +3 DIFFER +0`,
		`other +ct +caught_up +UNKNOWN +0`,
		`unserved +ct +caught_up +yes +0 +0 +0 +NOT SERVED +-`,
		`peer differs, map ct: entries differ, .syncd diff ct --peer differs. lists them`,
		`peer other, map ct: cannot be compared: another key`,
	} {
		if !regexp.MustCompile("(?m)^" + want).MatchString(out.String()) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}
