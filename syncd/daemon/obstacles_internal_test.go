package daemon

import (
	"slices"
	"testing"
)

// What the replicator waits for becomes one reason a map, with the peers and why a comparison
// is unknown.
func TestObstaclesAreGroupedByMap(t *testing.T) {
	reasons := make(map[string][]string)
	list := []string{"n2/ct (unknown: nodes a/b differ)", "n2/nat", "n3/ct", "n4/ct"}
	except := map[string]unservedMap{"ct": {peers: []string{"n4"}}}
	if all := addPeers(reasons, "not yet with ", list, except); all != "" {
		t.Errorf("a reason for all maps: %s", all)
	}
	if got := reasons["ct"]; !slices.Equal(got, []string{"not yet with n2 (unknown: nodes a/b differ), n3"}) {
		t.Errorf("ct: %q", got)
	}
	if got := reasons["nat"]; !slices.Equal(got, []string{"not yet with n2"}) {
		t.Errorf("nat: %q", got)
	}
	if all := addPeers(reasons, "not yet with ", []string{"membership"}, nil); all != "waiting for membership" {
		t.Errorf("before the first members: %q", all)
	}
}
