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

// The busy CPU is where packets are steered to and where all writers work, so
// that each can interrupt or preempt the others; packets are sent from the other.
const (
	busyCPU  = 1
	otherCPU = 0
)

// pace lets each packet be an interrupt of its own.
const pace = 100 * time.Microsecond

// sharedKeys are written by everybody; a value's first bytes tell by whom.
// Deletes carry no value: each writer deletes keys of its own.
const sharedKeys = 64

func taggedKey(writer table.Context, i int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(writer)<<32|uint64(i))
}

func taggedEntry(writer table.Context, i int) (key, value []byte) {
	key, value = entry(8, 16, i%sharedKeys, 0)
	value[0] = byte(writer)
	return key, value
}

// judge checks each event against what the writer said of itself.
type judge struct {
	updates, deletes [capture.Contexts]atomic.Uint64
	wrong            atomic.Uint64
	firstWrong       atomic.Pointer[string]
	numbers          [capture.Contexts]uint64 // of the last update, where numbered
	repeated         atomic.Uint64
}

func (j *judge) observe(_ uint32, c *table.Change) {
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
		text := fmt.Sprintf("%s by %s taken for %s: key %x value %x", c.Op, writer, c.Context, c.Key, c.Value)
		j.firstWrong.CompareAndSwap(nil, &text)
		j.wrong.Add(1)
	}
}

// TestWhoWroteUnderLoad has all kinds of writers at one map, on one CPU, and
// checks every single event.
func TestWhoWroteUnderLoad(t *testing.T) {
	for _, attach := range attaches {
		t.Run(string(attach), func(t *testing.T) {
			steer(t, busyCPU)
			h := openHooks(t, capture.Options{Attach: attach, EmitOwn: true})
			m, id := newHash(t, ebpf.Hash, 8, 16, 1024)
			h.tap(t)
			j := new(judge)
			h.mu.Lock()
			h.observe = j.observe
			h.mu.Unlock()
			h.watch(t, id, 8, 16)
			everybodyWrites(t, h, m, 3*time.Second)
			h.settle(t)
			j.report(t, attach)
			ran(t, "who wrote, under load", h)
		})
	}
}

func (j *judge) report(t *testing.T, attach capture.Attach) {
	if j.wrong.Load() != 0 {
		t.Errorf("%d writes taken for somebody else's: %s", j.wrong.Load(), *j.firstWrong.Load())
	}
	if j.repeated.Load() != 0 {
		t.Errorf("%d numbered writes reported out of order or twice", j.repeated.Load())
	}
	for c := table.ContextPacket; c <= table.ContextOwn; c++ {
		updates, deletes := j.updates[c].Load(), j.deletes[c].Load()
		t.Logf("%s: %d updates, %d deletes", c, updates, deletes)
		unseen := c == table.ContextSyscall && attach == capture.AttachKprobe
		if unseen != (updates+deletes == 0) || !unseen && (updates < 20 || deletes < 20) {
			t.Errorf("%s: %d updates, %d deletes", c, updates, deletes)
		}
	}
}

// everybodyWrites runs all writers for that long.
func everybodyWrites(t *testing.T, h *hooked, m *ebpf.Map, d time.Duration) {
	packets := taggedProgram(t, m, table.ContextPacket)
	stopFlood := openReceiver(t, packets).Flood(otherCPU, pace)
	process := taggedProgram(t, m, table.ContextProcess)
	k, err := kmap.Open(m, kmap.Options{OwnWriter: h.ownWriter})
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
		t.Errorf("%d writes by packets, on CPU %d", packets.Done(), packets.LastCPU())
	}
}

// taggedProgram updates shared keys and writes and deletes its own, without end.
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

// applyTagged makes one batch of the daemon's own writes by its program.
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

// putTagged makes one of the daemon's own writes by bpf(2).
func putTagged(m *ebpf.Map) error {
	key, value := taggedEntry(table.ContextOwn, 7)
	return m.Put(key, value)
}

// workers do things again and again on the busy CPU, each on a thread of its own.
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

// steer has packets processed by one CPU until the end of the test.
func steer(t *testing.T, cpu int) {
	t.Helper()
	restore, err := dataplane.SteerLoopback(cpu)
	if err != nil {
		unable(t, err.Error())
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
}
