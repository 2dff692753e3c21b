package daemon_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
)

// pairOf starts two ready nodes with maps of the given specifications. Each node expects the other one.
func pairOf(t *testing.T, spec1, spec2 ebpf.MapSpec) (n1, n2 *node, m1, m2 *ebpf.Map) {
	t.Helper()
	n1, n2, _, _ = twoNodes(t, 1)
	m1, m2 = pinnedAs(t, n1.pin, &spec1), pinnedAs(t, n2.pin, &spec2)
	for _, n := range []*node{n1, n2} {
		n.config.ExpectedPeers = config.PeerList{"n1", "n2"}
	}
	startPair(t, n1, n2)
	return n1, n2, m1, m2
}

func mapSpec(typ ebpf.MapType, entries uint32) ebpf.MapSpec {
	return ebpf.MapSpec{Name: "ct", Type: typ, KeySize: 8, ValueSize: 8, MaxEntries: entries}
}

// present returns the number of the entries from first to end, without end, in a map.
func present(m *ebpf.Map, first, end uint64) (n uint64) {
	value := make([]byte, m.ValueSize())
	for i := first; i < end; i++ {
		if key, _ := pair(i, 0); m.Lookup(key, value) == nil {
			n++
		}
	}
	return n
}

// notRedundant waits until the only peer of n cannot take over, for the given reason, and checks that a drain is refused.
func (n *node) notRedundant(reason func() string) {
	n.t.Helper()
	var got daemon.Redundancy
	poll.Eventually(n.t, "the peer cannot take over: "+reason(), func() bool {
		got = n.status().Redundancy
		return got.Live == 0 && got.Problem == reason()
	})
	if live := n.sample("mapsync_redundancy_live", ""); live != "0" {
		n.t.Errorf("mapsync_redundancy_live: got %s, want 0", live)
	}
	if _, err := n.client.Drain(n.t.Context(), false); err == nil || !strings.Contains(err.Error(), reason()) {
		n.t.Errorf("drain: got error %v, want it refused: %s", err, reason())
	}
	if h, err := n.client.Handover(n.t.Context()); err != nil || h.Drained {
		n.t.Errorf("after a refused drain: got %+v and error %v, want the node in service", h, err)
	}
}

func (n *node) redundant() {
	n.t.Helper()
	poll.Eventually(n.t, "the peer can take over", func() bool {
		r := n.status().Redundancy
		return r.Live == 1 && r.Problem == "" && len(r.Maps) == 1 && r.Maps[0].Live == 1
	})
}

// TestPeerWithoutItsMapIsNotRedundant: the load balancer of the standby stops, and its map is gone.
func TestPeerWithoutItsMapIsNotRedundant(t *testing.T) {
	n1, n2, m1, _ := pairOf(t, mapSpec(ebpf.Hash, 1000), mapSpec(ebpf.Hash, 1000))
	n1.write(m1, 0, 100, 7)
	n1.redundant()
	if err := os.Remove(n2.pin); err != nil {
		t.Fatal(err)
	}
	n1.notRedundant(func() string { return "n2 has no map ct" })
	pinned(t, n2.pin, 8, 8, 1000)
	n1.redundant()
}

// TestDrainedPeerIsNotRedundant: of two nodes, only one can be drained, also if both are drained at the same time.
func TestDrainedPeerIsNotRedundant(t *testing.T) {
	n1, n2, m1, _ := pairOf(t, mapSpec(ebpf.Hash, 1000), mapSpec(ebpf.Hash, 1000))
	n1.write(m1, 0, 100, 7)
	n1.redundant()
	n2.drain()
	n1.notRedundant(func() string { return "n2 is drained" })
	if r := n1.status().Redundancy; !r.Announced || !r.Maps[0].Peers[0].Drained || r.Maps[0].Peers[0].Held != 100 {
		t.Errorf("redundancy: got %+v, want a drained peer with all entries", r)
	}
	if _, err := n2.client.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	n1.redundant()
	n2.redundant()
	both := make(chan error, 2)
	for _, n := range []*node{n1, n2} {
		go func() { _, err := n.client.Drain(t.Context(), false); both <- err }()
	}
	for range 2 {
		<-both // a drain is refused, or it is cancelled
	}
	poll.Eventually(t, "at least one of the nodes is in service", func() bool { return n1.status().Ready || n2.status().Ready })
}

// TestPeerThatIsNotReadyIsNotRedundant: a third node keeps the peer from being ready.
func TestPeerThatIsNotReadyIsNotRedundant(t *testing.T) {
	n1, n2, _, _ := pairOf(t, mapSpec(ebpf.Hash, 1000), mapSpec(ebpf.Hash, 1000))
	n1.redundant()
	n2.stop()
	n2.config.Maps = append(n2.config.Maps, "more="+n2.pin+".more")
	n2.start()
	n1.notRedundant(func() string { return "n2 is not ready" })
}

