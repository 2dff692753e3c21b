package bpf

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ReturnProbeCalls is the number of calls of a function that a return probe can follow at a time. The kernel's default is the
// larger of 10 and twice the number of CPUs. On a kernel without preemption before 6.2, it is the number of CPUs. The
// default suffices for functions in which no task sleeps.
const ReturnProbeCalls = 1024

// probePrefix is the prefix of the groups of trace events that this package makes.
const probePrefix = "mapsync"

// ReturnProbeHint is the remedy for a limited return probe.
const ReturnProbeHint = "mount tracefs at /sys/kernel/tracing, and let syncd write kprobe_events"

// ReturnProbe attaches program to the returns of a kernel function in which tasks sleep, for example bpf(2). The kernel
// skips the return probe of a call while too many others have not returned. Only tracefs (trace_kprobe.c) raises the
// limit from the default of register_kretprobe. If it is unavailable, the link has the default limit, and limited is
// the reason. The caller closes the link.
func ReturnProbe(symbol string, program *ebpf.Program) (l link.Link, limited, err error) {
	defer lockEvents()()
	removeUnused()
	l, limited = link.Kretprobe(symbol, program, &link.KprobeOptions{RetprobeMaxActive: ReturnProbeCalls, TraceFSPrefix: probePrefix})
	if limited == nil {
		return newProbeLink(l), nil, nil
	}
	l, err = link.Kretprobe(symbol, program, nil)
	return l, limited, err
}

// probeLink is the link of a return probe with a trace event. The kernel reads its list of events without a lock in
// Info, so that all uses of the list by syncd exclude each other.
type probeLink struct {
	link.Link

	mu     sync.Mutex // protects the fields below
	info   *link.Info // the last result of Info
	readAt time.Time  // when info was read
}

// newProbeLink reads the first result of Info. The caller has the lock of the trace events.
func newProbeLink(l link.Link) *probeLink {
	p := &probeLink{Link: l}
	_, _ = p.read() // Info repeats it after an error
	return p
}

// infoLimit is the age from which Info does not return an earlier result any more. It is above the time that the kernel
// needs to detach the hooks of a process with the lock of the trace events.
const infoLimit = 10 * time.Second

// Info does not wait. While another goroutine or process has the lock of the trace events, it returns the result of
// an earlier call. If that is older than infoLimit, the process with the lock is stopped and does not change the list:
// then Info reads without the lock.
func (l *probeLink) Info() (*link.Info, error) {
	unlock, locked := tryLockEvents()
	defer unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !locked && l.info != nil && time.Since(l.readAt) < infoLimit {
		return l.info, nil
	}
	return l.read()
}

// read keeps the result for Info. mu is held.
func (l *probeLink) read() (*link.Info, error) {
	info, err := l.Link.Info()
	if err == nil {
		l.info, l.readAt = info, time.Now()
	}
	return info, err
}

// Close closes the link. The trace event of a link that is still pinned remains in use: removeUnused removes it later.
func (l *probeLink) Close() error {
	defer lockEvents()()
	if err := l.Link.Close(); !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lockLimit is the longest wait for the lock of the trace events, which syncd holds for milliseconds. A process that was
// stopped meanwhile must not stop the others.
const lockLimit = time.Second

// lockEvents excludes other goroutines and other syncd processes of this host that use trace events, until unlock. A
// trace event is unused from its creation until its perf event is open.
func lockEvents() (unlock func()) {
	began := time.Now()
	unlock, locked := tryLockEvents()
	for !locked && time.Since(began) < lockLimit {
		time.Sleep(time.Millisecond)
		unlock, locked = tryLockEvents()
	}
	return unlock
}

// tryLockEvents is lockEvents without a wait. It returns false if another goroutine or process has the lock. Without
// tracefs there is nothing to lock.
func tryLockEvents() (unlock func(), locked bool) {
	f, err := os.Open(eventsPath())
	if err != nil {
		return func() {}, true
	}
	unlock = func() { _ = f.Close() } // which ends the lock
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		unlock()
		return func() {}, false
	}
	return unlock, true
}

// removeUnused removes the trace events that their processes did not remove: they were killed, or the link was pinned.
func removeUnused() {
	path := eventsPath()
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for _, event := range eventsOf(string(text)) {
		// The kernel refuses to remove an event in use.
		_ = appendTo(path, "-:"+event)
	}
}

// eventsPath returns the path of kprobe_events in the first tracefs of this mount namespace, as package link does.
var eventsPath = sync.OnceValue(func() string {
	folder := "/sys/kernel/tracing"
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		// ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS… - TYPE …
		mount, filesystem, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(mount); len(fields) > 4 && fields[3] == "/" && strings.HasPrefix(filesystem, "tracefs ") {
			folder = fields[4]
			break
		}
	}
	return folder + "/kprobe_events"
})

// eventsOf returns the events of this package in text, which has the form of kprobe_events: a line
// "r1024:group/event function" for each event.
func eventsOf(text string) (events []string) {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(line, ":")
		event, _, _ := strings.Cut(rest, " ")
		if strings.HasPrefix(event, probePrefix+"_") {
			events = append(events, event)
		}
	}
	return events
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}
