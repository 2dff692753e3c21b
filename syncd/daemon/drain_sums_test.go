package daemon_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"
	"mapsync/syncd/drained"

	"github.com/cilium/ebpf"
)

// flowNode is a node with a map of flows, which a collector in another process drains.
type flowNode struct {
	*node
	flows     *ebpf.Map
	collector controlPlane
}

// newFlowNode returns a node whose sums are attached by the method that this kernel has. Its hooks report no events.
func newFlowNode(t *testing.T, dir string, number int, attach capture.Attach) *flowNode {
	t.Helper()
	pin := filepath.Join(dir, fmt.Sprint("flows", number))
	m := pinnedAs(t, pin, &ebpf.MapSpec{
		Name: "flows", Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1000,
		Key: layout{{"flow", 8}}.build("flow_key"), Value: layout{{"packets", 8}, {"bytes", 8}}.build("flow_counters"),
	})
	n := newNode(t, number, "flows="+pin)
	n.attach, n.config.Attach = attach, string(attach)
	n.config.ScanInterval, n.config.MaxScanInterval = 100*time.Millisecond, 100*time.Millisecond
	n.config.PinDir = filepath.Join(dir, fmt.Sprint("mapsync", number))
	n.config.DrainSumsMaps, n.config.Fields = []string{"flows"}, []string{"flows:packets=sum", "flows:bytes=sum"}
	return &flowNode{n, m, startControlPlane(t, pin)}
}

// count adds one packet to a flow, in place like a BPF program.
func (n *flowNode) count(flow, bytes uint64) {
	n.t.Helper()
	key, value := make([]byte, 8), make([]byte, 16)
	binary.NativeEndian.PutUint64(key, flow)
	if old, err := n.flows.LookupBytes(key); err == nil && old != nil {
		copy(value, old)
	}
	binary.NativeEndian.PutUint64(value, binary.NativeEndian.Uint64(value)+1)
	binary.NativeEndian.PutUint64(value[8:], binary.NativeEndian.Uint64(value[8:])+bytes)
	if err := n.flows.Put(key, value); err != nil {
		n.t.Fatal(err)
	}
}

// sumOf returns the bytes of a flow in the map, 0 without an entry.
func (n *flowNode) sumOf(flow uint64) uint64 {
	value, err := n.flows.LookupBytes(binary.NativeEndian.AppendUint64(nil, flow))
	if err != nil || value == nil {
		return 0
	}
	return binary.NativeEndian.Uint64(value[8:])
}

func (n *flowNode) delete(flow uint64) {
	n.t.Helper()
	if err := n.flows.Delete(binary.NativeEndian.AppendUint64(nil, flow)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *flowNode) drain() { n.collector.do("batch-drain", 0, 100, 0) }

// sums returns the sums that the node has: by "NODE/FLOW", of all origins, "PACKETS/BYTES".
func (n *flowNode) sums() map[string]string {
	n.t.Helper()
	type counters struct{ packets, bytes uint64 }
	all := map[string]counters{}
	err := n.client.Entries(n.t.Context(), "flows", daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		if err != nil {
			return err
		}
		if len(key) != 8+drained.OriginSize {
			n.t.Errorf("key of a sum: got %x, want 16 bytes", key)
		}
		owner, _, _ := strings.Cut(e.Owner, "/")
		name := fmt.Sprintf("%s/%d", owner, binary.NativeEndian.Uint64(key))
		c := all[name]
		c.packets += binary.NativeEndian.Uint64(value)
		c.bytes += binary.NativeEndian.Uint64(value[8:])
		all[name] = c
		return nil
	})
	if err != nil {
		return map[string]string{"error": err.Error()} // the map has not appeared yet
	}
	text := map[string]string{}
	for name, c := range all {
		text[name] = fmt.Sprintf("%d/%d", c.packets, c.bytes)
	}
	return text
}

// awaitSums waits until each node has these sums.
func awaitSums(t *testing.T, what string, want map[string]string, nodes ...*flowNode) {
	t.Helper()
	differs := func(n *flowNode) bool { return !maps.Equal(n.sums(), want) }
	poll.Eventually(t, what, func() bool { return !slices.ContainsFunc(nodes, differs) }, func() any {
		text := fmt.Sprintf("want %v", want)
		for _, n := range nodes {
			text += fmt.Sprintf("; got of %s %v", n.config.NodeName, n.sums())
		}
		return text
	})
}

