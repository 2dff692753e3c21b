package kmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
	"mapsync/internal/poll"
)

// sendSignals sends signals to the calling thread, as fast as possible, until stopped. Go's runtime
// sends this signal to itself, so its handler is harmless.
func sendSignals(t *testing.T) (stop func()) {
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
			time.Sleep(20 * time.Microsecond) // the rate of the signals
		}
	})
	return func() {
		quit.Store(true)
		wg.Wait()
		runtime.UnlockOSThread()
	}
}

// TestSignalsInterruptTestRuns checks that all entries are written and read although signals end
// repeated test runs early.
func TestSignalsInterruptTestRuns(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(48, 176, 20000)), Options{})
	stop := sendSignals(t)
	interrupted := false
	for range 100 { // at this signal rate, a long run without entries is interrupted
		if interrupted = errors.Is(testRun(k.lookupProgram.prog.FD(), 1<<22), unix.EINTR); interrupted {
			break
		}
	}
	if !interrupted {
		t.Error("test runs: got no interrupted run, want at least one")
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
			t.Errorf("lookup of entry %d: got found %v, want the opposite", i, found)
		}
		have++
	})
	stop()
	if err != nil || have != 20000 {
		t.Errorf("lookup: got %d entries, error %v, want 20000 entries", have, err)
	}
	checkContent(t, k, 0, 10000, 4)
}

func newOwnWriteMarks(t *testing.T) *ebpf.Map {
	spec, err := bpf.LoadAccess()
	if err != nil {
		t.Fatal(err)
	}
	return newKernelMap(t, spec.Maps[bpf.AccessMapOwnWriteMarks])
}

// marks returns the marked task of every CPU.
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

// pinThread makes the calling goroutine run on one thread, on the allowed CPU with the given index if there is one.
func pinThread(t *testing.T, index int) (release func()) {
	t.Helper()
	runtime.LockOSThread()
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Errorf("CPUs of the thread: %v", err)
	}
	for cpu, left := 0, index; cpu < 1024; cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		if left == 0 {
			one.Set(cpu)
			break
		}
		left--
	}
	if one.Count() == 1 {
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Errorf("choose the CPU of the thread: %v", err)
		}
	}
	return func() {
		if err := unix.SchedSetaffinity(0, &allowed); err != nil {
			t.Errorf("release the CPU of the thread: %v", err)
		}
		runtime.UnlockOSThread()
	}
}

// TestOwnWriteMarkDuringWrites checks that the mark of the writing task is set during the program's
// writes, and at no other time.
func TestOwnWriteMarkDuringWrites(t *testing.T) {
	own := newOwnWriteMarks(t)
	raw := newKernelMap(t, hashSpec(48, 176, 20000))
	k := openMap(t, raw, Options{OwnWriteMarks: own})
	byCall := openMap(t, raw, Options{OwnWriteMarks: own, NoProgram: true})

	var seen atomic.Bool
	watch := func(work func()) (marked map[uint64]bool) {
		marked = map[uint64]bool{}
		var quit atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			defer pinThread(t, 1)()
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
				t.Errorf("mark after the writes: got %#x on CPU %d, want 0", mark, cpu)
			}
		}
		return marked
	}

	defer pinThread(t, 0)() // one thread is one task
	marked := watch(func() {
		for until := time.Now().Add(2 * time.Minute); ; { // until both threads run at the same time
			for g := range 20 {
				put(t, k, 0, 20000, g)
			}
			if seen.Load() || runtime.NumCPU() == 1 || time.Now().After(until) {
				break
			}
		}
	})
	if runtime.NumCPU() > 1 && len(marked) != 1 {
		t.Errorf("marks during writes: got %v, want one", marked)
	}
	for mark := range marked {
		if mark < 1<<63 {
			t.Errorf("mark: got %#x, want a kernel address", mark)
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
		t.Errorf("marks during reads and bpf(2) writes: got %v, want none", marked)
	}
}

// TestWriterWaitsForMarkOfOtherThread checks that a writer writes nothing on a CPU while another
// syncd thread is in the middle of its writes there. The mark of that thread must stay valid.
func TestWriterWaitsForMarkOfOtherThread(t *testing.T) {
	own := newOwnWriteMarks(t)
	k := openMap(t, newKernelMap(t, hashSpec(8, 8, 100)), Options{OwnWriteMarks: own})
	const other = 0xffff888000001000
	setMarks(t, own, bpf.AccessOwnMark{Task: other, Runs: 1})
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() { defer done.Store(true); put(t, k, 0, 100, 1) })
	poll.Stays(t, 50*time.Millisecond, "the map is empty, and all CPUs have the mark of the other thread", func() bool {
		for _, mark := range marks(t, own) {
			if mark != other {
				return false
			}
		}
		return len(content(t, k)) == 0
	}, func() any { return fmt.Sprintf("%d entries, marks %#x", len(content(t, k)), marks(t, own)) })
	// Repeated, because one reset may fall between the count of a run and its end.
	poll.Eventually(t, "the writer ends", func() bool { setMarks(t, own, bpf.AccessOwnMark{}); return done.Load() })
	wg.Wait()
	checkContent(t, k, 0, 100, 1)
}

// TestMapsShareOwnWriteMarks writes the maps of one syncd concurrently with one array of marks. If
// the writer is not an iterator, some kernels may preempt these test runs.
func TestMapsShareOwnWriteMarks(t *testing.T) {
	own := newOwnWriteMarks(t)
	var wg sync.WaitGroup
	var maps []*Map
	for range 4 {
		maps = append(maps, openMap(t, newKernelMap(t, hashSpec(48, 176, 5000)), Options{OwnWriteMarks: own}))
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
			t.Errorf("mark after the writes: got %#x on CPU %d, want 0", mark, cpu)
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
				t.Errorf("read by %s: got %d calls, error %v, want 10 calls and the error of fn",
					k.accessMethods.Read, n, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := k.ForEach(ctx, func(_, _ []byte) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("read by %s with cancelled context: got %v, want context.Canceled",
					k.accessMethods.Read, err)
			}
		}
	}
}

func TestUseAfterClose(t *testing.T) {
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
			t.Error("Add after Close: got no error, want an error")
		}
		if _, err := k.Apply(b); err == nil {
			t.Error("Apply after Close: got no error, want an error")
		}
		if err := k.ForEach(t.Context(), func(_, _ []byte) error { return nil }); err == nil {
			t.Error("ForEach after Close: got no error, want an error")
		}
		key, _ := entry(1, 1, 8, 8)
		if err := k.Lookup(key, func(int, []byte, []byte, bool) {}); err == nil {
			t.Error("Lookup after Close: got no error, want an error")
		}
	}
}

// TestCloseReleasesDescriptors checks that Close releases all descriptors of an opened map.
func TestCloseReleasesDescriptors(t *testing.T) {
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
		if i == 0 { // excludes descriptors that the process opens only once
			before = count()
		}
	}
	if after := count(); after != before {
		t.Errorf("open descriptors: got %d, want %d", after, before)
	}
}

func TestProbe(t *testing.T) {
	f := Probe()
	if err := f.Err(); err != nil {
		t.Error(err)
	}
	for _, x := range f {
		if x.Err != nil || x.Name == "" || x.Purpose == "" {
			t.Errorf("feature: got %+v, want a name, a purpose and no error", x)
		}
	}
}
