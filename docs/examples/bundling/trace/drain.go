package trace

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"mapsync/docs/examples/bundling/bpf"
)

// The directions of flows: see bpf/flow.h.
const (
	outgoing = 1
	incoming = 2
)

// connectionKeyBytes is the size of a connectionKey. maxConnections is the maximum number of connections of the methods
// that do not bundle.
const (
	connectionKeyBytes = 16
	maxConnections     = 1 << 18
)

// connectionKey is struct connection_key of bpf/flow.h.
type connectionKey struct {
	Flow               bpf.TracerFlowKey
	ClientPort, Unused uint16
}

// Counters are those of struct flow in bpf/flow.h.
type Counters struct {
	Connections uint64 `json:"connections"`
	Messages    uint64 `json:"messages"` // sent
	Sent        uint64 `json:"sent"`     // bytes
	Received    uint64 `json:"received"` // bytes
}

func (c *Counters) add(f *bpf.TracerFlow) {
	c.Connections += f.Connections
	c.Messages += f.Messages
	c.Sent += f.Sent
	c.Received += f.Received
}

// connectionSums are what this process has received.
type connectionSums struct {
	port    uint16 // of the service to sum up, 0: all
	entries uint64 // events included
	events  uint64
	totals  [3]Counters // by direction
	// flows has the sums since the last drain, with the methods that do not bundle. A consumer would read them.
	flowSums map[bpf.TracerFlowKey]*Counters
}

func newConnectionSums(o *options) connectionSums {
	s := connectionSums{port: uint16(o.port)}
	if o.method != Bundle {
		s.flowSums = make(map[bpf.TracerFlowKey]*Counters)
	}
	return s
}

func (s *connectionSums) add(key *bpf.TracerFlowKey, f *bpf.TracerFlow) {
	s.entries++
	if int(key.Dir) < len(s.totals) && (s.port == 0 || s.port == key.Port) {
		s.totals[key.Dir].add(f)
	}
	if s.flowSums == nil {
		return
	}
	c := s.flowSums[*key]
	if c == nil {
		c = new(Counters)
		s.flowSums[*key] = c
	}
	c.add(f)
}

// drain removes the entries of the flows and adds them to the sums. Meanwhile the programs write the spare map, so that
// no counter changes between its copy and its removal.
func (t *tracer) drain() error {
	clear(t.flowSums)
	if err := t.write(t.spare); err != nil {
		return err
	}
	var err error
	if t.method == Bundle {
		err = drainAll(t.flows, func(k *bpf.TracerFlowKey, f *bpf.TracerFlow) { t.add(k, f) })
	} else {
		err = drainAll(t.flows, func(k *connectionKey, f *bpf.TracerFlow) { t.add(&k.Flow, f) })
	}
	return errors.Join(err, t.endDrain())
}

// endDrain adds the entries of the spare map to the flows.
func (t *tracer) endDrain() error {
	if err := t.write(t.flows); err != nil {
		return err
	}
	result, err := t.moveSpare.Run(nil)
	if err != nil {
		return fmt.Errorf("move entries of the spare map: %w", err)
	}
	if result != 0 {
		return errors.New("move entries of the spare map: the kernel refuses to iterate over it")
	}
	return nil
}

// write selects the map that programs write. When it returns, no program writes another one: the kernel waits for those
// that run when a map of maps changes.
func (t *tracer) write(m *ebpf.Map) error {
	if err := t.active.Put(uint32(0), m); err != nil {
		return fmt.Errorf("select the map that programs write: %w", err)
	}
	return nil
}

// batch is the number of entries of a call: kernels before 5.17 let syncd follow at most 8,192.
const batch = 4096

// drainAll removes all entries of a map and passes them to f.
func drainAll[K any](m *ebpf.Map, f func(*K, *bpf.TracerFlow)) error {
	keys, values := make([]K, batch), make([]bpf.TracerFlow, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookupAndDelete(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("drain: %w", err)
		}
		for i := range n {
			f(&keys[i], &values[i])
		}
		if err != nil {
			return nil
		}
	}
}
