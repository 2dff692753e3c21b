package replicate

import (
	"fmt"
	"testing"

	"mapsync/syncd/table"
)

// TestRelayOfAStartingNode checks which peer sends the records of a live node from which this node has never received
// everything: one that receives from it, else any peer with all its records.
func TestRelayOfAStartingNode(t *testing.T) {
	peer := func(name string, synced bool, sources ...string) mapSource {
		return mapSource{peer: table.Owner{Node: name}, serving: true, candidate: true, fullSyncDone: synced, sources: sources}
	}
	lost := func(synced bool, via string) mapSource {
		return mapSource{peer: table.Owner{Node: "x"}, unreachable: true, fullSyncDone: synced, via: via}
	}
	for name, c := range map[string]struct {
		all  []mapSource
		want string
	}{
		"the first one":                     {[]mapSource{peer("a", true), peer("b", true), lost(false, "")}, "map[a:[x]]"},
		"the earlier choice":                {[]mapSource{peer("a", true), peer("b", true), lost(false, "b")}, "map[b:[x]]"},
		"one that receives from it":         {[]mapSource{peer("a", true), peer("b", true, "x"), lost(false, "a")}, "map[b:[x]]"},
		"one that has sent everything":      {[]mapSource{peer("a", false), peer("b", true), lost(false, "")}, "map[b:[x]]"},
		"this node had received everything": {[]mapSource{peer("a", true), peer("b", true), lost(true, "")}, "map[]"},
	} {
		if got := fmt.Sprint(chooseRelays(c.all)); got != c.want {
			t.Errorf("%s: relays: got %s, want %s", name, got, c.want)
		}
	}
}
