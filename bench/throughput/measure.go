package main

import (
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/schema"
)

// Sample is the cost of one unit of an operation.
type Sample struct {
	Nanoseconds float64 `json:"ns"`
	Allocations float64 `json:"allocs"`
}

func (s *Sample) add(o Sample) {
	s.Nanoseconds += o.Nanoseconds
	s.Allocations += o.Allocations
}

// measure runs fn once and divides its cost by n. Allocations are those of the whole process.
// Therefore no other work should run in this process.
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

// median returns the sample with the median time.
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

// interleave runs all trials in turn, for a number of rounds, so that a temporary disturbance of
// the machine affects all of them. It returns the median of each trial.
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

// cpuTime returns the processor time used so far by this process, or by the calling thread
// (unix.RUSAGE_THREAD), in user and kernel mode.
func cpuTime(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		panic("read resource usage: " + err.Error()) // fails only for an invalid argument
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns the bytes of live Go memory. It collects garbage.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // frees the objects that pools still hold after the first collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// wallClock converts the kernel's monotonic clock, which dates events, to wall time.
type wallClock struct {
	offset int64 // ns
}

func newWallClock() wallClock {
	return wallClock{time.Now().UnixNano() - monotonic()}
}

func (c wallClock) now() int64 { return monotonic() + c.offset }

// times returns the offsets of the time stamps in entries.
func (c wallClock) times() schema.Times { return schema.Times{Ktime: c.offset, Boottime: c.offset} }

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("read CLOCK_MONOTONIC: " + err.Error()) // every Linux kernel has this clock
	}
	return ts.Nano()
}
