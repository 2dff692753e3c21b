package daemon_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
	"mapsync/syncd/replicate"

	"github.com/cilium/ebpf"
)

// manyRecords starts one peer for each number in entries, whose map is larger than room, and lets
// it write that many entries. It then starts a node whose map has room entries, and returns it.
func manyRecords(t *testing.T, room uint32, entries ...uint64) (n *node, m *ebpf.Map, peers []*node) {
	t.Helper()
	dir, from := pinDir(t), uint64(0)
	for i, count := range entries {
		path := filepath.Join(dir, fmt.Sprint("peer", i))
		peer, pm := newNode(t, i+1, "ct="+path), pinned(t, path, 8, 8, 20000)
		peers = append(peers, peer)
		peer.start()
		poll.Eventually(t, "the peer is ready", func() bool { return peer.status().Ready })
		peer.write(pm, from, from+count, 7)
		from += count
	}
	path := filepath.Join(dir, "new")
	n, m = newNode(t, len(entries)+1, "ct="+path), pinned(t, path, 8, 8, room)
	n.pin = path
	n.start()
	return n, m, peers
}

// A node becomes ready although a peer has more records than max-records-factor allows. The
// records above the limit are counted as an exception on both nodes. The node holds all records
// of other peers.
func TestRecordsAboveLimitDoNotBlockReadiness(t *testing.T) {
	for name, c := range map[string]struct {
		room    uint32
		entries []uint64
	}{
		"one peer with a larger map":     {100, []uint64{500}},
		"two peers, one above the limit": {1000, []uint64{200, 10000}},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, peers := manyRecords(t, c.room, c.entries...)
			stop := watchReady(t, peers...)
			poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
			stop()
			large := peers[len(peers)-1]
			poll.Eventually(t, "the exception is counted on both nodes", func() bool {
				refused, reported := 0, uint64(0)
				for _, p := range n.status().Peers {
					if p.Node == large.config.NodeName {
						refused = p.Maps[0].Refused
						if refused == 0 || !strings.Contains(p.Maps[0].Exceptions[0].Reason, "max-records-factor") {
							return false
						}
					}
				}
				for _, p := range large.status().Peers {
					if r := p.Maps[0].Report; p.Node == n.config.NodeName && r != nil {
						reported = r.Refused
					}
				}
				live := n.status().Maps[0].Live
				total := 0
				for _, count := range c.entries {
					total += int(count)
				}
				return refused == total-live && reported == uint64(refused)
			})
			if n.sample("mapsync_records_rejected_total", `{reason="limit"}`) == "0" || !n.log.contains("records rejected, table is at max-records-factor") {
				t.Error("rejected records: want them in the metric and in the log")
			}
			for _, p := range n.status().Peers {
				if m := p.Maps[0]; p.Node != large.config.NodeName && (!m.Agreed || m.Refused > 0) {
					t.Errorf("map of %s: got %+v, want it in sync", p.Node, m)
				}
			}
			if r := n.status(); !r.Ready || len(r.Unproven) > 0 || r.Peers[0].Maps[0].State != string(replicate.StateCaughtUp) {
				t.Errorf("status: got %+v, want ready with proof and caught up", r)
			}
		})
	}
}

// The load balancer starts again with a larger map of the same layout. The node then holds the records that
// the limit of the smaller map has rejected.
func TestLimitFollowsReplacedMap(t *testing.T) {
	const entries = 500
	n, _, _ := manyRecords(t, 100, entries)
	poll.Eventually(t, "records are rejected", func() bool { s := n.status(); return s.Ready && s.Peers[0].Maps[0].Refused > 0 })
	n.shows("records-over-limit", problem.Warning, "(max-records-factor)")
	m := pinned(t, n.pin, 8, 8, 2*entries)
	poll.Eventually(t, "the larger map holds all entries", func() bool { return lacks(m, entries, 7) == 0 })
	poll.Eventually(t, "the node is ready without exceptions", func() bool {
		s := n.status()
		return s.Ready && s.Peers[0].Maps[0].Refused == 0
	})
	n.ends("records-over-limit")
}
