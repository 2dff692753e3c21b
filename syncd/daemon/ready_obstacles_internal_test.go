package daemon

import (
	"slices"
	"testing"
)

// The reasons of the replicator become one reason for each map. It contains the peers and why a
// comparison is unknown.
func TestObstaclesAreGroupedByMap(t *testing.T) {
	reasons := make(map[string][]string)
	list := []string{"n2/ct (unknown: nodes a/b differ)", "n2/nat", "n3/ct", "n4/ct"}
	except := map[string]unservedMap{"ct": {peers: []string{"n4"}}}
	if all := addPeers(reasons, "not yet with ", list, except); all != "" {
		t.Errorf("reason for all maps: got %q, want none", all)
	}
	if got := reasons["ct"]; !slices.Equal(got, []string{"not yet with n2 (unknown: nodes a/b differ), n3"}) {
		t.Errorf("reasons of ct: got %q, want one with n2 and n3", got)
	}
	if got := reasons["nat"]; !slices.Equal(got, []string{"not yet with n2"}) {
		t.Errorf("reasons of nat: got %q, want one with n2", got)
	}
	if all := addPeers(reasons, "not yet with ", []string{"membership"}, nil); all != "waiting for membership" {
		t.Errorf("reason before the first members: got %q, want \"waiting for membership\"", all)
	}
}

// A page with one reason in each line shows the reasons, also if one is an error that joins others.
func TestReasonHasOneLine(t *testing.T) {
	var missing reasons
	missing.add("ct", "read types\nno such file")
	if got := missing.texts(); !slices.Equal(got, []string{"ct: read types; no such file"}) {
		t.Errorf("reasons: got %q, want one line", got)
	}
}
