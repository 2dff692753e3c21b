package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// flowCounters is a setting metrics for the map of flows.
func flowCounters(top int) []config.EntryMetrics {
	return []config.EntryMetrics{{
		Map: "flows", Labels: map[string]string{"flow": "flow"}, Top: top,
		Counters: []config.EntryCounter{
			{Name: "flow_bytes_total", Field: "bytes", Unit: "bytes", Help: "Bytes by flow."},
			{Name: "flow_packets_total", Field: "packets", Help: "Packets by flow."},
		},
	}}
}

// newCountedNode returns a node that exports counters of its map of flows, without drain-sums.
func newCountedNode(t *testing.T, dir string, number, top int) *flowNode {
	t.Helper()
	n := newFlowNode(t, dir, number, capture.AttachNone)
	n.config.DrainSumsMaps, n.config.Fields = nil, []string{"flows:packets=volatile", "flows:bytes=volatile"}
	n.config.Metrics = flowCounters(top)
	if err := n.config.Validate(); err != nil {
		t.Fatal(err)
	}
	return n
}

// awaitScan waits for the first scan. An entry that no hook has reported before its end may be older than syncd, so its first
// value does not count.
func (n *flowNode) awaitScan() {
	n.t.Helper()
	poll.Eventually(n.t, "the first scan", func() bool {
		s := n.status()
		return s.Ready && s.Maps[0].Scan != nil && s.Maps[0].Scan.Scans > 0
	})
}

var flowSeries = regexp.MustCompile(`(?m)^flow_(bytes|packets)_total\{flow="(\w+)"\} (\S+)$`)

// counters returns the exported counters, by "bytes FLOW" and "packets FLOW", without those that are 0.
func (n *flowNode) counters() map[string]uint64 {
	n.t.Helper()
	all := map[string]uint64{}
	for _, m := range flowSeries.FindAllStringSubmatch(n.metrics(), -1) {
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			n.t.Fatal(err)
		}
		if v != 0 {
			all[m[1]+" "+m[2]] = uint64(v)
		}
	}
	return all
}

func (n *flowNode) awaitCounters(what, want string) {
	n.t.Helper()
	poll.Eventually(n.t, what, func() bool { return fmt.Sprint(n.counters()) == "map["+want+"]" },
		func() any { return fmt.Sprintf("got %v, want %s", n.counters(), want) })
}

// TestEntryCounters counts what happens on each of two nodes, also after a restart of syncd, and after an entry was
// deleted.
func TestEntryCounters(t *testing.T) {
	dir := pinDir(t)
	a, b := newCountedNode(t, dir, 1, 10), newCountedNode(t, dir, 2, 10)
	startPair(t, a.node, b.node)
	a.awaitScan()
	b.awaitScan()
	a.count(1, 100)
	a.count(2, 50)
	a.awaitCounters("new entries", "bytes 1:100 bytes 2:50 packets 1:1 packets 2:1")
	a.count(1, 10)
	a.awaitCounters("changes", "bytes 1:110 bytes 2:50 packets 1:2 packets 2:1")
	poll.Eventually(t, "the peer has the entries", func() bool { return b.sumOf(1) == 110 && b.sumOf(2) == 50 })
	b.awaitCounters("a peer's entries", "")
	b.count(1, 5)
	b.awaitCounters("changes of a peer's entry", "bytes 1:5 packets 1:1")

	a.stop()
	poll.Eventually(t, "the record changed on the peer", func() bool { return b.sumOf(1) == 115 })
	a.count(2, 1000)
	a.start()
	poll.Eventually(t, "the node is ready", func() bool { return a.status().Ready })
	a.awaitCounters("counters of the former syncd", "bytes 1:110 bytes 2:50 packets 1:2 packets 2:1")
	a.count(2, 3)
	a.awaitCounters("changes after a restart", "bytes 1:110 bytes 2:53 packets 1:2 packets 2:2")

	a.delete(2)
	poll.Eventually(t, "the peer has deleted the entry", func() bool { return b.sumOf(2) == 0 })
	a.count(2, 7)
	a.awaitCounters("an entry that was deleted", "bytes 1:110 bytes 2:60 packets 1:2 packets 2:3")
}

