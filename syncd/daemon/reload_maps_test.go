package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// The node serves peers although a reload removes a map before it was read.
func TestReloadDuringTheFirstRead(t *testing.T) {
	dir := pinDir(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	pinned(t, a, 8, 8, 1000)
	pinned(t, b, 8, 8, 1000)
	n := newNode(t, 1, "a="+a, "b="+b)
	n.config.Join = nil
	n.start()
	next := n.config
	next.Maps = []string{"a=" + a}
	if done, err := n.reload(next); err != nil || len(done.Removed) != 1 {
		t.Fatalf("reload: got %+v, error %v, want one removed map", done, err)
	}
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	poll.Eventually(t, "peers are served", n.serving)
}

// A watch of a removed map ends with an error.
func TestWatchOfARemovedMap(t *testing.T) {
	dir := pinDir(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	pinned(t, a, 8, 8, 1000)
	m := pinned(t, b, 8, 8, 1000)
	n := newNode(t, 1, "a="+a, "b="+b)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	ended, seen := make(chan error, 1), make(chan struct{}, 100)
	go func() {
		ended <- n.client.Entries(t.Context(), "b", daemon.EntryQuery{Watch: true}, func(*daemon.Entry) error { seen <- struct{}{}; return nil })
	}()
	value := uint64(0)
	poll.Eventually(t, "the watch has begun", func() bool {
		value++
		n.write(m, 0, 1, value)
		return len(seen) > 0
	})
	next := n.config
	next.Maps = []string{"a=" + a}
	if _, err := n.reload(next); err != nil {
		t.Fatal(err)
	}
	next.Maps = []string{"a=" + a, "b=" + b}
	if _, err := n.reload(next); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("watch of a removed map: got no error, want one")
		}
	case <-time.After(20 * time.Second):
		t.Error("watch of a removed map: not ended within 20 s")
	}
}

// A resync of a removed map ends with an error.
func TestResyncOfARemovedMap(t *testing.T) {
	n1, n2, m1, _ := syncedPair(t)
	more := filepath.Join(filepath.Dir(n1.pin), "more")
	pinned(t, more, 8, 8, 1000)
	stop := writeLoop(t, func(v uint64) { n1.write(m1, 0, 500, v) })
	defer stop()
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { ended <- n2.client.Resync(ctx, "ct", func(*daemon.Resync) {}) }()
	time.Sleep(5 * time.Millisecond) // the resync must end, whether it has begun or not
	next := n2.config
	next.Maps = []string{"more=" + more}
	if _, err := n2.reload(next); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; ctx.Err() != nil {
		t.Errorf("resync of a removed map: not ended within 20 s: %v", err)
	}
}

// A map that a reload added, and that was never ready, does not take a node out of service when
// it is replaced.
func TestReplacingAddedMapKeepsNodeReady(t *testing.T) {
	n1, n2, _, _ := syncedPair(t)
	more := filepath.Join(filepath.Dir(n1.pin), "more")
	pinned(t, more, 8, 8, 1000)
	next := n2.config
	next.Maps = []string{"ct=" + n2.pin, "more=" + more}
	if _, err := n2.reload(next); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the map is attached", func() bool { m := n2.status().Maps[1]; return m.ID != 0 && m.State == "replicating" })
	stop := watchReady(t, n1, n2)
	for range 5 {
		id := idOf(t, pinned(t, more, 8, 8, 1000))
		poll.Eventually(t, "the new map is attached", func() bool { m := n2.status().Maps[1]; return m.ID == id && m.State == "replicating" })
	}
	stop()
}

// A reload of a drained node adds a map that its peer does not have. The node can nevertheless
// return to service.
func TestMapAddedToADrainedNode(t *testing.T) {
	_, n2, _, _ := syncedPair(t)
	more := filepath.Join(filepath.Dir(n2.pin), "more")
	pinned(t, more, 8, 8, 1000)
	n2.beginDrain()
	next := n2.config
	next.Maps = []string{"ct=" + n2.pin, "more=" + more}
	if _, err := n2.reload(next); err != nil {
		t.Fatal(err)
	}
	if _, err := n2.client.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the node is in service", func() bool { r, err := n2.client.Ready(t.Context()); return err == nil && r.Ready })
}

// A purge without a kernel map keeps live records that did not fit into the former map, because
// they may fit into the next map.
func TestPurgeWithoutAKernelMap(t *testing.T) {
	n1, n2, m1, _ := twoNodes(t, 1000)
	pinned(t, n2.pin, 8, 8, 100)
	n1.start()
	n2.start()
	poll.Eventually(t, "n1 is ready with its peer", func() bool { return len(n1.status().Peers) == 1 && n1.status().Ready })
	n1.write(m1, 0, 150, 7)
	poll.Eventually(t, "50 entries do not fit", func() bool { return n2.status().Maps[0].Failed == 50 })
	if err := os.Remove(n2.pin); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the map state is waiting", func() bool { return n2.status().Maps[0].State == "waiting" })
	done, err := n2.client.Purge(t.Context(), "ct")
	if err != nil || len(done.Maps) != 1 || done.Maps[0].Records != 0 {
		t.Errorf("purge: got %+v, error %v, want no record removed", done, err)
	}
}

// A refused map whose pin is removed returns to the state waiting.
func TestRemovedRefusedMapIsWaiting(t *testing.T) {
	dir := pinDir(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	m := pinned(t, a, 8, 8, 1000)
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	for _, pin := range []string{a, b} {
		clone, err := m.Clone()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = clone.Close() })
		if err := clone.Pin(pin); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t, 1, "a="+a, "b="+b)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "b is refused", func() bool { return n.status().Maps[1].State == "refused" })
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the state of b is waiting", func() bool { m := n.status().Maps[1]; return m.State == "waiting" && m.Error == "" })
}

// Of three expected peers, one does not receive from this node, and two were never seen.
func TestPeersThatWereNeverSeen(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	n1.config.ExpectedPeers = []string{"3"}
	n1.config.GRPCAdvertise = loopback(1) + ":1" // an address that n2 cannot dial
	n1.start()
	n2.start()
	poll.Eventually(t, "two peers were never seen", func() bool { return strings.Contains(n1.status().Redundancy.Problem, "2 never seen") })
}
