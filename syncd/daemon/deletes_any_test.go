package daemon_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// TestDeletesAny: the control plane of each of three nodes deletes rules that another node owns. With deletes:
// any they are gone on all nodes, also after a restart. Without it they come back.
func TestDeletesAny(t *testing.T) {
	const rules = 60
	for _, deletes := range []string{"any", "owner"} {
		t.Run(deletes, func(t *testing.T) {
			dir := pinDir(t)
			var nodes [3]*node
			var maps [3]*ebpf.Map
			for i := range nodes {
				pin := filepath.Join(dir, fmt.Sprint(i))
				maps[i] = pinned(t, pin, 8, 8, 1000)
				nodes[i] = newNode(t, i+1, "rules="+pin)
				nodes[i].config.ScanInterval, nodes[i].config.Deletes = 200*time.Millisecond, []string{"rules=" + deletes}
				nodes[i].start()
			}
			poll.Eventually(t, "all nodes are ready", func() bool {
				for _, n := range nodes {
					if s := n.status(); !s.Ready || len(s.Peers) != 2 {
						return false
					}
				}
				return true
			})
			if s := nodes[0].status().Maps[0]; s.Deletes != deletes {
				t.Errorf("deletes in the status: got %q, want %q", s.Deletes, deletes)
			}
			nodes[0].write(maps[0], 0, rules, 1)
			held := func() (n int) {
				for _, m := range maps {
					n += rules - lacks(m, rules, 1)
				}
				return n
			}
			poll.Eventually(t, "all nodes have the rules", func() bool { return held() == 3*rules })
			for i, m := range maps {
				for rule := uint64(10 * i); rule < uint64(10*i+10); rule++ {
					if err := m.Delete(&rule); err != nil {
						t.Fatalf("delete rule %d on node %d: %v", rule, i+1, err)
					}
				}
			}
			// The first node owns the rules, so its deletes replicate in any case.
			want := map[string]int{"any": 3 * (rules - 30), "owner": 3 * (rules - 10)}[deletes]
			poll.Eventually(t, "the deletes count, or the rules are restored", func() bool { return held() == want })
			nodes[1].stop()
			nodes[1].start()
			poll.Eventually(t, "the restarted node is ready", func() bool { s := nodes[1].status(); return s.Ready && len(s.Peers) == 2 })
			poll.Stays(t, time.Second, "the rules are as before", func() bool { return held() == want })
		})
	}
}

// TestDeletesAnyRefusesLRUMaps: a scan cannot distinguish an eviction from a delete.
func TestDeletesAnyRefusesLRUMaps(t *testing.T) {
	pin := filepath.Join(pinDir(t), "rules")
	pinnedAs(t, pin, &ebpf.MapSpec{Name: "rules", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 100})
	n := newNode(t, 1, "rules="+pin)
	n.config.Join, n.config.Deletes = nil, []string{"rules=any"}
	n.start()
	poll.Eventually(t, "the map is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	if text := n.status().Maps[0].Error; !strings.Contains(text, "remove it from deletes") {
		t.Errorf("reason: got %q, want one with the remedy", text)
	}
	found := daemon.Check(t.Context(), &n.config)
	if !slices.ContainsFunc(found, func(f daemon.Finding) bool {
		return f.Severity == daemon.SeverityError && f.Setting == "deletes" && strings.Contains(f.Problem, "remove it from deletes")
	}) {
		t.Errorf("check: got findings %+v, want an error with the remedy", found)
	}
}
