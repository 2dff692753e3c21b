package capture_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
)

// TestWaitingCallsHideNoWrites: a task that waits in bpf(2) holds an instance of the hook's return probe until its call
// returns. Many such tasks must leave instances for the writes of another one.
func TestWaitingCallsHideNoWrites(t *testing.T) {
	const writes = 100
	tasks := max(10, 2*ebpf.MustPossibleCPU()) + 1 // one more than the instances that the kernel provides by default
	h := openHooks(t, capture.Options{Attach: capture.AttachKprobe})
	h.tap(t)
	m, id := newHash(t, ebpf.Hash, 8, 16, writes)
	h.watch(t, id, 8, 16)
	c := startControl(t, m)

	key, release := pageThatBlocks(t)
	value := make([]byte, 16)
	var threads []int
	var ended sync.WaitGroup
	for range tasks {
		started := make(chan int)
		ended.Go(func() {
			defer blockSignals(t)()
			started <- unix.Gettid()
			attr := struct {
				fd         uint64
				key, value uintptr
				flags      uint64
			}{uint64(m.FD()), key, uintptr(unsafe.Pointer(&value[0])), 0}
			_, _, _ = unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_ELEM, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		})
		threads = append(threads, <-started)
	}
	poll.Within(t, 3*poll.Limit, "the tasks wait in bpf(2)", func() bool { return waitInBPF(threads) == tasks },
		func() any { return fmt.Sprintf("got %d of %d", waitInBPF(threads), tasks) })
	for _, thread := range threads { // as the Go runtime does at any time
		if err := unix.Tgkill(os.Getpid(), thread, unix.SIGURG); err != nil {
			t.Fatal(err)
		}
	}
	c.do(t, "update", 0, writes, 1)
	h.awaitEvents(t)
	if got := h.recorded(id); got != writes {
		t.Errorf("events while %d tasks wait in bpf(2): got %d, want %d", tasks, got, writes)
	}
	if got := waitInBPF(threads); got != tasks {
		t.Errorf("tasks that wait in bpf(2) after the writes: got %d, want %d", got, tasks)
	}
	release()
	ended.Wait()
	runtime.KeepAlive(value)
}

// blockSignals blocks the signals of the thread of this goroutine until unblock. A task with a pending signal does not wait at
// a page that blocks: the kernel repeats the access without end. It then uses a CPU, and its system call is "running".
func blockSignals(t *testing.T) (unblock func()) {
	runtime.LockOSThread()
	all := unix.Sigset_t{}
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	var before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &before); err != nil {
		t.Error(err)
	}
	return func() {
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	}
}

// TestUnprobedReturns: a call whose return was not probed leaves its frame behind. The return of a later
// write to another map, at the same place of the stack, must not report it.
func TestUnprobedReturns(t *testing.T) {
	h := openHooks(t, capture.Options{Attach: capture.AttachKprobe})
	h.tap(t)
	watched, id := newHash(t, ebpf.Hash, 8, 16, 1)
	unwatched, _ := newHash(t, ebpf.Hash, 8, 16, 1)
	h.watch(t, id, 8, 16)
	key, value := entry(8, 16, 0, 0)
	var programs []*dataplane.Program
	for _, m := range []*ebpf.Map{watched, unwatched} {
		p := openDataPlane(t, m, dataplane.Options{Capacity: 1, Endless: true})
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		programs = append(programs, p)
	}
	runtime.LockOSThread() // each thread has its own stack in the kernel
	defer runtime.UnlockOSThread()
	// The kernel may begin the stack of a system call at a random offset: repeat the runs.
	run := func(p *dataplane.Program) {
		onCPU(t, busyCPU, func() error {
			for range 2000 {
				if _, err := p.Run(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := h.DetachReturns(); err != nil {
		t.Fatal(err)
	}
	run(programs[0])
	if err := h.AttachReturn("htab_map_update_elem"); err != nil {
		t.Fatal(err)
	}
	run(programs[1])
	h.awaitEvents(t)
	if got := len(h.take(id)); got != 0 {
		t.Errorf("events of a map without writes: got %d, want 0", got)
	}
	run(programs[0])
	h.awaitEvents(t)
	if got := len(h.take(id)); got != 2000 {
		t.Errorf("events of 2000 writes: got %d, want 2000", got)
	}
}

// pageThatBlocks returns the address of memory whose access blocks in the kernel (userfaultfd) until release.
func pageThatBlocks(t *testing.T) (address uintptr, release func()) {
	t.Helper()
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Fatalf("userfaultfd: %v", errno)
	}
	closed := false
	release = func() {
		if !closed {
			closed = true
			_ = unix.Close(int(fd))
		}
	}
	t.Cleanup(release)
	// struct uffdio_api and struct uffdio_register of linux/userfaultfd.h
	api := [3]uint64{0xaa, 0, 0}
	address = uintptr(unsafe.Pointer(&page[0]))
	register := [4]uint64{uint64(address), uint64(len(page)), 1 /* UFFDIO_REGISTER_MODE_MISSING */, 0}
	for _, call := range []struct {
		request  uintptr
		argument unsafe.Pointer
	}{{0xc018aa3f, unsafe.Pointer(&api)}, {0xc020aa00, unsafe.Pointer(&register)}} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, call.request, uintptr(call.argument)); errno != 0 {
			t.Fatalf("ioctl %#x of userfaultfd: %v", call.request, errno)
		}
	}
	return address, release
}

// waitInBPF returns the number of threads of this process that wait in bpf(2).
func waitInBPF(threads []int) (n int) {
	for _, thread := range threads {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", thread))
		if strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_BPF, " ")) {
			n++
		}
	}
	return n
}

