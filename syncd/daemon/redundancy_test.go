package daemon_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// sample returns the value of a metric's sample with these labels, or "absent". The labels are in
// their order.
func (n *node) sample(name, labels string) string {
	n.t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name+labels) + ` (\S+)$`).FindStringSubmatch(n.metrics())
	if m == nil {
		return "absent"
	}
	return m[1]
}

func TestRedundancyIsReported(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	n1.config.ExpectedPeers = config.PeerList{"n1", "n2", "n3"}
	n1.config.Cluster, n2.config.Cluster = "edge", "edge"
	startPair(t, n1, n2)
	redundancy := func() daemon.Redundancy { return n1.status().Redundancy }
	poll.Eventually(t, "one of two peers is live", func() bool {
		r := redundancy()
		return r.Expected == 2 && r.Live == 1 && r.Problem == "n3 never seen"
	})
	if a := n1.status().Absent; len(a) != 1 || a[0].Node != "n3" || !a[0].Expected || !a[0].LastContact.IsZero() {
		t.Errorf("absent peers: got %+v, want n3, expected and never seen", a)
	}
	poll.Eventually(t, "the log has the problem", func() bool {
		return n1.log.contains(`level=ERROR msg="problem began" id=redundancy text="1/2: n3 never seen"`)
	})
	const label = `{cluster="edge"}`
	if e, l := n1.sample("mapsync_redundancy_expected", label), n1.sample("mapsync_redundancy_live", label); e != "2" || l != "1" {
		t.Errorf("redundancy metrics: got %s of %s, want 1 of 2", l, e)
	}
	n2.stop()
	poll.Eventually(t, "the lost peer is listed with the time of last contact", func() bool {
		a := n1.status().Absent
		i := slices.IndexFunc(a, func(p daemon.AbsentPeer) bool { return p.Node == "n2" })
		return len(a) == 2 && a[i].Expected && !a[i].LastContact.IsZero() && regexp.MustCompile(`^n2 lost \d+ s ago, n3 never seen$`).MatchString(redundancy().Problem)
	})
	if l := n1.sample("mapsync_redundancy_live", label); l != "0" {
		t.Errorf("mapsync_redundancy_live: got %s, want 0", l)
	}
	n2.start()
	poll.Eventually(t, "the peer has returned", func() bool { return redundancy().Live == 1 && len(n1.status().Absent) == 1 })
}

// Without expected-peers no peer is missing. If it is a number, the peers that left last are
// missing.
func TestExpectedPeersAsANumber(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	n1.config.ExpectedPeers = config.PeerList{"2"}
	startPair(t, n1, n2)
	poll.Eventually(t, "one peer was never seen", func() bool {
		r := n1.status().Redundancy
		return r.Expected == 2 && r.Live == 1 && r.Problem == "1 never seen"
	})
	n2.stop()
	poll.Eventually(t, "one peer is lost", func() bool {
		return regexp.MustCompile(`^1 never seen, n2 lost \d+ s ago$`).MatchString(n1.status().Redundancy.Problem)
	})
	n3 := newNode(t, 3, "ct="+filepath.Join(filepath.Dir(n2.pin), "three"))
	pinned(t, filepath.Join(filepath.Dir(n2.pin), "three"), 8, 8, 100)
	n3.start()
	poll.Eventually(t, "another node replaces it", func() bool {
		s := n3.status()
		return s.Ready && s.Redundancy.Expected == 0 && s.Redundancy.Live == 1 && s.Redundancy.Problem == ""
	})
	poll.Eventually(t, "the new peer is live and the lost peer is still expected", func() bool {
		s := n1.status()
		return s.Redundancy.Live == 1 && len(s.Absent) == 1 && s.Absent[0].Node == "n2" && s.Absent[0].Expected
	})
}

// A problem of many maps is reported in one line, which names only the maps that it concerns.
func TestEachProblemIsListedOnce(t *testing.T) {
	const count = 43
	dir := pinDir(t)
	n := newNode(t, 1)
	n.config.Join = []string{silentMember() + ":7946"}
	for i := range count {
		pinned(t, filepath.Join(dir, fmt.Sprint("m", i)), 8, 8, 10)
		n.config.Maps = append(n.config.Maps, filepath.Join(dir, fmt.Sprint("m", i)))
	}
	pinned(t, filepath.Join(dir, "bad"), 8, 8, 10)
	n.config.Maps = append(n.config.Maps, "absent="+filepath.Join(dir, "none"))
	leave := startSilentMember(t, n.config.GossipListen)
	defer leave()
	n.start()
	poll.Eventually(t, "one line for the peer, and one for the absent map", func() bool {
		list := n.status().NotReady
		return len(list) == 2 && list[0] == "m0, m1, m2, m3, m4 and 38 more maps: initial sync is under way with mute" &&
			list[1] == "absent: waiting"
	})
	if code, body := n.readyz(); code != 503 || strings.Count(body, "\n") != 2 {
		t.Errorf("readyz: got status %d, want 503 and two lines:\n%s", code, body)
	}
}
