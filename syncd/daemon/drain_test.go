package daemon_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

func TestDrainHandsOver(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 20_000)
	startPair(t, n1, n2)
	poll.Eventually(t, "the health service reports serving", n1.serving)
	poll.Eventually(t, "the peer can take over", func() bool { return n1.status().Redundancy.Live == 1 })
	n1.write(m1, 0, 10_000, 7)

	h, err := n1.client.Drain(t.Context(), false)
	if err != nil || !h.Drained || h.Done {
		t.Fatalf("drain: got %+v, error %v, want drained and not done", h, err)
	}
	if code, body := n1.readyz(); code != http.StatusServiceUnavailable || !strings.Contains(body, "drained") {
		t.Errorf("readyz of a drained node: got status %d and %s, want 503 and \"drained\"", code, body)
	}
	if n1.serving() {
		t.Error("health of a drained node: got serving, want not serving")
	}
	// Traffic of n1 decreases. The peer, which receives it now, also has continuous traffic of
	// its own.
	stop := writeLoop(t, func(v uint64) {
		n2.write(m2, 15_000, 15_010, v)
		time.Sleep(20 * time.Millisecond) // the rate of the traffic
	})
	last, checks := time.Now(), 0
	for i := range uint64(8) {
		last = time.Now() // not later than the change
		n1.write(m1, 10_000+10*i, 10_010+10*i, 7)
		time.Sleep(200 * time.Millisecond) // the traffic of n1 pauses for less than a second
		if h, err = n1.client.Handover(t.Context()); err != nil {
			t.Fatalf("handover during traffic: got error %v, want none", err)
		}
		if time.Since(last) >= 500*time.Millisecond {
			continue // on a slow machine the pause is too long for the check
		}
		checks++
		if h.Done || !strings.Contains(strings.Join(h.Waiting, " "), "still change") {
			t.Fatalf("handover during traffic: got %+v, want it to wait for changes", h)
		}
	}
	if checks == 0 {
		t.Error("checks within 500 ms of a change: got 0 of 8, want at least 1")
	}
	poll.Eventually(t, "the handover is done", func() bool { h, err = n1.client.Handover(t.Context()); return err == nil && h.Done })
	if missing := lacks(m2, 10_080, 7); missing > 0 {
		t.Errorf("entries missing after the handover: got %d, want 0", missing)
	}
	if unchanged := time.Since(last); unchanged < time.Second {
		t.Errorf("time from the last change to the handover: got %s, want at least 1 s", unchanged)
	}
	stop()
	// A drained node continues to replicate in both directions. Changes only revoke the state
	// done. Changes in place, which no hook detects, are handed over, too.
	n1.write(m1, 0, 100, 8)
	poll.Eventually(t, "the handover is not done after a change", func() bool { h, _ = n1.client.Handover(t.Context()); return !h.Done })
	for i := range uint64(50) {
		key, value := pair(i+5000, 9)
		if err := m1.Update(key, value, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
	}
	poll.Eventually(t, "the drained node replicates", func() bool { return lacks(m2, 100, 8) == 0 })
	poll.Eventually(t, "the handover is done again", func() bool { h, _ = n1.client.Handover(t.Context()); return h.Done })
	value := make([]byte, 8)
	for i := range uint64(50) {
		key, _ := pair(i+5000, 0)
		if err := m2.Lookup(key, value); err != nil || value[0] != 9 {
			t.Fatalf("entry %d after a change in place: got value %v, want 9", i+5000, value)
		}
	}

	if h, err = n1.client.Undrain(t.Context()); err != nil || h.Drained || h.Done {
		t.Fatalf("undrain: got %+v, error %v, want not drained", h, err)
	}
	if code, _ := n1.readyz(); code != http.StatusOK || !n1.serving() {
		t.Error("node after undrain: got not ready, want ready")
	}
}

func TestDrainNeedsALivePeer(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := pinned(t, path1, 8, 8, 1000)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	poll.Eventually(t, "the node is ready alone", func() bool { return n1.status().Ready })
	n1.write(m1, 0, 100, 7)
	if _, err := n1.client.Drain(t.Context(), false); err == nil || !strings.HasSuffix(err.Error(), "no peer can take over, so that sessions would be lost (--force drains the node nevertheless): no peer is connected") {
		t.Fatalf("drain of the last node: got error %v, want it refused with the reason", err)
	}
	if !n1.status().Ready {
		t.Fatal("node after a refused drain: got not ready, want ready")
	}
	n2.start() // without a map, so that it cannot hold entries
	poll.Eventually(t, "a drain is refused because of the peer's map", func() bool {
		_, err := n1.client.Drain(t.Context(), false)
		return err != nil && strings.HasSuffix(err.Error(), ": n2 does not receive ct")
	})
	m2 := pinned(t, path2, 8, 8, 1000)
	n1.beginDrain()
	poll.Eventually(t, "the handover is done", func() bool {
		h, err := n1.client.Handover(t.Context())
		return err == nil && h.Done && h.Peers == 1 && len(h.NotHeld) == 0
	})
	if missing := lacks(m2, 100, 7); missing > 0 {
		t.Errorf("entries missing after the handover: got %d, want 0", missing)
	}
	// The peer leaves. The last node must not stay out of service.
	n2.stop()
	poll.Eventually(t, "the drain is cancelled", func() bool {
		h, err := n1.client.Handover(t.Context())
		return err == nil && !h.Drained && h.Cancelled == "all peers have left" && n1.status().Ready
	})
	if !n1.log.contains(`level=WARN msg="drain cancelled" reason="all peers have left"`) {
		t.Error("log: want \"drain cancelled\" with the reason")
	}
	// With force the drain succeeds, and its response shows this.
	if h, err := n1.client.Drain(t.Context(), true); err != nil || !h.Drained {
		t.Fatalf("drain with force: got %+v, error %v, want drained", h, err)
	}
	poll.Eventually(t, "the node is drained by force", func() bool {
		h, err := n1.client.Handover(t.Context())
		return err == nil && h.Drained && h.Done && h.Peers == 0
	})
	if n1.status().Ready {
		t.Error("node drained by force: got ready, want not ready")
	}
}

