package cluster

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// firstStableFlow is the number of the first stable flow of each node.
const firstStableFlow = 1 << 24

// stableLoad is the part of a load that changes stable flows: each node writes its own once, changes their values one
// after another, and never deletes one. A kernel map that has such an entry must keep it.
type stableLoad struct {
	Flows   int           // stable flows of each node, up to batchChanges; 0: none
	Nodes   int           // nodes with stable flows; their numbers begin at 0
	Period  time.Duration // from one change of a flow to the next, at least two comparisons of digests
	Reading time.Duration // from one reading of the kernel map to the next
}

// stableChanges changes the stable flows of a balancer.
type stableChanges struct {
	load stableLoad
	rand *rand.Rand
	flow int
	due  time.Time // of the next change
}

func newStableChanges(l stableLoad, node uint32) *stableChanges {
	return &stableChanges{load: l, rand: rand.New(rand.NewPCG(uint64(node), 0x737461626c65)), due: time.Now()}
}

// step makes the changes that are due.
func (s *stableChanges) step(b *balancer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ; !time.Now().Before(s.due); s.due = s.due.Add(s.load.Period / time.Duration(s.load.Flows)) {
		k := flowKey{b.node, firstStableFlow + uint32(s.flow%s.load.Flows)}
		s.flow++
		if err := b.changeStable(k, s.rand.IntN(5)); err != nil {
			return err
		}
	}
	return nil
}

// changeStable changes one flow in one of five ways.
func (b *balancer) changeStable(k flowKey, way int) error {
	switch way {
	case 0:
		return b.unreportedWrites([]flowKey{k}, func() dataplane.Op { return dataplane.InPlace })
	case 1:
		return b.unreportedWrites([]flowKey{k}, func() dataplane.Op { return dataplane.Update })
	case 2:
		return b.batchUpdate([]flowKey{k})
	default:
		return b.updateReported(k)
	}
}

// updateReported writes flows as the data plane does, with an event for each.
func (b *balancer) updateReported(keys ...flowKey) error {
	b.injector.Reset()
	for _, k := range keys {
		key, value := b.write(k)
		b.injector.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	return b.run(false)
}

// presence is what a balancer has read in its kernel map. Readings and Longest begin anew with each request.
type presence struct {
	Readings int
	Longest  time.Duration // between two readings
	Absent   int           // stable flows that the map has never held
	Lost     []string      // stable flows that the map has held and that a reading lacked
}

// stableReader reads the stable flows of all nodes in the kernel map of a balancer.
type stableReader struct {
	m     *ebpf.Map
	began time.Time

	mu       sync.Mutex // protects the fields below
	flows    []readFlow
	last     time.Time // of the latest reading
	readings int
	longest  time.Duration
	err      error
}

// readFlow is a stable flow of a node.
type readFlow struct {
	flowKey
	held          bool          // at a reading
	missing       int           // number of readings that lacked the flow after one that had it
	first, latest time.Duration // times of those readings
}

// startStable writes the stable flows of this node, and starts to read those of all nodes. The readings go on until the
// process ends.
func (b *balancer) startStable(l stableLoad) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stable != nil {
		return nil
	}
	now := time.Now()
	b.stable = &stableReader{m: b.m, began: now, last: now}
	var own []flowKey
	for node := range uint32(l.Nodes) {
		for flow := range uint32(l.Flows) {
			k := flowKey{node, firstStableFlow + flow}
			b.stable.flows = append(b.stable.flows, readFlow{flowKey: k})
			if node == b.node {
				own = append(own, k)
			}
		}
	}
	go b.stable.run(l.Reading)
	return b.updateReported(own...)
}

func (s *stableReader) run(interval time.Duration) {
	for now := range time.Tick(interval) {
		if !s.read(now) {
			return
		}
	}
}

// read looks all flows up, and returns false after an error.
func (s *stableReader) read(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.flows {
		f := &s.flows[i]
		var held bool
		if held, s.err = s.holds(f); s.err != nil {
			return false
		}
		if f.held = f.held || held; held == f.held {
			continue
		}
		f.latest = now.Sub(s.began)
		if f.missing++; f.missing == 1 {
			f.first = f.latest
		}
	}
	s.readings++
	s.longest, s.last = max(s.longest, now.Sub(s.last)), now
	return true
}

// holds reports whether the map has a flow. The kernel replaces an entry in two steps, and a lookup that passes the entry
// meanwhile may find neither the old nor the new one. A flow that was there is missing only if a second lookup lacks it.
func (s *stableReader) holds(f *readFlow) (bool, error) {
	key := f.bytes()
	value, err := s.m.LookupBytes(key)
	if err == nil && value == nil && f.held {
		value, err = s.m.LookupBytes(key)
	}
	if err != nil {
		return false, fmt.Errorf("look up stable flow %d of node %d: %w", f.flow-firstStableFlow, f.node, err)
	}
	return value != nil, nil
}

// take returns the result of the readings.
func (s *stableReader) take() (presence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := presence{Readings: s.readings, Longest: s.longest}
	s.readings, s.longest = 0, 0
	for i := range s.flows {
		f := &s.flows[i]
		if !f.held {
			p.Absent++
		}
		if f.missing > 0 {
			p.Lost = append(p.Lost, fmt.Sprintf("flow %d of node %d: missing at %d readings from %v to %v after the first",
				f.flow-firstStableFlow, f.node, f.missing, f.first.Round(time.Millisecond), f.latest.Round(time.Millisecond)))
		}
	}
	return p, s.err
}

// presence returns the result of the readings of the stable flows.
func (b *balancer) presence() (presence, error) {
	b.mu.Lock()
	s := b.stable
	b.mu.Unlock()
	if s == nil {
		return presence{}, nil
	}
	return s.take()
}
