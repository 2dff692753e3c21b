package daemon_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// TestPause: while a map of a node is paused, nothing leaves or enters it, and the node stays in service. Afterwards both nodes have the
// changes of both, also the deletes.
func TestPause(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	startPair(t, n1, n2)
	n1.write(m1, 0, 100, 1)
	n2.write(m2, 100, 200, 1)
	poll.Eventually(t, "both maps hold all entries", func() bool { return holds(t, m1, 200, 1) && holds(t, m2, 200, 1) })
	stop := watchReady(t, n1, n2)
	before, err := n1.client.PauseMap(t.Context(), "ct")
	if err != nil || before.Since.IsZero() {
		t.Fatalf("pause: got %v and error %v, want the time", before, err)
	}
	n1.shows("map-paused", problem.Critical, "no changes are sent or received")
	again, err := n1.client.PauseMap(t.Context(), "ct")
	if err != nil || !again.Since.Equal(before.Since) {
		t.Errorf("second pause: got %v and error %v, want the time %s of the first", again, err, before.Since)
	}
	if _, err := n1.client.Drain(t.Context(), false); err == nil || !strings.Contains(err.Error(), "map ct is paused: `syncd resume ct`") {
		t.Errorf("drain of a node with a paused map: got error %v, want that it is refused", err)
	}
	// Each node changes 50 of its entries and deletes 10.
	change := func() {
		n1.write(m1, 0, 50, 2)
		n2.write(m2, 100, 150, 2)
		n1.applyEntries(m1, 10, func(i int) (key, value []byte) { key, _ = pair(uint64(90+i), 0); return key, nil })
		n2.applyEntries(m2, 10, func(i int) (key, value []byte) { key, _ = pair(uint64(190+i), 0); return key, nil })
	}
	change()
	time.Sleep(2 * time.Second) // nothing happens meanwhile
	if got := lacks(m1, 200, 1); got != 60 {
		t.Errorf("entries of the paused node that differ from those before: got %d, want its own 60", got)
	}
	if got := lacks(m2, 200, 1); got != 60 {
		t.Errorf("entries of the peer that differ from those before: got %d, want its own 60", got)
	}
	if _, err := n1.client.ResumeMap(t.Context(), "ct"); err != nil {
		t.Fatal(err)
	}
	n1.ends("map-paused")
	want := func(i uint64) uint64 {
		switch {
		case i%100 >= 90, i >= 200:
			return 0
		case i%100 < 50:
			return 2
		}
		return 1
	}
	poll.Eventually(t, "both maps hold all changes", func() bool { return wrong(m1, want) == 0 && wrong(m2, want) == 0 })
	stop()
	if _, err := n1.client.Drain(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := n1.client.PauseMap(t.Context(), "ct"); err == nil || !strings.Contains(err.Error(), "syncd drain --undo") {
		t.Errorf("pause on a drained node: got error %v, want that it is refused", err)
	}
	if _, err := n1.client.PauseMap(t.Context(), "other"); !errors.Is(err, daemon.ErrUse) {
		t.Errorf("pause of an unknown map: got error %v, want wrong use", err)
	}
}
