// Package latency measures how long the softirqs and timers of a host run. While one runs, its CPU handles no packets.
package latency

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"mapsync/bpf"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Probe measures from Open on. The caller closes it.
type Probe struct {
	objects bpf.LatencyObjects
	links   []link.Link
}

// Runs are the runs of a softirq or of a timer's function, on all CPUs.
type Runs struct {
	// Name is the name of the softirq, as in /proc/softirqs, or of the function.
	Name string
	Runs uint64
	// Total and Longest are durations. They include interrupts, and the hypervisor's pauses.
	Total, Longest time.Duration
	// CPU is the one with the longest run.
	CPU int
	// Late is the number of runs of 1 ms and more.
	Late uint64
}

// softirqNames are in the order of the numbers of softirqs, in include/linux/interrupt.h.
var softirqNames = [...]string{"HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"}

// Open attaches programs to the tracepoints of softirqs and timers. It needs the privileges to load tracing programs, and
// a kernel with BTF, 5.5 or later.
func Open() (_ *Probe, err error) {
	spec, err := bpf.LoadLatency()
	if err != nil {
		return nil, fmt.Errorf("read the programs that measure softirqs: %w", err)
	}
	bpf.NameMaps(spec)
	p := &Probe{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("load the programs that measure softirqs: %w", err)
	}
	o := &p.objects
	// The end of a run whose beginning was not seen does not count.
	for _, program := range []*ebpf.Program{o.SoftirqEntry, o.SoftirqExit, o.TimerEntry, o.TimerExit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return nil, fmt.Errorf("attach to the tracepoints of softirqs: %w", err)
		}
		p.links = append(p.links, l)
	}
	return p, nil
}

// Close ends the measurement.
func (p *Probe) Close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.links = nil
	return errors.Join(append(errs, p.objects.Close())...)
}

// Softirqs returns the softirqs that ran, the longest run first.
func (p *Probe) Softirqs() ([]Runs, error) {
	var list []Runs
	var number uint32
	var values []bpf.LatencyRunStats
	for entries := p.objects.Softirqs.Iterate(); ; {
		if !entries.Next(&number, &values) {
			if err := entries.Err(); err != nil {
				return nil, fmt.Errorf("read softirqs: %w", err)
			}
			return byLongest(list), nil
		}
		name := fmt.Sprint(number)
		if int(number) < len(softirqNames) {
			name = softirqNames[number]
		}
		list = append(list, sumOf(name, values))
	}
}

// Timers returns the functions of timers that ran, the longest run first. A function whose name is unknown has its
// address: the names need the permission to read the addresses of /proc/kallsyms.
func (p *Probe) Timers() ([]Runs, error) {
	var list []Runs
	var function uint64
	var values []bpf.LatencyRunStats
	names := functionNames()
	for entries := p.objects.Timers.Iterate(); ; {
		if !entries.Next(&function, &values) {
			// New functions may enter meanwhile.
			if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
				return nil, fmt.Errorf("read timers: %w", err)
			}
			return byLongest(list), nil
		}
		name, ok := names[function]
		if !ok {
			name = fmt.Sprintf("%#x", function)
		}
		list = append(list, sumOf(name, values))
	}
}

// sumOf adds the runs of all CPUs.
func sumOf(name string, cpus []bpf.LatencyRunStats) Runs {
	r := Runs{Name: name}
	for cpu, s := range cpus {
		r.Runs += s.Runs
		r.Total += time.Duration(s.Total)
		r.Late += s.Late
		if d := time.Duration(s.Longest); d > r.Longest {
			r.Longest, r.CPU = d, cpu
		}
	}
	return r
}

// byLongest sorts runs, and leaves out what did not run.
func byLongest(list []Runs) []Runs {
	list = slices.DeleteFunc(list, func(r Runs) bool { return r.Runs == 0 })
	slices.SortFunc(list, func(a, b Runs) int { return cmp.Or(cmp.Compare(b.Longest, a.Longest), cmp.Compare(a.Name, b.Name)) })
	return list
}