// drainAttach returns the attach methods that this kernel has, an exact one first. A preemptible kernel may skip kprobes.
func drainAttach() []capture.Attach {
	switch kernel := kernelName(); {
	case kernel == "":
		return []capture.Attach{capture.AttachSyscall}
	case kernel == "testing" || strings.Contains(kernel, "preempt"):
		return []capture.Attach{capture.AttachFexit}
	}
	return []capture.Attach{capture.AttachFexit, capture.AttachKprobe}
}

// TestDrainedEntriesAreSums drains the maps of two nodes, while syncd runs, while it is away, and after a failover. All
// nodes have the sums of what was drained and what is in the maps, by node. No drained entry is a delete.
func TestDrainedEntriesAreSums(t *testing.T) {
	for _, attach := range drainAttach() {
		t.Run(string(attach), func(t *testing.T) { testDrainedEntriesAreSums(t, attach) })
	}
}

func testDrainedEntriesAreSums(t *testing.T, attach capture.Attach) {
	dir := pinDir(t)
	a, b := newFlowNode(t, dir, 1, attach), newFlowNode(t, dir, 2, attach)
	a.count(1, 100)
	startPair(t, a.node, b.node)
	awaitSums(t, "the first content", map[string]string{"n1/1": "1/100"}, a, b)
	a.drain()
	a.count(1, 10)
	a.count(2, 5)
	b.count(1, 7)
	awaitSums(t, "drained entries stay", map[string]string{"n1/1": "2/110", "n1/2": "1/5", "n2/1": "1/7"}, a, b)
	a.drain()
	b.drain()
	a.count(2, 1000)
	awaitSums(t, "two nodes drain", map[string]string{"n1/1": "2/110", "n1/2": "2/1005", "n2/1": "1/7"}, a, b)
	for _, n := range []*flowNode{a, b} {
		if s := n.status().Maps[0]; s.Tombstones != 0 || s.DrainSums == nil || s.DrainSums.Unread+s.DrainSums.Full+s.DrainSums.MissedCalls != 0 {
			t.Errorf("status of %s: got %d tombstones, %+v, want no tombstones and nothing missing", n.config.NodeName, s.Tombstones, s.DrainSums)
		}
	}

	want := map[string]string{"n1/1": "4/113", "n1/2": "2/1005", "n1/3": "1/3", "n2/1": "1/7"}
	drain := a.drain
	if attach == capture.AttachKprobe && kernelName() == "5.10" { // kernels before 5.15 cannot pin the hook
		drain = func() {}
	}
	a.stop()
	a.count(1, 1)
	drain()
	a.count(1, 2)
	drain()
	a.count(3, 3)
	a.start()
	awaitSums(t, "what was drained without syncd", want, a, b)

	// The host of the first node fails: a new node receives its sums from the second one.
	a.stop()
	c := newFlowNode(t, dir, 3, attach)
	c.start()
	poll.Eventually(t, "the new node is ready", func() bool { return c.status().Ready })
	c.count(1, 9)
	c.drain()
	want["n3/1"] = "1/9"
	awaitSums(t, "a failover", want, b, c)

	// It returns after a reboot, which ends its sums, and counts anew.
	if err := os.RemoveAll(a.config.StateDir); err != nil {
		t.Fatal(err)
	}
	if err := drained.Remove(a.config.DrainSumsFolder("flows")); err != nil {
		t.Fatal(err)
	}
	a.drain()
	a.start()
	poll.Eventually(t, "the new sums have begun", func() bool { return a.status().Maps[0].State == daemon.MapReplicating })
	a.count(1, 1)
	a.drain()
	want["n1/1"] = "5/114"
	awaitSums(t, "a reboot", want, a, b, c)
}

