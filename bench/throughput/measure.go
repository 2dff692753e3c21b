package main

import (
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/schema"
)

// Sample is what something cost, by unit.
type Sample struct {
	Nanoseconds float64 `json:"ns"`
	Allocations float64 `json:"allocs"`
}

func (s *Sample) add(o Sample) {
	s.Nanoseconds += o.Nanoseconds
	s.Allocations += o.Allocations
}

// measure runs fn once and divides what it cost by n. Allocations are those of the
// whole process, so nothing else should be running.
func measure(n int, fn func() error) (Sample, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	err := fn()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return Sample{
		Nanoseconds: float64(took.Nanoseconds()) / float64(n),
		Allocations: float64(after.Mallocs-before.Mallocs) / float64(n),
	}, err
}

// median returns the sample in the middle by time.
func median(samples []Sample) Sample {
	slices.SortFunc(samples, func(a, b Sample) int {
		switch {
		case a.Nanoseconds < b.Nanoseconds:
			return -1
		case a.Nanoseconds > b.Nanoseconds:
			return 1
		}
		return 0
	})
	return samples[len(samples)/2]
}

// interleave runs all trials in turn, again and again, so that what disturbs the
// machine for a while disturbs them alike. It returns the median of each.
func interleave(rounds int, trials []func() (Sample, error)) ([]Sample, error) {
	all := make([][]Sample, len(trials))
	for range rounds {
		for i, run := range trials {
			s, err := run()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], s)
		}
	}
	medians := make([]Sample, len(trials))
	for i := range all {
		medians[i] = median(all[i])
	}
	return medians, nil
}

// cpuTime returns the processor time spent so far by this process, or by the
// calling thread (unix.RUSAGE_THREAD), in user and kernel mode.
func cpuTime(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		panic("read resource usage: " + err.Error()) // only a wrong argument fails
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns the bytes of live Go memory.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first leaves what pools still hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// wallClock turns the kernel's monotonic clock, which dates events, into wall time.
type wallClock struct {
	offset int64 // ns
}

func newWallClock() wallClock {
	return wallClock{time.Now().UnixNano() - monotonic()}
}

func (c wallClock) now() int64 { return monotonic() + c.offset }

// times says how the time stamps of entries relate to it.
func (c wallClock) times() schema.Times { return schema.Times{Ktime: c.offset, Boottime: c.offset} }

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("read CLOCK_MONOTONIC: " + err.Error()) // no Linux lacks it
	}
	return ts.Nano()
}
