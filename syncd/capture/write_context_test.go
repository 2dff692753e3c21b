package capture_test

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The kernel steers packets to the busy CPU, and all writers run there, so that each can interrupt
// or preempt the others. Packets are sent from the other CPU.
const (
	busyCPU  = 1
	otherCPU = 0
)

// pace is the pause between packets, so that each packet causes an interrupt of its own.
const pace = 100 * time.Microsecond

// loadWriter is a writer of TestWriteContextUnderLoad.
type loadWriter uint8

const (
	packetWriter loadWriter = iota + 1
	timerWriter
	processWriter
	iteratorWriter
	kprobeWriter
	nestedWriter // under a kprobe inside bpf(2) calls that write, also in those of syncd
	tracepointWriter
	evictionWriter // a process that fills an LRU map
	singleWriter   // bpf(2), one entry per call
	batchWriter    // bpf(2), several entries per call
	syncdWriter
	loadWriters
)

var loadWriterNames = [loadWriters]string{
	"", "packet", "timer", "process", "iterator", "kprobe", "kprobe inside bpf(2)", "tracepoint", "eviction", "bpf(2)", "bpf(2) batch", "syncd",
}

// context returns the context that the events of a writer must have.
func (w loadWriter) context() table.Context {
	switch w {
	case packetWriter, timerWriter:
		return table.ContextPacket
	case singleWriter, batchWriter:
		return table.ContextSyscall
	case syncdWriter:
		return table.ContextOwn
	}
	return table.ContextProcess
}

// detected reports whether the events of a writer have its keys and values.
func (w loadWriter) detected(attach capture.Attach) bool {
	switch w {
	case kprobeWriter, nestedWriter:
		return attach.Detects(ebpf.Kprobe)
	case tracepointWriter:
		return attach.Detects(ebpf.TracePoint)
	case singleWriter, batchWriter:
		return attach == capture.AttachFexit
	}
	return true
}

// sharedKeys is the number of keys that all writers update. The first byte of a value identifies
// its writer. Deletes have no value, so each writer deletes only its own keys.
const sharedKeys = 64

func taggedKey(writer loadWriter, i int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(writer)<<32|uint64(i))
}

func taggedEntry(writer loadWriter, i int) (key, value []byte) {
	key, value = entry(8, 16, i%sharedKeys, 0)
	value[0] = byte(writer)
	return key, value
}

// contextChecker compares the context of each event with the writer in its key or value.
type contextChecker struct {
	attach           capture.Attach
	timers           bool // the kernel supports timers
	updates, deletes [loadWriters]atomic.Uint64
	drained          atomic.Uint64 // keys that a batch lookup-and-delete removed
	wrong            atomic.Uint64
	firstWrong       atomic.Pointer[string]
	numbers          [loadWriters]uint64 // of the last update, for numbered writes
	repeated         atomic.Uint64
}

func (j *contextChecker) observe(_ uint32, c *table.Change) {
	var writer loadWriter
	switch c.Op {
	case table.OpUpdate:
		writer = loadWriter(c.Value[0])
		j.updates[writer].Add(1)
		if n := binary.NativeEndian.Uint64(c.Value[8:]); n != 0 {
			if n <= j.numbers[writer] {
				j.repeated.Add(1)
			}
			j.numbers[writer] = n
		}
	case table.OpDelete:
		writer = loadWriter(binary.LittleEndian.Uint64(c.Key) >> 32)
		j.deletes[writer].Add(1)
	case table.OpEvict: // of the map that one writer fills
		writer = evictionWriter
		j.deletes[writer].Add(1)
	case capture.OpKeys, capture.OpDeletedKeys: // whichever writer the keys belong to
		j.drained.Add(1)
		writer = batchWriter
	default:
		return
	}
	if writer >= kprobeWriter && writer <= tracepointWriter && !writer.detected(j.attach) {
		return // on 5.10, fexit takes it for a call of bpf(2): both raise bpf_prog_active
	}
	if writer.context() != c.Context {
		text := fmt.Sprintf("%s by %s reported as %s: key %x value %x", c.Op, loadWriterNames[writer], c.Context, c.Key, c.Value)
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
			j := &contextChecker{attach: attach, timers: dataplane.HasTimers() == nil}
			h.mu.Lock()
			h.observe = j.observe
			h.mu.Unlock()
			h.watch(t, id, 8, 16)
			full, fullID := newHash(t, ebpf.LRUHash, 8, 16, 256)
			h.watch(t, fullID, 8, 16)
			j.runAllWriters(t, h, m, full)
			h.awaitEvents(t)
			j.report(t)
			markRan(t, "write context under load", h)
		})
	}
}