// TestSumsThatDoNotChangeEnd keeps the sum of a flow in the map, and ends those of others.
func TestSumsThatDoNotChangeEnd(t *testing.T) {
	attach := drainAttach()[0]
	dir := pinDir(t)
	a, b := newFlowNode(t, dir, 1, attach), newFlowNode(t, dir, 2, attach)
	a.config.DrainSumsTTL, b.config.DrainSumsTTL = 5*time.Second, 5*time.Second
	startPair(t, a.node, b.node)
	a.count(1, 1)
	a.count(2, 2)
	a.drain()
	a.count(2, 20)
	awaitSums(t, "the sums", map[string]string{"n1/1": "1/1", "n1/2": "2/22"}, a, b)
	awaitSums(t, "the end of a sum", map[string]string{"n1/2": "2/22"}, a, b)
	a.drain()
	awaitSums(t, "the end of all sums", map[string]string{}, a, b)
	a.count(1, 5)
	awaitSums(t, "a flow returns", map[string]string{"n1/1": "1/5"}, a, b)
}

// TestSumsOutliveTheirRecords: while a node is away for longer than drain-sums-ttl, its peers end its records. Its sums
// stay, and it resends them.
func TestSumsOutliveTheirRecords(t *testing.T) {
	attach := drainAttach()[0]
	dir := pinDir(t)
	a, b := newFlowNode(t, dir, 1, attach), newFlowNode(t, dir, 2, attach)
	b.config.DrainSumsTTL = time.Second
	a.config.DeadTime, b.config.DeadTime = 400*time.Millisecond, 400*time.Millisecond
	startPair(t, a.node, b.node)
	a.count(1, 1)
	a.count(2, 2)
	a.drain()
	a.count(2, 20)
	awaitSums(t, "the sums", map[string]string{"n1/1": "1/1", "n1/2": "2/22"}, a, b)
	a.stop()
	a.count(1, 100)
	a.drain()
	a.count(2, 200)
	awaitSums(t, "the end of the records", map[string]string{}, b)
	a.start()
	poll.Eventually(t, "the node is ready", func() bool { return a.status().Ready })
	awaitSums(t, "the sums after their return", map[string]string{"n1/1": "2/101", "n1/2": "3/222"}, a)
	awaitSums(t, "the sums at the peer", map[string]string{"n1/1": "2/101", "n1/2": "3/222"}, a, b)
}

// TestPeersLeaveRoomForSums: sums of peers do not take the room of a node's own.
func TestPeersLeaveRoomForSums(t *testing.T) {
	attach := drainAttach()[0]
	dir := pinDir(t)
	a, b := newFlowNode(t, dir, 1, attach), newFlowNode(t, dir, 2, attach)
	a.config.DrainSumsMaxEntries = 10
	for i := range uint64(100) {
		b.count(i, 1)
	}
	startPair(t, a.node, b.node)
	poll.Eventually(t, "the peer has its sums, and the node as many as it accepts", func() bool {
		return len(b.sums()) == 100 && len(a.sums()) >= 10
	})
	want := b.sums()
	for i := range uint64(10) {
		a.count(1000+i, 1)
		want[fmt.Sprintf("n1/%d", 1000+i)] = "1/1"
	}
	a.drain()
	awaitSums(t, "the sums of both", want, b)
	if s := a.status().Maps[0].DrainSums; s.Full != 0 || s.Entries != 10 {
		t.Errorf("sums: got %+v, want 10 entries and all with room", s)
	}
}

// TestDrainSumsNeedCounters: a map without a field of the role sum is refused, and the remedy is stated.
func TestDrainSumsNeedCounters(t *testing.T) {
	n := newFlowNode(t, pinDir(t), 1, drainAttach()[0])
	n.config.Fields, n.config.Join = nil, nil
	n.start()
	poll.Eventually(t, "the map is refused", func() bool {
		m := n.status().Maps[0]
		return m.State == daemon.MapRefused && strings.Contains(m.Error, "role sum")
	})
}

// TestUnusedSumsAreRemoved starts a node whose map is not in drain-sums any more.
func TestUnusedSumsAreRemoved(t *testing.T) {
	n := newFlowNode(t, pinDir(t), 1, drainAttach()[0])
	n.config.Join = nil
	folder := n.config.DrainSumsFolder("flows")
	n.start()
	poll.Eventually(t, "the map is replicated", func() bool { return n.status().Maps[0].State == daemon.MapReplicating })
	n.stop()
	if _, err := os.Stat(filepath.Join(folder, "state")); err != nil {
		t.Fatalf("pin after the end of syncd: got %v, want it", err)
	}
	n.config.DrainSumsMaps, n.config.Fields = nil, nil
	n.start()
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("pins of a map that is not in drain-sums: got %v, want none", err)
	}
}
