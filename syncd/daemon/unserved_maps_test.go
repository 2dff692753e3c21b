package daemon_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
)

// A map that a live peer does not replicate with this node keeps this node from becoming ready.
// The reason names the map. Nodes that are ready stay ready.
func TestUnservedMapsBlockFirstReadiness(t *testing.T) {
	dir := pinDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	n1 := newNode(t, 1, "ct="+path("ct1"), "nat="+path("nat1"), "fw="+path("fw1"))
	n2 := newNode(t, 2, "ct="+path("ct2"), "nat="+path("nat2"), "fw="+path("fw2"))
	for _, name := range []string{"ct1", "ct2", "nat1", "fw1", "fw2"} {
		pinned(t, path(name), 8, 8, 100)
	}
	pinned(t, path("nat2"), 8, 16, 100) // another layout without types: refused in both directions
	n1.start()
	poll.Eventually(t, "the node is ready alone", func() bool { return n1.status().Ready })
	n2.config.Maps = n2.config.Maps[:2]
	n2.config.Maps = append(n2.config.Maps, "odd="+path("fw2")) // the peer has no map of this name
	n2.start()
	has := func(list []string, parts ...string) bool {
		return slices.ContainsFunc(list, func(s string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
		})
	}
	poll.Eventually(t, "the joiner reports which maps are not replicated", func() bool {
		list := n2.status().NotReady
		return len(list) == 2 && has(list, "nat: ", "not received from n1 (refused)") && has(list, "odd: n1 does not have the map")
	})
	if !n1.status().Ready {
		t.Error("ready node after the join: got not ready, want ready")
	}
	for _, labels := range []string{
		`{direction="receive",map="nat",peer="n1",state="refused"}`, `{direction="send",map="nat",peer="n1",state="refused"}`,
		`{direction="receive",map="odd",peer="n1",state="pending"}`, `{direction="send",map="odd",peer="n1",state="waiting"}`,
		`{direction="receive",map="ct",peer="n1",state="caught_up"}`, `{direction="send",map="ct",peer="n1",state="served"}`,
	} {
		poll.Eventually(t, labels, func() bool { return n2.sample("mapsync_peer_map_state", labels) == "1" })
	}
	if v := n2.sample("mapsync_peer_map_state", `{direction="receive",map="ct",peer="n1",state="refused"}`); v != "0" {
		t.Errorf("state refused of ct: got %s, want 0", v)
	}
	n2.stop()
	n2.config.AllowUnservedMaps = true
	n2.start()
	poll.Eventually(t, "the node is ready with allow-unserved-maps", func() bool { return n2.status().Ready })
	p := n2.shows("map-unserved", problem.Critical, "the peer does not have the map")
	if p.Map != "odd" || !strings.Contains(p.Remedy, "add odd to map there") { // n1 has no problem of a map that it does not list
		t.Errorf("problem: got %+v, want the map, and that it is missing in the settings of the peer", p)
	}
}
