package daemon_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/daemon"
)

// TestDigestsProveEquality: two nodes that hold the same say so, with the position up to
// which it was proven, and a resync changes nothing.
func TestDigestsProveEquality(t *testing.T) {
	n1, n2, m1, m2 := equalPair(t)
	head := n1.status().Maps[0].Position
	eventually(t, "both agree on it", func() bool {
		one, two := n1.status().Peers[0].Maps[0], n2.status().Peers[0].Maps[0]
		return one.Agreed && two.Agreed && two.AgreedPosition >= head && two.Divergent == 0 && two.Incomparable == ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	differences := func(name string, q daemon.DiffQuery) (all []daemon.DiffEntry, err error) {
		err = n2.client.Diff(ctx, name, q, func(e *daemon.DiffEntry) error {
			all = append(all, *e)
			return nil
		})
		return all, err
	}
	if all, err := differences("ct", daemon.DiffQuery{}); err != nil || len(all) != 0 {
		t.Errorf("differences %+v, error %v", all, err)
	}
	if all, err := differences("ct", daemon.DiffQuery{Peer: "n9"}); err != nil || len(all) != 1 || !strings.Contains(all[0].Error, "no live peer") {
		t.Errorf("differences with nobody %+v, error %v", all, err)
	}
	if _, err := differences("none", daemon.DiffQuery{}); err == nil || !strings.Contains(err.Error(), "no such map") {
		t.Errorf("differences of no map: %v", err)
	}
	if err := n2.client.Resync(ctx, "ct", func(*daemon.Resync) {}); err != nil {
		t.Fatal(err)
	}
	if err := n2.client.Resync(ctx, "none", nil); err == nil || !strings.Contains(err.Error(), "no such map") {
		t.Errorf("resync of no map: %v", err)
	}
	if !holds(t, m1, 500, 7) || !holds(t, m2, 500, 7) {
		t.Error("the resync has changed a map")
	}
	metrics := n2.metrics()
	for _, sample := range []string{
		`mapsync_divergent_entries{map="ct",peer="n1"} 0`, `mapsync_digests_agree{map="ct",peer="n1"} 1`,
		`mapsync_repaired_entries_total 0`, `mapsync_digest_rounds_total{outcome="impossible"} 0`,
	} {
		if !strings.Contains(metrics, sample+"\n") {
			t.Errorf("metrics without %s", sample)
		}
	}
}
