package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"mapsync/internal/injector"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// source is the load balancer of a peer. It changes its flows continuously, and records the
// changes.
type source struct {
	t        *testing.T
	node     *node
	m        *ebpf.Map
	injector *injector.Injector
	shape    *shape
	first    int // number of its first flow
	flows    int

	mu      sync.Mutex // held while changes are made; guards the fields below
	random  *rand.Rand
	changes uint64
	last    []uint64 // number of the last change, by flow; 0: none
	live    []bool
	deleted []uint64 // number of the last delete, by flow
}

// sourceSnapshot is a copy of the state of a source.
type sourceSnapshot struct {
	last []uint64
	live []bool
}

const sourceBatch = 256

func newSource(t *testing.T, n *node, m *ebpf.Map, s *shape, first int) *source {
	t.Helper()
	flows := s.flows
	f, err := injector.Open(m, n.capture.Maps(), injector.Options{Capacity: sourceBatch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &source{
		t: t, node: n, m: m, injector: f, shape: s, first: first, flows: flows, random: rand.New(rand.NewPCG(uint64(first), 1)),
		last: make([]uint64, flows), live: make([]bool, flows), deleted: make([]uint64, flows),
	}
}

// fill creates most of the flows.
func (s *source) fill() {
	for at := 0; at < s.flows; at += sourceBatch {
		s.change(func(i int) (flow int, remove bool) { return at + i, false }, min(sourceBatch, s.flows-at)*9/10)
	}
}

// start changes flows at a varying rate until the test ends, but not faster than the slowest
// proxy can send.
func (s *source) start() {
	most := min(sourceBatch, 32<<10/s.shape.value)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			s.change(func(int) (flow int, remove bool) { return s.random.IntN(s.flows), s.random.IntN(5) == 0 }, s.random.IntN(most))
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(s.random.Int64N(int64(20 * time.Millisecond)))):
			}
		}
	}()
	s.t.Cleanup(func() { close(stop); <-done })
}

// change makes count changes in one run of the data plane.
func (s *source) change(pick func(i int) (flow int, remove bool), count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, value := make([]byte, s.shape.key), make([]byte, s.shape.value)
	s.injector.Reset()
	for i := range count {
		flow, remove := pick(i)
		s.changes++
		s.shape.fillEntry(key, value, s.first+flow, s.changes)
		op := table.OpUpdate
		if remove {
			if op = table.OpDelete; !s.live[flow] {
				continue
			}
			s.deleted[flow] = s.changes
		}
		s.injector.Add(op, table.ContextPacket, key, value)
		s.last[flow], s.live[flow] = s.changes, !remove
	}
	if failed, err := s.injector.Run(); err != nil || failed > 0 {
		s.t.Errorf("write the entries: got %d failed, error %v, want none", failed, err)
	}
}

func (s *source) snapshot() *sourceSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sourceSnapshot{slices.Clone(s.last), slices.Clone(s.live)}
}

// addStaleEntries writes old entries of some live flows into a map, as if the map had not been written
// for a while. The peers may have forgotten the deletes of other flows: the joiner's former incarnation
// acknowledged them. They keep those from now on, because the joiner is away.
func (s *source) addStaleEntries(m *ebpf.Map) {
	now := s.snapshot()
	key, value := make([]byte, s.shape.key), make([]byte, s.shape.value)
	for flow := range now.last {
		if !now.live[flow] || flow%3 == 0 {
			continue
		}
		s.shape.fillEntry(key, value, s.first+flow, 0)
		if err := m.Put(key, value); err != nil {
			s.t.Fatal(err)
		}
	}
}

// wrongEntry is an entry that is neither as in the snapshot nor as after a later change.
type wrongEntry struct {
	flow          int
	last, deleted uint64 // numbers of the last change and the last delete in the snapshot
	lastNow       uint64 // number of the last change by now
	found         uint64 // number of the change in the map
	live, there   bool   // live in the snapshot, and present in the map
}

func (w wrongEntry) String() string {
	return fmt.Sprintf("flow %d: live %t by change %d (now %d, deleted by %d), in the map %t by %d",
		w.flow, w.live, w.last, w.lastNow, w.deleted, w.there, w.found)
}

// compare returns the entries of a snapshot that a map lacks, holds in an older state, or holds
// although deleted.
func (s *source) compare(before *sourceSnapshot, content map[int]uint64) (wrong []wrongEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for flow, last := range before.last {
		number, there := content[s.first+flow]
		missing := !there && before.live[flow] && s.deleted[flow] < last
		old := there && before.live[flow] && number < last
		resurrected := there && !before.live[flow] && number <= last
		if last > 0 && (missing || old || resurrected) {
			wrong = append(wrong, wrongEntry{
				flow: s.first + flow, last: last, deleted: s.deleted[flow], lastNow: s.last[flow],
				found: number, live: before.live[flow], there: there,
			})
		}
	}
	return wrong
}