// TestFullPeerIsNotRedundant: the map of the standby holds a part of the entries. The report does not grow stale when entries
// end.
func TestFullPeerIsNotRedundant(t *testing.T) {
	n1, n2, m1, m2 := pairOf(t, mapSpec(ebpf.Hash, 1024), mapSpec(ebpf.Hash, 100))
	n1.redundant()
	n1.write(m1, 0, 150, 7)
	n1.notRedundant(func() string { return "n2 holds 100 of 150 entries of ct (no room)" })
	if n := present(m2, 0, 150); n != 100 {
		t.Errorf("entries in the map of the peer: got %d, want 100", n)
	}
	n1.applyEntries(m1, 51, func(i int) (key, value []byte) { key, _ = pair(uint64(i), 0); return key, nil })
	n1.redundant()
	h := n1.status().Redundancy.Maps[0].Peers[0]
	if h.Entries != 99 || h.Held != 99 || h.Share != 1 {
		t.Errorf("the peer holds: got %+v, want 99 of 99 entries", h)
	}
	_ = n2
}

// TestRedundancyShare: a peer that lacks few enough entries counts.
func TestRedundancyShare(t *testing.T) {
	n1, n2, m1, _ := pairOf(t, mapSpec(ebpf.Hash, 1000), mapSpec(ebpf.Hash, 100))
	for _, n := range []*node{n1, n2} {
		n.stop()
		n.config.RedundancyShare = 75
	}
	startPair(t, n1, n2)
	n1.write(m1, 0, 125, 7)
	poll.Eventually(t, "the peer holds 80 %", func() bool {
		r := n1.status().Redundancy
		return r.Live == 1 && r.Maps[0].Peers[0].Held == 100 && r.Maps[0].Peers[0].Share == 0.8
	})
	n1.drain()
	if h, err := n1.client.Handover(t.Context()); err != nil || len(h.NotHeld) != 1 || h.NotHeld[0].Entries != 25 {
		t.Errorf("drain: got %+v and error %v, want it complete with 25 entries that are not held", h, err)
	}
}

// TestSmallLRUStandby: the LRU map of the standby holds a part of the entries, and the report has their number.
func TestSmallLRUStandby(t *testing.T) {
	n1, n2, m1, m2 := pairOf(t, mapSpec(ebpf.LRUHash, 4096), mapSpec(ebpf.LRUHash, 512))
	n1.redundant()
	n1.write(m1, 0, 800, 7)
	n1.notRedundant(func() string {
		return fmt.Sprintf("n2 holds %d of 800 entries of ct (no room)", present(m2, 0, 800))
	})
	if n := present(m2, 0, 800); n < 256 || n > 512 {
		t.Errorf("entries in the map of the peer: got %d, want at least half of 512", n)
	}
	n2.shows("map-too-small", problem.Warning, "of peers have no room in the LRU map")
	if !n2.status().Ready {
		t.Error("standby with a full LRU map: got not ready, want ready")
	}
	if got, want := n1.sample("mapsync_peer_unheld_entries", `{cause="failed",map="ct",peer="n2"}`), fmt.Sprint(800-present(m2, 0, 800)); got != want {
		t.Errorf("mapsync_peer_unheld_entries: got %s, want %s", got, want)
	}
	poll.Eventually(t, "diff has the number", func() bool {
		list := n1.diff()
		return list[len(list)-1].Summary.NotHeld == int(800-present(m2, 0, 800))
	})
	larger := mapSpec(ebpf.LRUHash, 4096)
	pinnedAs(t, n2.pin, &larger)
	n2.ends("map-too-small")
}

// TestEvictedEntriesAreNotHeld: the load balancer of the standby fills its LRU map faster than syncd makes room. The kernel
// evicts entries of the peer, which count as not held.
func TestEvictedEntriesAreNotHeld(t *testing.T) {
	n1, n2, m1, m2 := pairOf(t, mapSpec(ebpf.LRUHash, 4096), mapSpec(ebpf.LRUHash, 4096))
	n1.redundant()
	n1.write(m1, 0, 1000, 7)
	poll.Eventually(t, "the peer holds all entries", func() bool { return present(m2, 0, 1000) == 1000 })
	n2.write(m2, 10_000, 10_000+4096, 8)
	n1.notRedundant(func() string {
		r := n1.status().Peers[0].Maps[0].Report
		causes := []string{}
		if r.Failed > 0 {
			causes = append(causes, "no room")
		}
		if r.Evicted > 0 {
			causes = append(causes, "LRU evictions")
		}
		return fmt.Sprintf("n2 holds %d of 1000 entries of ct (%s)", present(m2, 0, 1000), strings.Join(causes, ", "))
	})
}

// TestPairOfFullLRUMaps: both nodes have more entries than fit into one of the equal LRU maps. No entry of a node is evicted
// from its own map because of the other one, and each node reports what the other one holds.
func TestPairOfFullLRUMaps(t *testing.T) {
	const own, first = 700, 10_000
	n1, n2, m1, m2 := pairOf(t, mapSpec(ebpf.LRUHash, 1024), mapSpec(ebpf.LRUHash, 1024))
	n1.write(m1, 0, own, 7)
	n2.write(m2, first, first+own, 8)
	n1.notRedundant(func() string {
		return fmt.Sprintf("n2 holds %d of 700 entries of ct (no room)", present(m2, 0, own))
	})
	n2.notRedundant(func() string {
		return fmt.Sprintf("n1 holds %d of 700 entries of ct (no room)", present(m1, first, first+own))
	})
	if a, b := present(m1, 0, own), present(m2, first, first+own); a != own || b != own {
		t.Errorf("own entries: got %d and %d, want all %d of each node", a, b, own)
	}
}
