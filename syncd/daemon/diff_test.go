package daemon_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// Two nodes in sync report that their digests agree, with the position of the comparison. A
// resync of them changes nothing.
func TestDigestsAgreeWhenInSync(t *testing.T) {
	n1, n2, m1, m2 := syncedPair(t)
	head := n1.status().Maps[0].Position
	poll.Eventually(t, "the digests of both nodes agree", func() bool {
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
	if all, err := differences("ct", daemon.DiffQuery{}); err != nil || len(all) != 1 || all[0].Peer != "n1" || all[0].Summary == nil || !all[0].Summary.Clean() {
		t.Errorf("diff in sync: got %+v, error %v, want a clean summary", all, err)
	}
	if all, err := differences("ct", daemon.DiffQuery{Peer: "n9"}); !errors.Is(err, daemon.ErrUse) || len(all) != 0 || !strings.Contains(err.Error(), `no such peer "n9"`) {
		t.Errorf("diff with an unknown peer: got %+v, error %v, want ErrUse", all, err)
	}
	if _, err := differences("none", daemon.DiffQuery{}); err == nil || !strings.Contains(err.Error(), "no such map") {
		t.Errorf("diff of an unknown map: got error %v, want \"no such map\"", err)
	}
	if err := n2.client.Resync(ctx, "ct", func(*daemon.Resync) {}); err != nil {
		t.Fatal(err)
	}
	if err := n2.client.Resync(ctx, "none", nil); err == nil || !strings.Contains(err.Error(), "no such map") {
		t.Errorf("resync of an unknown map: got error %v, want \"no such map\"", err)
	}
	if !holds(t, m1, 500, 7) || !holds(t, m2, 500, 7) {
		t.Error("maps after the resync: got a change, want none")
	}
	metrics := n2.metrics()
	for _, sample := range []string{
		`mapsync_divergent_entries{map="ct",peer="n1"} 0`, `mapsync_digests_agree{map="ct",peer="n1"} 1`,
		`mapsync_repaired_entries_total 0`,
	} {
		if !strings.Contains(metrics, sample+"\n") {
			t.Errorf("metrics: want %s", sample)
		}
	}
}

// diff returns the result of a comparison of map ct with all peers.
func (n *node) diff() (all []daemon.DiffEntry) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	err := n.client.Diff(ctx, "ct", daemon.DiffQuery{Form: daemon.FormText}, func(e *daemon.DiffEntry) error {
		all = append(all, *e)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

// A comparison that cannot be made is an error with its reason, for each expected peer.
func TestDiffReportsFailedComparison(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 100)
	n1.start()
	poll.Eventually(t, "the node is ready alone", func() bool { return n1.status().Ready })
	if all := n1.diff(); len(all) != 1 || all[0].Error != "not compared: no peer is alive" {
		t.Errorf("diff without a peer: got %+v, want \"no peer is alive\"", all)
	}
	n1.stop()
	n1.config.ExpectedPeers = config.PeerList{"n2", "n3"}
	startPair(t, n1, n2)
	n1.write(m1, 0, 50, 7)
	if all := n1.diff(); len(all) != 2 || all[0].Summary == nil || all[1].Peer != "n3" || all[1].Error != "not compared: n3 never seen" {
		t.Errorf("diff with one of two peers: got %+v, want a summary and an error for n3", all)
	}
	// A table of the small map would refuse some of the entries.
	poll.Eventually(t, "the peer's map holds the entries", func() bool { return holds(t, m2, 50, 7) })
	pinned(t, n2.pin, 8, 8, 30)
	poll.Eventually(t, "the summary counts the entries that the peer's kernel map does not hold", func() bool {
		s := n1.diff()[0].Summary
		return s != nil && s.NotHeld == 20 && s.NotHeldHere == 0 && !s.Clean()
	})
	if s := n2.diff()[0].Summary; s == nil || s.NotHeldHere != 20 || s.NotHeld != 0 || s.Clean() {
		t.Errorf("diff on the node with the small map: got %+v, want 20 entries of the peer that do not go into its kernel map", s)
	}
}

// Entries that a node cannot hold do not keep it out of service. They are counted and listed with
// their keys and the reason, on both sides.
func TestExceptionsDoNotBlockReadiness(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := typed(t, path1, keyV1, valueV2, 100)
	typed(t, path2, keyV1, valueV1, 100)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	poll.Eventually(t, "the node is ready", func() bool { return n1.status().Ready })
	n1.writeSessions(m1, keyV1, valueV2, 0, 50, 1)
	n1.applyEntries(m1, 2, func(i int) (k, v []byte) {
		return keyV1.bytes(map[string]uint64{"addr": uint64(1000 + i), "port": 80}), valueV2.bytes(map[string]uint64{"bytes": 1 << 40})
	})
	n2.start()
	poll.Eventually(t, "the joiner is ready", func() bool { return n2.status().Ready })
	for _, labels := range []string{`{cause="refused",map="ct"}`, `{cause="unsent",map="ct"}`} {
		want := map[bool]string{true: "2", false: "0"}[strings.Contains(labels, "refused")]
		if got := n2.sample("mapsync_exception_entries", labels); got != want {
			t.Errorf("mapsync_exception_entries%s: got %s, want %s", labels, got, want)
		}
	}
	is := func(e *daemon.DiffEntry, kind daemon.DiffKind, port string) bool {
		return e.Kind == kind && strings.Contains(e.Entry, "addr="+port) && strings.Contains(e.Reason, `"bytes"`)
	}
	poll.Eventually(t, "both nodes list the entries with the reason", func() bool {
		here, there := n2.diff(), n1.diff()
		return len(here) == 3 && is(&here[0], daemon.DiffRefused, "1000") && is(&here[1], daemon.DiffRefused, "1001") && here[2].Summary.Refused == 2 &&
			len(there) == 3 && is(&there[0], daemon.DiffRefusedPeer, "1000") && is(&there[1], daemon.DiffRefusedPeer, "1001") && there[2].Summary.RefusedThere == 2
	})
	if s := n2.status().Peers[0].Maps[0]; s.Refused != 2 || len(s.Exceptions) != 2 || s.Divergent != 0 {
		t.Errorf("status: got %+v, want 2 refused and 0 divergent entries", s)
	}
	if !n2.log.contains(`msg="cannot store entries of peer`) || !n2.log.contains(`reason="decode value: value does not fit`) {
		t.Error("log: want the reason of the refused entries")
	}
	n2.shows("refused-entries", problem.Warning, "2 entries of the peer cannot be held here")
	n1.shows("not-held", problem.Warning, "2 entries of this node cannot be held by the peer")
	if _, err := n1.client.Drain(t.Context(), true); err != nil { // the peer holds less than redundancy-share
		t.Fatal(err)
	}
	poll.Eventually(t, "the drain lists the entries", func() bool {
		h, err := n1.client.Handover(t.Context())
		return err == nil && h.Done && len(h.NotHeld) == 1 && h.NotHeld[0].Text() == "2 entries of ct not held by n2: 2 cannot be held there"
	})
	if _, err := n1.client.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	n1.applyEntries(m1, 2, func(i int) (k, v []byte) {
		return keyV1.bytes(map[string]uint64{"addr": uint64(1000 + i), "port": 80}), nil
	})
	n2.ends("refused-entries")
	n1.ends("not-held")
}
