package capture_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"

	"mapsync/bpf"
	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// attaches are the attach methods of all tests.
var attaches = []capture.Attach{capture.AttachKprobe, capture.AttachFexit}

// buffers are the kinds of buffer, each with a size that holds all events of a test of single
// writes.
var buffers = map[capture.Buffer]int{capture.BufferRing: 1 << 20, capture.BufferPerf: 256}

// change is a table.Change that owns its key and value.
type change struct {
	Op         table.Op
	Context    table.Context
	Key, Value string
}

// hookedCapture is a Capture with hooks, and the changes that it reports.
type hookedCapture struct {
	*capture.Capture
	attach        capture.Attach
	buffer        capture.Buffer
	ownWriteMarks *ebpf.Map
	fences        []*dataplane.Program // one per CPU
	fenceID       uint32

	mu      sync.Mutex
	changes map[uint32][]change
	observe func(mapID uint32, c *table.Change) // replaces changes
}

// openHooks attaches hooks until the end of the test. It fills in the zero values of o.
func openHooks(t testing.TB, o capture.Options) *hookedCapture {
	t.Helper()
	needAttach(t, o.Attach)
	own, err := bpf.NewOwnWriteMarks()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	if o.Buffer == "" {
		o.Buffer = capture.BufferRing
	}
	if o.OwnWriteMarks = own; o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := capture.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	h := &hookedCapture{
		Capture: c, attach: o.Attach, buffer: o.Buffer, ownWriteMarks: own,
		changes: make(map[uint32][]change),
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// tap reads events until the end of t.
func (h *hookedCapture) tap(t testing.TB) {
	t.Helper()
	m, id := newHash(t, ebpf.Hash, 8, 16, 64)
	h.fenceID = id
	h.watch(t, id, 8, 16)
	for cpu := range runtime.NumCPU() {
		p := openDataPlane(t, m, dataplane.Options{Capacity: 1})
		key, value := entry(8, 16, cpu, cpu)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		h.fences = append(h.fences, p)
	}
	h.read(t)
}

// read records events until the end of t.
func (h *hookedCapture) read(t testing.TB) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- h.Tap(h.record) }()
	t.Cleanup(func() {
		h.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (h *hookedCapture) record(id uint32, c *table.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.observe != nil && id != h.fenceID {
		h.observe(id, c)
		return
	}
	h.changes[id] = append(h.changes[id], change{c.Op, c.Context, string(c.Key), string(c.Value)})
}

// take returns the changes of a map recorded since the last call.
func (h *hookedCapture) take(id uint32) []change {
	h.mu.Lock()
	defer h.mu.Unlock()
	changes := h.changes[id]
	delete(h.changes, id)
	return changes
}

func (h *hookedCapture) recorded(id uint32) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.changes[id])
}

// awaitEvents waits until the events of all earlier writes are recorded. Each CPU makes one more
// write, to another map, and events of one CPU arrive in order.
func (h *hookedCapture) awaitEvents(t testing.TB) {
	t.Helper()
	h.take(h.fenceID)
	for cpu, p := range h.fences {
		unpin, err := dataplane.Pin(cpu)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Run()
		unpin()
		if err != nil {
			t.Fatal(err)
		}
	}
	poll.Eventually(t, "events of the fence", func() bool { return h.recorded(h.fenceID) == len(h.fences) },
		func() any { return fmt.Sprintf("got %d of %d, %+v", h.recorded(h.fenceID), len(h.fences), h.Stats()) })
	h.Stats() // waits for the end of the batch, in which the events are grouped by map
}

func (h *hookedCapture) watch(t testing.TB, id uint32, keySize, valueSize int) {
	t.Helper()
	if err := h.Watch(id, newTable(t, keySize, valueSize)); err != nil {
		t.Fatal(err)
	}
}

// watchKeys watches a per-CPU map.
func (h *hookedCapture) watchKeys(t testing.TB, m *ebpf.Map, id uint32) *table.Table {
	t.Helper()
	info, err := kmap.Describe(m)
	if err != nil {
		t.Fatal(err)
	}
	tab := newTable(t, info.KeySize, info.ValueSize)
	if err := h.WatchKeys(id, tab); err != nil {
		t.Fatal(err)
	}
	return tab
}

func openDataPlane(t testing.TB, m *ebpf.Map, o dataplane.Options) *dataplane.Program {
	t.Helper()
	p, err := dataplane.Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func openReceiver(t testing.TB, p *dataplane.Program) *dataplane.Receiver {
	t.Helper()
	r, err := p.Receive()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// compareChanges reports the number of events and the first three differences.
func compareChanges(t testing.TB, got, want []change) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	t.Errorf("events: got %d, want %d", len(got), len(want))
	reported := 0
	for i := range max(len(got), len(want)) {
		var g, w change
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w && reported < 3 {
			reported++
			t.Errorf("event %d: got %+q, want %+q", i, g, w)
		}
	}
}
