package main

import (
	"errors"
	"fmt"
	"time"
)

// The limits of memory: a multiple of the size of the live records, and a fixed part for everything
// else.
const (
	recordBytes = keySize + valueSize + 80 // of a live record, with its share of the index
	liveFactor  = 2
	fixedBytes  = 256 << 20
	// Memory is flat if the maximum after the first third of the time since the warm-up exceeds the
	// maximum in that third by at most this much.
	flatFactor = 1.1
	flatBytes  = 16 << 20
)

// check returns an error for each violated limit.
func (r *report) check() error {
	if want := sessionsAfter(r.options.duration, r.options.rate) * 9 / 10; r.sessions < want {
		return fmt.Errorf("soak: %d sessions in %s, want %d: the machine is too slow", r.sessions, r.took.Round(time.Second), want)
	}
	var errs []error
	for i := range r.start {
		errs = append(errs, r.checkMemory(i), r.checkUsage(i))
	}
	return errors.Join(errs...)
}

func (r *report) checkUsage(node int) error {
	start, end := r.start[node], r.end[node]
	if end.Goroutines > start.Goroutines || end.Descriptors > start.Descriptors {
		return fmt.Errorf("n%d: %d goroutines and %d descriptors at the end, %d and %d at the start",
			node+1, end.Goroutines, end.Descriptors, start.Goroutines, start.Descriptors)
	}
	return nil
}

// checkMemory checks a daemon's memory in all samples.
func (r *report) checkMemory(node int) error {
	warmUpEnd := min(r.options.warmUp, r.options.duration/3)
	early := warmUpEnd + (r.options.duration-warmUpEnd)/3
	var first, later uint64
	for i := range r.samples {
		s := &r.samples[i]
		n := &s.nodes[node]
		if bound := uint64(liveFactor*n.live*recordBytes) + fixedBytes; n.RSS == 0 || n.RSS > bound {
			return fmt.Errorf("n%d after %s: %d MiB, want at most %d MiB with %d live records and %d tombstones",
				node+1, s.at.Round(time.Second), n.RSS>>20, bound>>20, n.live, n.tombstones)
		}
		switch {
		case s.at < warmUpEnd:
		case s.at < early:
			first = max(first, n.RSS)
		default:
			later = max(later, n.RSS)
		}
	}
	if first == 0 || later == 0 {
		return fmt.Errorf("n%d: %d samples are not enough", node+1, len(r.samples))
	}
	if bound := uint64(flatFactor*float64(first)) + flatBytes; later > bound {
		return fmt.Errorf("n%d: memory is not flat: %d MiB until %s, then up to %d MiB", node+1, first>>20, early.Round(time.Second), later>>20)
	}
	return nil
}
