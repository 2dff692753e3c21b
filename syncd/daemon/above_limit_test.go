package daemon_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/replicate"

	"github.com/cilium/ebpf"
)

// manyRecords starts a node whose peers' records are in maps of other sizes, and returns it once
// each peer has so many entries of its own.
func manyRecords(t *testing.T, room uint32, entries ...uint64) (n *node, m *ebpf.Map, peers []*node) {
	t.Helper()
	dir, from := pinDir(t), uint64(0)
	for i, count := range entries {
		path := filepath.Join(dir, fmt.Sprint("peer", i))
		peer, pm := newNode(t, i+1, "ct="+path), pinned(t, path, 8, 8, 20000)
		peers = append(peers, peer)
		peer.start()
		eventually(t, "the peer is ready", func() bool { return peer.status().Ready })
		peer.write(pm, from, from+count, 7)
		from += count
	}
	path := filepath.Join(dir, "new")
	n, m = newNode(t, len(entries)+1, "ct="+path), pinned(t, path, 8, 8, room)
	n.start()
	return n, m, peers
}

// A node that joins while a peer has more records than max-records-factor allows becomes ready.
// The records are a counted exception on both nodes, and other peers' records are all there.
func TestRecordsAboveTheLimitKeepNoNodeOutOfService(t *testing.T) {
	for name, c := range map[string]struct {
		room    uint32
		entries []uint64
	}{
		"one peer with a larger map":        {100, []uint64{500}},
		"a peer with far too many, another": {1000, []uint64{200, 10000}},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, peers := manyRecords(t, c.room, c.entries...)
			stop := watchReady(t, peers...)
			eventually(t, "ready", func() bool { return n.status().Ready })
			stop()
			large := peers[len(peers)-1]
			eventually(t, "the exception is counted on both nodes", func() bool {
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
			if n.sample("mapsync_records_rejected_total", `{reason="limit"}`) == "0" || !n.log.contains("records rejected: the table holds as many as it may") {
				t.Error("neither the metric nor the log has the rejected records")
			}
			for _, p := range n.status().Peers {
				if m := p.Maps[0]; p.Node != large.config.NodeName && (!m.Agreed || m.Refused > 0) {
					t.Errorf("%s is not in sync: %+v", p.Node, m)
				}
			}
			if r := n.status(); !r.Ready || len(r.Unproven) > 0 || r.Peers[0].Maps[0].State != string(replicate.StateCaughtUp) {
				t.Errorf("%+v", r)
			}
		})
	}
}