// TestEntryCountersAreFew exports some flows, and the sum of the others.
func TestEntryCountersAreFew(t *testing.T) {
	const flows = 200
	n := newCountedNode(t, pinDir(t), 1, 3)
	n.start()
	n.awaitScan()
	var bytes uint64
	for round := range uint64(3) {
		for flow := range uint64(flows) {
			add := 1 + flow%5
			if flow >= flows-3 {
				add = 100_000
			}
			n.count(flow, add)
			bytes += add
		}
		poll.Eventually(t, "all bytes are counted", func() bool { return n.totalBytes() == bytes },
			func() any { return fmt.Sprintf("got %v, want %d bytes in round %d", n.counters(), bytes, round) })
	}
	got := n.counters()
	// The bytes and packets of three flows and of the others.
	if len(got) > 8 || got["bytes other"] == 0 {
		t.Errorf("counters: got %v, want those of 3 flows, and the rest in other", got)
	}
}

// totalBytes returns the sum of the exported bytes.
func (n *flowNode) totalBytes() (sum uint64) {
	for name, v := range n.counters() {
		if strings.HasPrefix(name, "bytes ") {
			sum += v
		}
	}
	return sum
}

// TestEntryCountersOfDrainedMaps: a sum falls when an entry is deleted before it was drained, and has no reset then.
func TestEntryCountersOfDrainedMaps(t *testing.T) {
	n := newFlowNode(t, pinDir(t), 1, drainAttach()[0])
	n.config.Metrics = flowCounters(3)
	n.start()
	n.awaitScan()
	n.count(1, 100)
	n.awaitCounters("a new entry", "bytes 1:100 packets 1:1")
	n.drain()
	n.count(1, 1_000_000)
	n.awaitCounters("a drained entry", "bytes 1:1000100 packets 1:2")
	n.delete(1)
	poll.Eventually(t, "the sum fell below half", func() bool { return n.sums()["n1/1"] == "1/100" })
	n.count(1, 7)
	n.awaitCounters("an entry after its delete", "bytes 1:1000107 packets 1:3")
}

// TestStopWithRefusedLayout: the load balancer's new map has types that do not fit the table.
func TestStopWithRefusedLayout(t *testing.T) {
	path := filepath.Join(pinDir(t), "one")
	m := typed(t, path, keyV1, valueV1, 2000)
	n := newNode(t, 1, "ct="+path)
	n.config.Metrics = []config.EntryMetrics{{
		Map: "ct", Counters: []config.EntryCounter{{Name: "ct_bytes_total", Field: "bytes", Help: "Bytes."}},
	}}
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.writeSessions(m, keyV1, valueV1, 0, 10, 3)
	poll.Eventually(t, "the entries count", func() bool { return !strings.Contains(n.metrics(), "ct_bytes_total 0\n") })
	typed(t, path, keyV3, valueV2, 2000)
	poll.Eventually(t, "the new map is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	n.stop()
}

// TestUnusableEntryMetrics: the map lacks a field. Everything else continues.
func TestUnusableEntryMetrics(t *testing.T) {
	n := newCountedNode(t, pinDir(t), 1, 3)
	n.config.Metrics[0].Counters[0].Field = "octets"
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	if want := `mapsync_entry_metrics_usable{counter="flow_bytes_total",map="flows"} 0`; !strings.Contains(n.metrics(), want) {
		t.Errorf("metrics: got none %s, want it", want)
	}
	n.shows("metrics-unusable", problem.Warning, "counter flow_bytes_total", `unknown field "octets"`, "value.bytes")
	if !slices.ContainsFunc(daemon.Check(t.Context(), &n.config), func(f daemon.Finding) bool {
		return f.Setting == "metrics" && f.Severity == daemon.SeverityWarning && strings.Contains(f.Problem, `unknown field "octets"`)
	}) {
		t.Error("check: got no warning about the unknown field, want one")
	}
	if !n.log.contains(`unknown field \"octets\"; fields of this map: key.flow, value.packets, value.bytes`) {
		t.Error("log: got no line with the fields of the map, want one")
	}
	n.stop()
	n.config.Metrics[0].Counters[0].Field = "bytes"
	n.start()
	n.ends("metrics-unusable")
}

// TestEntryCountersWithoutState: the file of the counters cannot be read or written. They continue in memory.
func TestEntryCountersWithoutState(t *testing.T) {
	n := newCountedNode(t, pinDir(t), 1, 3)
	file := filepath.Join(n.config.StateDir, "n1.counters.json")
	if err := os.WriteFile(file, []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.count(1, 3)
	n.awaitCounters("counters with a file of another version", "bytes 1:3 packets 1:1")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(file, 0o700); err != nil {
		t.Fatal(err)
	}
	n.count(1, 3)
	n.awaitCounters("counters with a file that cannot be written", "bytes 1:6 packets 1:2")
	if !n.log.contains("failed to save the counters of entries") {
		t.Error("log: got no failed save, want one")
	}
}
