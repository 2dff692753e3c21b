package kmap

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
)

// storm sends signals to the calling thread, as fast as it goes, until stopped.
// The runtime sends this one to itself, and takes it lightly.
func storm(t *testing.T) (stop func()) {
	runtime.LockOSThread()
	pid, tid := os.Getpid(), unix.Gettid()
	var quit atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !quit.Load() {
			if err := unix.Tgkill(pid, tid, unix.SIGURG); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(20 * time.Microsecond)
		}
	})
	return func() {
		quit.Store(true)
		wg.Wait()
		runtime.UnlockOSThread()
	}
}

// Signals end repeated test runs early: every entry must land all the same.
func TestSignals(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(48, 176, 20000)), Options{})
	stop := storm(t)
	interrupted := false
	for range 100 { // the storm is one: a long run over nothing does not get through it
		if interrupted = errors.Is(testRun(k.looker.prog.FD(), 1<<22), unix.EINTR); interrupted {
			break
		}
	}
	if !interrupted {
		t.Error("no run was interrupted")
	}
	for g := range 5 {
		put(t, k, 0, 20000, g)
	}
	put(t, k, 10000, 20000, -1)
	var keys []byte
	for n := range 20000 {
		key, _ := entry(n, 4, 48, 176)
		keys = append(keys, key...)
	}
	have := 0
	err := k.Lookup(keys, func(i int, _, _ []byte, found bool) {
		if found != (i < 10000) {
			t.Errorf("entry %d: found %v", i, found)
		}
		have++
	})
	stop()
	if err != nil || have != 20000 {
		t.Errorf("%d lookups, %v", have, err)
	}
	checkContent(t, k, 0, 10000, 4)
}

func newOwnWriter(t *testing.T) *ebpf.Map {
	spec, err := bpf.LoadAccess()
	if err != nil {
		t.Fatal(err)
	}
	return newKernelMap(t, spec.Maps[bpf.AccessMapOwnWriter])
}

// marks reads the marked task of every CPU.
func marks(t *testing.T, m *ebpf.Map) []uint64 {
	var all []bpf.AccessOwnMark
	if err := m.Lookup(uint32(0), &all); err != nil {
		t.Fatal(err)
	}
	tasks := make([]uint64, len(all))
	for i := range all {
		tasks[i] = all[i].Task
	}
	return tasks
}

func setMarks(t *testing.T, m *ebpf.Map, mark bpf.AccessOwnMark) {
	all := make([]bpf.AccessOwnMark, len(marks(t, m)))
	for i := range all {
		all[i] = mark
	}
	if err := m.Put(uint32(0), all); err != nil {
		t.Fatal(err)
	}
}

// The mark of the writing task is there during the program's writes, and at no
// other time.
func TestOwnWriterMark(t *testing.T) {
	own := newOwnWriter(t)
	raw := newKernelMap(t, hashSpec(48, 176, 20000))
	k := openMap(t, raw, Options{OwnWriter: own})
	byCall := openMap(t, raw, Options{OwnWriter: own, NoProgram: true})

	var seen atomic.Bool
	watch := func(work func()) (marked map[uint64]bool) {
		marked = map[uint64]bool{}
		var quit atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for !quit.Load() {
				for _, mark := range marks(t, own) {
					if mark != 0 {
						marked[mark] = true
						seen.Store(true)
					}
				}
			}
		})
		work()
		quit.Store(true)
		wg.Wait()
		for cpu, mark := range marks(t, own) {
			if mark != 0 {
				t.Errorf("mark %#x left on CPU %d", mark, cpu)
			}
		}
		return marked
	}

	runtime.LockOSThread() // one thread: one task
	defer runtime.UnlockOSThread()
	marked := watch(func() {
		// On a busy machine reader and writer may share a CPU for a while.
		for until := time.Now().Add(20 * time.Second); ; {
			for g := range 20 {
				put(t, k, 0, 20000, g)
			}
			if seen.Load() || runtime.NumCPU() == 1 || time.Now().After(until) {
				break
			}
		}
	})
	if runtime.NumCPU() > 1 && len(marked) != 1 {
		t.Errorf("marks seen while writing: %v, want one", marked)
	}
	for mark := range marked {
		if mark < 1<<63 {
			t.Errorf("mark %#x is no kernel address", mark)
		}
	}
	marked = watch(func() {
		put(t, byCall, 0, 20000, 1)
		for range 5 {
			content(t, k)
		}
		checkContent(t, k, 0, 20000, 1)
	})
	if len(marked) != 0 {
		t.Errorf("marks seen while reading and calling: %v", marked)
	}
}