// least returns the minimum numbers of reported updates and deletes of a writer.
func (j *contextChecker) least(w loadWriter) (updates, deletes uint64) {
	switch {
	case !w.detected(j.attach), w == timerWriter && !j.timers:
		return 0, 0
	case w == timerWriter, w == iteratorWriter:
		return 2, 2 // each run loads a program
	case w == tracepointWriter:
		return 10, 0 // each needs a process
	case w == kprobeWriter, w == nestedWriter:
		return 20, 0
	}
	return 20, 20
}

// complete reports whether the minimum of each writer is reached.
func (j *contextChecker) complete() bool {
	for w := packetWriter; w < loadWriters; w++ {
		if updates, deletes := j.least(w); j.updates[w].Load() < updates || j.deletes[w].Load() < deletes {
			return false
		}
	}
	return j.drained.Load() != 0
}

func (j *contextChecker) report(t *testing.T) {
	if j.wrong.Load() != 0 {
		t.Errorf("%d writes reported with the wrong context: %s", j.wrong.Load(), *j.firstWrong.Load())
	}
	if j.repeated.Load() != 0 {
		t.Errorf("%d numbered writes reported out of order or twice", j.repeated.Load())
	}
	for w := packetWriter; w < loadWriters; w++ {
		updates, deletes := j.updates[w].Load(), j.deletes[w].Load()
		t.Logf("%s: %d updates, %d deletes", loadWriterNames[w], updates, deletes)
		leastUpdates, leastDeletes := j.least(w)
		if updates < leastUpdates || deletes < leastDeletes {
			t.Errorf("%s: got %d updates, %d deletes, want at least %d and %d", loadWriterNames[w], updates, deletes, leastUpdates, leastDeletes)
		}
		// A kernel may detect more than Detects returns, but not with kprobe.
		if !w.detected(j.attach) && j.attach == capture.AttachKprobe && updates+deletes != 0 {
			t.Errorf("%s: got %d updates, %d deletes, want none with kprobe", loadWriterNames[w], updates, deletes)
		}
	}
	if j.drained.Load() == 0 {
		t.Error("keys of batch lookup-and-delete: got none, want some")
	}
}

// runAllWriters runs all writers of m, and one of full, for 3 s. On a slow machine they run longer, until the minimum of
// each writer is reached.
func (j *contextChecker) runAllWriters(t *testing.T, h *hookedCapture, m, full *ebpf.Map) {
	packets := taggedProgram(t, m, packetWriter, 2)
	stopFlood := openReceiver(t, packets).Flood(otherCPU, pace)
	process := taggedProgram(t, m, processWriter, 2)
	k, err := kmap.Open(m, kmap.Options{OwnWriteMarks: h.ownWriteMarks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	control := startControl(t, m)
	control.do(t, "pin", busyCPU, 0, 0)
	counter, _ := newHash(t, ebpf.Array, 4, 8, 1)
	for _, w := range []struct {
		writer   loadWriter
		typ      ebpf.ProgramType
		function string
	}{{kprobeWriter, ebpf.Kprobe, dataplane.Getppid}, {nestedWriter, ebpf.Kprobe, "security_bpf"}, {tracepointWriter, ebpf.TracePoint, ""}} {
		key, value := taggedEntry(w.writer, 0)
		attachWriter(t, w.typ, w.function, writerCode(m, counter, key, value))
	}
	evicting := openDataPlane(t, full, dataplane.Options{Capacity: 1024, Endless: true})
	for i := range 1024 {
		_, value := taggedEntry(evictionWriter, i)
		evicting.Add(dataplane.Update, ebpf.UpdateAny, taggedKey(evictionWriter, i), value)
	}

	var w workers
	w.start(t, func() error { return applyTagged(k) })
	w.start(t, func() error { return process.RunOnce(64) })
	w.start(t, func() error { return evicting.RunOnce(64) })
	w.start(t, func() error { return putTagged(m) })
	w.start(t, func() error { unix.Getppid(); time.Sleep(pace); return nil }) // the rate of the calls
	w.start(t, taggedProgram(t, m, iteratorWriter, 16).RunByIterator)
	if j.timers {
		w.start(t, taggedProgram(t, m, timerWriter, 16).RunByTimer)
	}
	for began := time.Now(); time.Since(began) < 3*time.Second || !j.complete() && time.Since(began) < poll.Lengthened(poll.Limit); {
		control.do(t, "tagged", 0, 16, 0)
		control.do(t, "tagged-batch", 0, 1, 0)
		control.do(t, "process", 0, 1, 0) // runs the program of the tracepoint
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
// keys, endlessly, with a number of writes in each run.
func taggedProgram(t *testing.T, m *ebpf.Map, writer loadWriter, runWrites int) *dataplane.Program {
	t.Helper()
	p := openDataPlane(t, m, dataplane.Options{Capacity: 64, RunWrites: runWrites, Endless: true, NumberValues: true})
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
		key, value := taggedEntry(syncdWriter, i)
		own := taggedKey(syncdWriter, i)
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
	key, value := taggedEntry(syncdWriter, 7)
	return m.Put(key, value)
}
