package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// nodeSample is a sample of one daemon.
type nodeSample struct {
	usage
	live, tombstones int
	table            uint64 // bytes that the table accounts for
	lost             uint64 // events lost since the start
}

// sample is a sample of both daemons at one time.
type sample struct {
	at    time.Duration
	nodes [2]nodeSample
}

// report is the result of a run.
type report struct {
	options    options
	start, end [2]usage
	samples    []sample
	sessions   uint64
	took       time.Duration
}

func (r *report) add(s sample) {
	r.samples = append(r.samples, s)
	fmt.Fprintln(os.Stderr, s.String())
}

// String returns a sample on one line.
func (s *sample) String() string {
	text := fmt.Sprintf("%8s", s.at.Round(time.Second))
	for i, n := range s.nodes {
		text += fmt.Sprintf("  n%d: %4d MiB, %d live, %d tombstones, table %d MiB, %d lost, %d goroutines, %d descriptors",
			i+1, n.RSS>>20, n.live, n.tombstones, n.table>>20, n.lost, n.Goroutines, n.Descriptors)
	}
	return text
}

func (r *report) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "%d sessions in %s, %.0f a second\n", r.sessions, r.took.Round(time.Second), float64(r.sessions)/max(r.took.Seconds(), 1))
	for i := range r.start {
		_, _ = fmt.Fprintf(w, "n%d: goroutines %d at the start, %d at the end; descriptors %d, %d\n",
			i+1, r.start[i].Goroutines, r.end[i].Goroutines, r.start[i].Descriptors, r.end[i].Descriptors)
	}
}
