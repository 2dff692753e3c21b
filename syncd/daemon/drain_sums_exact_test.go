package daemon_test

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// TestSumsEqualDrainedPlusPresent lets a program write a map, also in place, while a collector drains it. In the end, the
// peer's sum of each flow is what the collector has received and what the map has.
func TestSumsEqualDrainedPlusPresent(t *testing.T) {
	for _, attach := range drainAttach() {
		t.Run(string(attach), func(t *testing.T) { testSumsEqualDrainedPlusPresent(t, attach) })
	}
}

func testSumsEqualDrainedPlusPresent(t *testing.T, attach capture.Attach) {
	dir := pinDir(t)
	a, b := newFlowNode(t, dir, 1, attach), newFlowNode(t, dir, 2, attach)
	startPair(t, a.node, b.node)
	c := &countingCollector{flows: a.flows}
	program := flowProgram(t, a.flows)
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
		var running sync.WaitGroup
		running.Go(func() {
			if _, err := program.Run(); err != nil {
				t.Error(err)
			}
		})
		c.drain()
		running.Wait()
	}
	drained := c.entries
	var key, value []byte
	for entries := a.flows.Iterate(); entries.Next(&key, &value); {
		c.receive(key, value)
	}
	s := a.status().Maps[0].DrainSums
	if attach == capture.AttachKprobe && s.Entries < drained {
		t.Logf("the kernel skipped kprobes: %d of %d drained entries are in the sums", s.Entries, drained)
		return
	}
	if s.Entries != drained || s.MissedCalls != 0 {
		t.Errorf("sums: got %+v, want %d entries and no missed calls", s, drained)
	}
	awaitSums(t, "the sums", c.sums(), a, b)
}

// countedFlows is the number of flows that flowProgram writes.
const countedFlows = 100

// flowProgram returns a program that updates each flow once and changes it twice in place.
func flowProgram(t *testing.T, flows *ebpf.Map) *dataplane.Program {
	t.Helper()
	program, err := dataplane.Open(flows, dataplane.Options{Capacity: 3 * countedFlows, RunWrites: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	for i := range 3 * countedFlows {
		op := dataplane.InPlace
		if i%3 == 0 {
			op = dataplane.Update
		}
		key := binary.NativeEndian.AppendUint64(nil, uint64(i/3))
		value := binary.NativeEndian.AppendUint64(nil, uint64(i))
		program.Add(op, 0, key, binary.NativeEndian.AppendUint64(value, uint64(7*i)))
	}
	return program
}

// countingCollector drains a map of flows, and adds up what it receives.
type countingCollector struct {
	flows          *ebpf.Map
	entries        uint64 // received
	packets, bytes [countedFlows]uint64
}

func (c *countingCollector) receive(key, value []byte) {
	flow := binary.NativeEndian.Uint64(key)
	c.entries++
	c.packets[flow] += binary.NativeEndian.Uint64(value)
	c.bytes[flow] += binary.NativeEndian.Uint64(value[8:])
}

// drain receives all entries of the map.
func (c *countingCollector) drain() {
	keys, values := make([][8]byte, 64), make([][16]byte, 64)
	for cursor, err := (ebpf.MapBatchCursor{}), error(nil); err == nil; {
		var n int
		n, err = c.flows.BatchLookupAndDelete(&cursor, keys, values, nil)
		for i := range n {
			c.receive(keys[i][:], values[i][:])
		}
	}
}

// sums returns what was received, in the form of flowNode.sums.
func (c *countingCollector) sums() map[string]string {
	sums := map[string]string{}
	for i := range c.packets {
		sums[fmt.Sprintf("n1/%d", i)] = fmt.Sprintf("%d/%d", c.packets[i], c.bytes[i])
	}
	return sums
}
