package bpf

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// maxCalls is the number of calls of a function that a return probe can follow at a time. The kernel's default is the
// number of CPUs or 10. It suffices for functions in which no task sleeps.
const maxCalls = 1024

// probePrefix is the prefix of the groups of trace events that this package makes.
const probePrefix = "mapsync"

// ReturnProbeHint is the remedy for a limited return probe.
const ReturnProbeHint = "mount tracefs at /sys/kernel/tracing, and let syncd write kprobe_events"

var returnProbes sync.Mutex

// ReturnProbe attaches program to the returns of a kernel function in which tasks sleep, for example bpf(2). The kernel
// skips the return probe of a call while too many others have not returned. Only tracefs (trace_kprobe.c) raises the
// limit from the default of register_kretprobe. If it is unavailable, the link has the default limit, and limited is
// the reason. The caller closes the link.
func ReturnProbe(symbol string, program *ebpf.Program) (l link.Link, limited, err error) {
	returnProbes.Lock()
	defer returnProbes.Unlock()
	removeUnused()
	l, limited = link.Kretprobe(symbol, program, &link.KprobeOptions{RetprobeMaxActive: maxCalls, TraceFSPrefix: probePrefix})
	if limited == nil {
		return probeLink{l}, nil, nil
	}
	l, err = link.Kretprobe(symbol, program, nil)
	return l, limited, err
}

// probeLink is the link of a return probe with a trace event.
type probeLink struct{ link.Link }

// Close closes the link. The trace event of a link that is still pinned remains in use: removeUnused removes it later.
func (l probeLink) Close() error {
	if err := l.Link.Close(); !errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// removeUnused removes the trace events that their processes did not remove: they were killed, or the link was pinned.
func removeUnused() {
	for _, folder := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		path := folder + "/kprobe_events"
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, event := range eventsOf(string(text)) {
			// The kernel refuses to remove an event in use.
			_ = appendTo(path, "-:"+event)
		}
		return
	}
}

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