// The settings let no live peer receive one of two maps. A drain would lose its sessions.
func TestDrainNeedsAReceiverOfEachMap(t *testing.T) {
	dir := pinDir(t)
	var nodes []*node
	for i := 1; i <= 2; i++ {
		var refs []string
		for _, name := range []string{"ct", "nat"} {
			path := filepath.Join(dir, fmt.Sprint(name, i))
			pinned(t, path, 8, 8, 100)
			refs = append(refs, name+"="+path)
		}
		nodes = append(nodes, newNode(t, i, refs...))
	}
	n1, n2 := nodes[0], nodes[1]
	n1.start()
	n2.start()
	poll.Eventually(t, "the nodes are ready", func() bool { return n1.status().Ready && n2.status().Ready })
	n1.beginDrain()
	next := n1.config
	next.ReadFrom = []string{"nat=n3"}
	if _, err := n1.reload(next); err != nil {
		t.Fatalf("reload read-from: got error %v, want none", err)
	}
	poll.Eventually(t, "the handover waits for a receiver of one map", func() bool {
		h, err := n1.client.Handover(t.Context())
		reasons := strings.Join(h.Waiting, "; ")
		return err == nil && !h.Done && strings.Contains(reasons, "no live peer may receive nat") && !strings.Contains(reasons, "receive ct")
	})
	if _, err := n1.client.Undrain(t.Context()); err != nil {
		t.Fatalf("undrain: got error %v, want none", err)
	}
	if _, err := n1.client.Drain(t.Context(), false); err == nil || !strings.Contains(err.Error(), "no live peer may receive nat") ||
		strings.Contains(err.Error(), "receive ct") {
		t.Fatalf("drain: got error %v, want it refused because of nat alone", err)
	}
	poll.Eventually(t, "the node is ready again", func() bool { return n1.status().Ready })
	if h, err := n1.client.Drain(t.Context(), true); err != nil || !h.Drained {
		t.Fatalf("drain with force: got %+v, error %v, want drained", h, err)
	}
	poll.Eventually(t, "the forced handover is done", func() bool {
		h, err := n1.client.Handover(t.Context())
		return err == nil && h.Done
	})
}

// A peer with a full map does not hold all entries. The drain, the status and the metrics of the
// active node report the number of missing entries.
func TestDrainReportsUnheldEntries(t *testing.T) {
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, one, 8, 8, 1000), pinned(t, two, 8, 8, 300)
	n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	// 450 records enter the peer's table: all except the share that is reserved for the peer
	// itself.
	poll.Eventually(t, "the peer is full", func() bool { s := n2.status(); return s.Maps[0].Failed == 150 && s.Peers[0].Maps[0].Refused == 50 })
	poll.Eventually(t, "a drain is refused, because the peer holds too little", func() bool {
		_, err := n1.client.Drain(t.Context(), false)
		return err != nil && strings.HasSuffix(err.Error(), ": n2 holds 300 of 500 entries of ct (no room, refused there)")
	})
	if _, err := n1.client.Drain(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var h daemon.Handover
	poll.Eventually(t, "the handover is done", func() bool {
		var err error
		h, err = n1.client.Handover(t.Context())
		return err == nil && h.Done
	})
	if len(h.NotHeld) != 1 || h.NotHeld[0].Peer != "n2" || h.NotHeld[0].Map != "ct" || int(h.NotHeld[0].Entries) != lacks(m2, 500, 7) {
		t.Fatalf("entries not held: want %d of ct at n2, got %+v", lacks(m2, 500, 7), h.NotHeld)
	}
	const want = "200 entries of ct not held by n2: 150 do not go into its kernel map (450 records for 300 entries); 50 cannot be held there"
	if text := h.NotHeld[0].Text(); text != want {
		t.Errorf("text of the handover: got %q, want %q", text, want)
	}
	if r := n1.status().Peers[0].Maps[0].Report; r == nil || r.Failed != 150 || r.Refused != 50 || r.MaxEntries != 300 || r.Live != 450 || r.Displaced == 0 {
		t.Errorf("report in the status: got %+v, want 150 failed, 50 refused, 450 live of 300", r)
	}
	for labels, want := range map[string]string{
		`unheld_entries{cause="failed",map="ct",peer="n2"}`: "150", `unheld_entries{cause="refused",map="ct",peer="n2"}`: "50",
		`map_max_entries{map="ct",peer="n2"}`: "300", `map_live_entries{map="ct",peer="n2"}`: "450",
	} {
		if got := n1.sample("mapsync_peer_"+labels, ""); got != want {
			t.Errorf("mapsync_peer_%s: got %s, want %s", labels, got, want)
		}
	}
	if !n1.log.contains("200 entries of ct not held by n2") {
		t.Error("log: want the entries that the peer does not hold")
	}
	// Deletes make room in the peer's map.
	if _, err := n1.client.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(300) {
		key, _ := pair(i, 0)
		n1.applyEntries(m1, 1, func(int) (k, v []byte) { return key, nil })
	}
	poll.Eventually(t, "the peer holds all entries", func() bool {
		r := n1.status().Peers[0].Maps[0].Report
		return r.Failed == 0 && r.Refused == 0 && r.Live == 200
	})
}
