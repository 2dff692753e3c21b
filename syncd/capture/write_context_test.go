package capture_test

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// The kernel steers packets to the busy CPU, and all writers run there, so that each can interrupt
// or preempt the others. Packets are sent from the other CPU.
const (
	busyCPU  = 1
	otherCPU = 0
)

// pace is the pause between packets, so that each packet causes an interrupt of its own.
const pace = 100 * time.Microsecond

// sharedKeys is the number of keys that all writers update. The first byte of a value identifies
// its writer. Deletes have no value, so each writer deletes only its own keys.
const sharedKeys = 64

func taggedKey(writer table.Context, i int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(writer)<<32|uint64(i))
}

func taggedEntry(writer table.Context, i int) (key, value []byte) {
	key, value = entry(8, 16, i%sharedKeys, 0)
	value[0] = byte(writer)
	return key, value
}

// contextChecker compares the context of each event with the writer in its key or value.
type contextChecker struct {
	updates, deletes [capture.Contexts]atomic.Uint64
	wrong            atomic.Uint64
	firstWrong       atomic.Pointer[string]
	numbers          [capture.Contexts]uint64 // of the last update, for numbered writes
	repeated         atomic.Uint64
}

func (j *contextChecker) observe(_ uint32, c *table.Change) {
	var writer table.Context
	switch c.Op {
	case table.OpUpdate:
		writer = table.Context(c.Value[0])
		j.updates[c.Context].Add(1)
		if n := binary.NativeEndian.Uint64(c.Value[8:]); n != 0 {
			if n <= j.numbers[writer] {
				j.repeated.Add(1)
			}
			j.numbers[writer] = n
		}
	case table.OpDelete:
		writer = table.Context(binary.LittleEndian.Uint64(c.Key) >> 32)
		j.deletes[c.Context].Add(1)
	default:
		return
	}
	if writer != c.Context {
		text := fmt.Sprintf("%s by %s reported as %s: key %x value %x", c.Op, writer, c.Context, c.Key, c.Value)
		j.firstWrong.CompareAndSwap(nil, &text)
		j.wrong.Add(1)
	}
}

// TestWriteContextUnderLoad runs all kinds of writers on one map and one CPU, and checks every
// event.
func TestWriteContextUnderLoad(t *testing.T) {
	for _, attach := range attaches {
		t.Run(string(attach), func(t *testing.T) {
			steer(t, busyCPU)
			h := openHooks(t, capture.Options{Attach: attach, EmitOwn: true})
			m, id := newHash(t, ebpf.Hash, 8, 16, 1024)
			h.tap(t)
			j := new(contextChecker)
			h.mu.Lock()
			h.observe = j.observe
			h.mu.Unlock()
			h.watch(t, id, 8, 16)
			runAllWriters(t, h, m, 3*time.Second)
			h.awaitEvents(t)
			j.report(t, attach)
			markRan(t, "write context under load", h)
		})
	}
}

func (j *contextChecker) report(t *testing.T, attach capture.Attach) {
	if j.wrong.Load() != 0 {
		t.Errorf("%d writes reported with the wrong context: %s", j.wrong.Load(), *j.firstWrong.Load())
	}
	if j.repeated.Load() != 0 {
		t.Errorf("%d numbered writes reported out of order or twice", j.repeated.Load())
	}
	for c := table.ContextPacket; c <= table.ContextOwn; c++ {
		updates, deletes := j.updates[c].Load(), j.deletes[c].Load()
		t.Logf("%s: %d updates, %d deletes", c, updates, deletes)
		unseen := c == table.ContextSyscall && attach == capture.AttachKprobe
		if unseen != (updates+deletes == 0) || !unseen && (updates < 20 || deletes < 20) {
			t.Errorf("context %s: got %d updates, %d deletes, want at least 20 each (kprobe and bpf(2): 0)",
				c, updates, deletes)
		}
	}
}

// runAllWriters runs all writers for the duration d.
func runAllWriters(t *testing.T, h *hookedCapture, m *ebpf.Map, d time.Duration) {
	packets := taggedProgram(t, m, table.ContextPacket)
	stopFlood := openReceiver(t, packets).Flood(otherCPU, pace)
	process := taggedProgram(t, m, table.ContextProcess)
	k, err := kmap.Open(m, kmap.Options{OwnWriteMarks: h.ownWriteMarks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	control := startControl(t, m)
	control.do(t, "pin", busyCPU, 0, 0)

	var w workers
	w.start(t, func() error { return applyTagged(k) })
	w.start(t, func() error { return process.RunOnce(64) })
	w.start(t, func() error { return putTagged(m) })
	for until := time.Now().Add(d); time.Now().Before(until); {
		control.do(t, "tagged", 0, 16, 0)
	}
	w.stop(t)
	if _, err := stopFlood(); err != nil {
		t.Fatal(err)
	}
	if packets.Done() == 0 || packets.LastCPU() != busyCPU {
		t.Errorf("writes by packets: got %d, the last on CPU %d, want at least one, and the last on CPU %d",
			packets.Done(), packets.LastCPU(), busyCPU)
	}
}

// taggedProgram returns a program that updates the shared keys, and writes and deletes its own
// keys, endlessly.
func taggedProgram(t *testing.T, m *ebpf.Map, writer table.Context) *dataplane.Program {
	p := openDataPlane(t, m, dataplane.Options{Capacity: 64, RunWrites: 2, Endless: true, NumberValues: true})
	for i := range 16 {
		key, value := taggedEntry(writer, i)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		p.Add(dataplane.Update, ebpf.UpdateAny, taggedKey(writer, i), value)
		key, value = taggedEntry(writer, i+16)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		p.Add(dataplane.Delete, 0, taggedKey(writer, i), nil)
	}
	return p
}

// applyTagged writes one batch of syncd's own writes by its program.
func applyTagged(k *kmap.Map) error {
	b := k.Batch()
	for i := range 32 {
		key, value := taggedEntry(table.ContextOwn, i)
		own := taggedKey(table.ContextOwn, i)
		for _, w := range [][2][]byte{{key, value}, {own, value}, {own, nil}} {
			if err := b.Add(w[0], w[1]); err != nil {
				return err
			}
		}
	}
	_, err := k.Apply(b)
	return err
}

// putTagged makes one of syncd's own writes by bpf(2).
func putTagged(m *ebpf.Map) error {
	key, value := taggedEntry(table.ContextOwn, 7)
	return m.Put(key, value)
}

// workers run functions repeatedly on the busy CPU, each on its own thread.
type workers struct {
	stopped atomic.Bool
	done    []chan error
}

func (w *workers) start(t *testing.T, work func() error) {
	done := make(chan error, 1)
	w.done = append(w.done, done)
	go func() {
		unpin, err := dataplane.Pin(busyCPU)
		if err != nil {
			done <- err
			return
		}
		defer unpin()
		for err == nil && !w.stopped.Load() {
			err = work()
		}
		done <- err
	}()
}

func (w *workers) stop(t *testing.T) {
	t.Helper()
	w.stopped.Store(true)
	for _, done := range w.done {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	w.done = nil
}

// steer makes one CPU process all packets until the end of the test.
func steer(t *testing.T, cpu int) {
	t.Helper()
	restore, err := dataplane.SteerLoopback(cpu)
	if err != nil {
		skipUnsupported(t, err.Error())
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
}