const kprobeEvents = "/sys/kernel/tracing/kprobe_events"

// TestTraceEventsOfKilledProcesses: a process that was killed leaves its trace events. The next process removes them, and
// keeps those of others that run.
func TestTraceEventsOfKilledProcesses(t *testing.T) {
	const other = "MAPSYNC_OPEN_KPROBES"
	if os.Getenv(other) != "" {
		openHooks(t, capture.Options{Attach: capture.AttachKprobe})
		return
	}
	needAttach(t, capture.AttachKprobe)
	others := traceEvents(t)
	openHooks(t, capture.Options{Attach: capture.AttachKprobe})
	own := slices.DeleteFunc(traceEvents(t), func(event string) bool { return slices.Contains(others, event) })
	if len(own) == 0 {
		t.Fatal("trace events: got none, want those of the hooks")
	}
	f, err := os.OpenFile(kprobeEvents, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("r8:mapsync_killed/left " + capture.BPFEntry); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	command.Env = append(os.Environ(), other+"=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("another process opens hooks: %v\n%s", err, out)
	}
	got := strings.Join(traceEvents(t), "")
	for _, event := range own {
		if !strings.Contains(got, event) {
			t.Errorf("trace events after another process: got %q, want %q in it", got, event)
		}
	}
	if strings.Contains(got, "mapsync_killed") {
		t.Errorf("trace events after another process: got %q, want none of the killed one", got)
	}
}

// TestLockOfStoppedProcess: another syncd was stopped while it held the lock of the trace events. Hooks are attached
// nevertheless, and events arrive while their statistics are read.
func TestLockOfStoppedProcess(t *testing.T) {
	needAttach(t, capture.AttachKprobe)
	f, err := os.Open(kprobeEvents)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	opened := make(chan *hookedCapture, 1)
	go func() { opened <- openHooks(t, capture.Options{Attach: capture.AttachKprobe}) }()
	select {
	case h := <-opened:
		testEventsArriveDuringStats(t, h)
	case <-time.After(poll.Lengthened(6 * poll.Limit)):
		t.Errorf("hooks while another process holds the lock: not open within %v", 6*poll.Limit)
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		<-opened
	}
}

// testEventsArriveDuringStats counts how often an event arrives that follows the arrival of another one, while the
// statistics are read all the time. The kernel may skip the event of a write.
func testEventsArriveDuringStats(t *testing.T, h *hookedCapture) {
	const want = 100
	h.tap(t)
	m, id := newHash(t, ebpf.Hash, 8, 16, 10)
	h.watch(t, id, 8, 16)
	c := startControl(t, m)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				h.Stats()
			}
		}
	})
	defer reader.Wait()
	defer close(stop)
	arrivals, last := 0, 0
	poll.Eventually(t, "events arrive one after the other while statistics are read", func() bool {
		if n := h.recorded(id); n > last {
			arrivals, last = arrivals+1, n
		}
		c.do(t, "update", 0, 1, 1)
		return arrivals >= want
	}, func() any { return fmt.Sprintf("got %d arrivals, want %d", arrivals, want) })
}

// traceEvents returns the trace events of syncd.
func traceEvents(t *testing.T) (events []string) {
	t.Helper()
	text, err := os.ReadFile(kprobeEvents)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, ":mapsync_") {
			events = append(events, line)
		}
	}
	return events
}

// TestWithoutTracefs: without tracefs, the hooks have the kernel's limit of waiting calls, and a message states it.
func TestWithoutTracefs(t *testing.T) {
	const inside = "MAPSYNC_WITHOUT_TRACEFS"
	if os.Getenv(inside) == "" {
		needAttach(t, capture.AttachKprobe)
		command := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
		command.Env = append(os.Environ(), inside+"=1")
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("in a mount namespace without tracefs: got %v, want a pass\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"/sys/kernel/debug/tracing", "/sys/kernel/tracing", "/sys/kernel/debug"} {
		_ = unix.Unmount(folder, unix.MNT_DETACH) // not all of them are mounted
	}
	var log strings.Builder
	h := openHooks(t, capture.Options{Attach: capture.AttachKprobe, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if text := log.String(); !strings.Contains(text, "many tasks wait in bpf(2)") || !strings.Contains(text, "hint=") {
		t.Errorf("log without tracefs: got %q, want the limit of waiting calls, and a hint", text)
	}
	if o := capture.Probe(capture.AttachKprobe)[0]; o.Err != nil || o.Limited == nil {
		t.Errorf("probe without tracefs: got error %v, limited %v, want kprobes that are limited", o.Err, o.Limited)
	}
	h.tap(t)
	m, id := newHash(t, ebpf.Hash, 8, 16, 10)
	h.watch(t, id, 8, 16)
	startControl(t, m).do(t, "update", 0, 10, 1)
	h.awaitEvents(t)
	if got := h.recorded(id); got != 10 {
		t.Errorf("events of writes: got %d, want 10", got)
	}
}