// A writer leaves a CPU alone on which another thread of ours is in the middle of
// its writes: its mark must stay true.
func TestOwnWriterWaits(t *testing.T) {
	own := newOwnWriter(t)
	k := openMap(t, newKernelMap(t, hashSpec(8, 8, 100)), Options{OwnWriter: own})
	const other = 0xffff888000001000
	setMarks(t, own, bpf.AccessOwnMark{Task: other, Runs: 1})
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() { defer done.Store(true); put(t, k, 0, 100, 1) })
	time.Sleep(50 * time.Millisecond)
	for cpu, mark := range marks(t, own) {
		if mark != other {
			t.Errorf("mark on CPU %d is %#x", cpu, mark)
		}
	}
	if n := len(content(t, k)); n != 0 {
		t.Errorf("%d entries written", n)
	}
	// Again and again: one may come between a run's count and its end.
	for !done.Load() {
		setMarks(t, own, bpf.AccessOwnMark{})
		time.Sleep(10 * time.Millisecond)
	}
	wg.Wait()
	checkContent(t, k, 0, 100, 1)
}

// Maps of one daemon are written at the same time with one mark. Where the writer is no
// iterator, these are test runs that some kernels may preempt.
func TestOwnWriterShared(t *testing.T) {
	own := newOwnWriter(t)
	var wg sync.WaitGroup
	var maps []*Map
	for range 4 {
		maps = append(maps, openMap(t, newKernelMap(t, hashSpec(48, 176, 5000)), Options{OwnWriter: own}))
	}
	for _, k := range maps {
		wg.Go(func() {
			for g := range 10 {
				put(t, k, 0, 5000, g)
			}
		})
	}
	wg.Wait()
	for _, k := range maps {
		checkContent(t, k, 0, 5000, 9)
	}
	for cpu, mark := range marks(t, own) {
		if mark != 0 {
			t.Errorf("mark %#x left on CPU %d", mark, cpu)
		}
	}
}

func TestForEachStops(t *testing.T) {
	stop := errors.New("enough")
	for _, spec := range []*ebpf.MapSpec{hashSpec(8, 8, 1000), lockSpec(64, 8, 1000)} {
		raw := newKernelMap(t, spec)
		for _, o := range []Options{{}, {NoProgram: true}} {
			k := openMap(t, raw, o)
			put(t, k, 0, 1000, 1)
			n := 0
			err := k.ForEach(t.Context(), func(_, _ []byte) error {
				if n++; n == 10 {
					return stop
				}
				return nil
			})
			if !errors.Is(err, stop) || n != 10 {
				t.Errorf("%s: %d calls, %v", k.method.Read, n, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := k.ForEach(ctx, func(_, _ []byte) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", k.method.Read, err)
			}
		}
	}
}

func TestClosed(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		k, err := Open(newKernelMap(t, hashSpec(8, 8, 100)), o)
		if err != nil {
			t.Fatal(err)
		}
		b := k.Batch()
		if err := b.Add(entry(1, 1, 8, 8)); err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(entry(2, 1, 8, 8)); err == nil {
			t.Error("Add after Close")
		}
		if _, err := k.Apply(b); err == nil {
			t.Error("Apply after Close")
		}
		if err := k.ForEach(t.Context(), func(_, _ []byte) error { return nil }); err == nil {
			t.Error("ForEach after Close")
		}
		key, _ := entry(1, 1, 8, 8)
		if err := k.Lookup(key, func(int, []byte, []byte, bool) {}); err == nil {
			t.Error("Lookup after Close")
		}
	}
}

// An opened map lets go of everything.
func TestCloseReleases(t *testing.T) {
	raw := newKernelMap(t, lockSpec(64, 8, 100))
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	var before int
	for i := range 3 {
		k, err := Open(raw, Options{})
		if err != nil {
			t.Fatal(err)
		}
		put(t, k, 0, 10, 1)
		content(t, k)
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // what is opened once and for all
			before = count()
		}
	}
	if after := count(); after != before {
		t.Errorf("%d files open, were %d", after, before)
	}
}

func TestProbe(t *testing.T) {
	f := Probe()
	if err := f.Err(); err != nil {
		t.Error(err)
	}
	for _, x := range f {
		if x.Err != nil || x.Name == "" || x.What == "" {
			t.Errorf("%+v", x)
		}
	}
}
