package daemon_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var mostMaps = flag.Int("maps", 256, "number of maps in TestManyMaps, at most config.MaxMaps")

// TestManyMaps replicates many maps, none of them small, between two nodes. A node uses up to 10 descriptors for each map, and both nodes
// are in one process:
//
//	ulimit -n 30000 && go test ./syncd/daemon -run TestManyMaps -maps 1024
func TestManyMaps(t *testing.T) {
	count := *mostMaps
	dir := pinDir(t)
	var nodes [2]*node
	var maps [2][]*ebpf.Map
	for i := range nodes {
		var refs []string
		for j := range count {
			pin := filepath.Join(dir, fmt.Sprintf("%d-%d", i, j))
			maps[i] = append(maps[i], pinnedAs(t, pin, &ebpf.MapSpec{
				Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 8192, Flags: unix.BPF_F_NO_PREALLOC,
			}))
			refs = append(refs, fmt.Sprintf("m%d=%s", j, pin))
		}
		nodes[i] = newNode(t, i+1, refs...)
		nodes[i].config.ScanInterval, nodes[i].config.MaxScanInterval = time.Second, time.Second
		nodes[i].start()
	}
	poll.Within(t, 3*time.Minute, "both nodes are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != 1 {
				return false
			}
		}
		return true
	})
	for j, m := range maps[0] {
		key, value := pair(uint64(j), uint64(j))
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	poll.Within(t, 3*time.Minute, "each map of the peer has its entry", func() bool {
		for j, m := range maps[1] {
			key, value := pair(uint64(j), uint64(j))
			if got, err := m.LookupBytes(key); err != nil || string(got) != string(value) {
				return false
			}
		}
		return true
	})
}
