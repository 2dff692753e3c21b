package daemon_test

import (
	"encoding/binary"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

func TestMapAppearsAndIsReplaced(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	n2.start()
	poll.Eventually(t, "the map state is waiting", func() bool { return n1.status().Maps[0].State == daemon.MapWaiting })
	if n1.status().Ready {
		t.Error("status without a map: got ready, want not ready")
	}
	m1, m2 := pinned(t, path1, 8, 8, 1000), pinned(t, path2, 8, 8, 1000)
	poll.Eventually(t, "both nodes are ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
	n1.write(m1, 0, 500, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 500, 7) })
	poll.Eventually(t, "the lag is 0", func() bool { return n1.status().Peers[0].Maps[0].LagEntries == 0 })

	// The load balancer of n2 restarts with a new map: the table refills it.
	fresh := pinned(t, path2, 8, 8, 1000)
	poll.Eventually(t, "the new map is refilled", func() bool { return holds(t, fresh, 500, 7) })
	n1.write(m1, 0, 500, 8)
	poll.Eventually(t, "changes go to the new map", func() bool { return holds(t, fresh, 500, 8) })
	if s := n2.status(); s.Capture.Lost != 0 || s.Gaps != 0 {
		t.Errorf("status: got %+v, want no losses and no gaps", s)
	}
}

func TestRestartReplicatesDeletesMadeWhileStopped(t *testing.T) {
	n1, _, m1, m2 := syncedPair(t)
	n1.stop()
	for i := range uint64(100) { // entries 400 to 499 are deleted while syncd is stopped
		key, _ := pair(400+i, 0)
		if err := m1.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	n1.start()
	poll.Eventually(t, "the deletes made while syncd was stopped reach the peer", func() bool { return holds(t, m2, 400, 7) })
	if !holds(t, m1, 400, 7) {
		t.Error("map of the restarted node: got it changed, want entries 0 to 399")
	}
}

// TestDeletesMadeWhileStoppedWithPeerThatDoesNotFit: the map of a third node does not fit, so it never sends its records. The
// deletes do not wait for that.
func TestDeletesMadeWhileStoppedWithPeerThatDoesNotFit(t *testing.T) {
	n1, _, m1, m2 := syncedPair(t)
	n1.stop()
	for i := range uint64(100) { // entries 400 to 499
		key, _ := pair(400+i, 0)
		if err := m1.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(pinDir(t), "other")
	pinned(t, other, 8, 24, 1000)
	n3 := newNode(t, 3, "ct="+other)
	n3.start()
	n1.config.SyncTimeout = 2 * poll.Limit
	n1.start()
	poll.Eventually(t, "the third node refuses the map", func() bool { return len(n1.status().Peers) == 2 })
	poll.Eventually(t, "the deletes made while syncd was stopped reach the peer", func() bool { return holds(t, m2, 400, 7) })
}

// A change in place of a new entry, which no hook detects, reaches the peer if it is made soon
// after the entry was created. The last changes of a TCP handshake are of this kind.
func TestInPlaceChangesOfNewEntriesReplicate(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	for i := range uint64(500) { // no hook detects this change
		key, value := pair(i, 8)
		if err := m1.Update(key, value, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
	}
	poll.Eventually(t, "the peer's map holds the newest values", func() bool { return holds(t, m2, 500, 8) })
}

func TestRefusedMapsDoNotStopOthers(t *testing.T) {
	dir := pinDir(t)
	big, differ, good := filepath.Join(dir, "big"), filepath.Join(dir, "differ"), filepath.Join(dir, "good")
	pinned(t, big, 8, kmap.MaxValueSize+8, 10)
	pinned(t, differ+"1", 8, 16, 10)
	pinned(t, differ+"2", 8, 24, 10)
	good1, good2 := pinned(t, good+"1", 8, 8, 600), pinned(t, good+"2", 8, 8, 400)
	n1 := newNode(t, 1, "big="+big, "differ="+differ+"1", "good="+good+"1")
	n2 := newNode(t, 2, "differ="+differ+"2", "good="+good+"2")
	n1.start()
	n2.start()
	poll.Eventually(t, "the good map replicates", func() bool {
		s := n1.status()
		return s.Maps[2].State == daemon.MapReplicating && len(s.Peers) == 1 && s.Peers[0].Sending
	})
	n1.write(good1, 0, 500, 1)
	// 400 of the 500 entries fit. The others are counted as failed and stay in the table.
	poll.Eventually(t, "the entries that fit are in the map", func() bool { return holds(t, good2, 400, 1) })
	poll.Eventually(t, "the entries that do not fit are counted", func() bool { return n2.status().Maps[1].Failed == 100 })
	s := n1.status()
	if s.Maps[0].State != daemon.MapRefused || !strings.Contains(s.Maps[0].Error, strconv.Itoa(kmap.MaxValueSize)) {
		t.Errorf("map with large entries: got %+v, want it refused with the limit of %d bytes", s.Maps[0], kmap.MaxValueSize)
	}
	poll.Eventually(t, "the error names the different layouts", func() bool {
		for _, m := range n1.status().Peers[0].Maps {
			if m.Name == "differ" && strings.Contains(m.Error, "value: ") && strings.Contains(m.Error, "24") {
				return true
			}
		}
		return false
	})
}

func TestHealthAndMetrics(t *testing.T) {
	dir := pinDir(t)
	n := newNode(t, 1, filepath.Join(dir, "ct"))
	n.config.Join = nil
	n.start()
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + n.config.MetricsListen + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: got status %d, want 200", code)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "ct: waiting") {
		t.Errorf("readyz without a map: got status %d and %s, want 503 and \"ct: waiting\"", code, body)
	}
	m := pinned(t, filepath.Join(dir, "ct"), 8, 8, 100)
	poll.Eventually(t, "the node is ready", func() bool { code, _ := get("/readyz"); return code == http.StatusOK })
	n.write(m, 0, 10, 1)
	poll.Eventually(t, "the metrics count the entries", func() bool {
		_, body := get("/metrics")
		return strings.Contains(body, `mapsync_capture_events_total{context="packet"} 10`) &&
			strings.Contains(body, `mapsync_map_entries{map="ct",state="live"} 10`) &&
			strings.Contains(body, "mapsync_ready 1")
	})
	found := 0
	err := n.client.Entries(t.Context(), "ct", daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		if err == nil && len(key) == 8 && binary.LittleEndian.Uint64(value) == 1 && e.Owner == "n1" {
			found++
		}
		return err
	})
	if err != nil || found != 10 {
		t.Errorf("dump: got %d entries, error %v, want 10 entries", found, err)
	}
	if err := n.client.Entries(t.Context(), "other", daemon.EntryQuery{}, nil); err == nil || !strings.Contains(err.Error(), "no such map") {
		t.Errorf("dump of an unknown map: got error %v, want \"no such map\"", err)
	}
}
