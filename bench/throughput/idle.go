package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mapsync/syncd/daemon"
)

// idleBound is what a daemon may take of one core while nothing changes, in percent: 5 for
// its scans, which is the default of scan-budget, and 1 for all else.
const idleBound = 6

// idleRest is the time between the last change and the beginning of the measurement: new
// entries are read again for a while.
const idleRest = 10 * time.Second

// Idle is what a daemon costs while nothing changes, with default settings.
type Idle struct {
	Node    string  `json:"node"`
	Seconds float64 `json:"seconds"`
	// CPU is what it had of one core, in percent; Scans the part of it that went into
	// comparing the kernel map with the table.
	CPU      float64 `json:"cpu_percent"`
	Scans    float64 `json:"scans_cpu_percent"`
	ScanTime float64 `json:"scan_seconds"` // that one took
	// HeapPerEntry is the live Go memory of the process, all of it, and TablePerEntry
	// what its table accounts for, in bytes.
	HeapPerEntry  float64 `json:"heap_per_entry"`
	TablePerEntry float64 `json:"table_per_entry"`
}

// idles measures two daemons that hold n entries: one that found them in its map, and one
// that was told.
func idles(ctx context.Context, n int, limit time.Duration) (_ []Idle, err error) {
	p, err := startNodes(ctx, n, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	progress("idle: resting, then measuring for %s", limit)
	if err := pause(ctx, min(idleRest, limit)); err != nil {
		return nil, err
	}
	before, err := p.scans(ctx)
	if err != nil {
		return nil, err
	}
	a, b, err := p.cost(func() error { return pause(ctx, limit) })
	if err != nil {
		return nil, err
	}
	after, err := p.scans(ctx)
	if err != nil {
		return nil, err
	}
	var all []Idle
	for i, s := range []*syncd{p.a, p.b} {
		heap, err := s.heap()
		if err != nil {
			return nil, err
		}
		all = append(all, Idle{
			Node: []string{"found them in its map", "was told by a peer"}[i], Seconds: limit.Seconds(), CPU: []float64{a, b}[i],
			Scans:         100 * float64(after[i].Scan.Entries-before[i].Scan.Entries) / limit.Seconds() * perEntry(&after[i]),
			ScanTime:      after[i].Scan.Last,
			HeapPerEntry:  float64(heap) / float64(n),
			TablePerEntry: float64(after[i].Memory) / float64(n),
		})
		progress("  %s: %.2f %% of a core", all[i].Node, all[i].CPU)
	}
	return all, nil
}

// perEntry is the processor time that the last scan took for one entry, in seconds.
func perEntry(s *daemon.MapStatus) float64 {
	return s.Scan.Work / float64(max(1, s.Live))
}

// scans returns the status of each daemon's map.
func (p *nodes) scans(ctx context.Context) (maps [2]daemon.MapStatus, err error) {
	for i, s := range []*syncd{p.a, p.b} {
		status, err := s.Client.Status(ctx)
		if err != nil {
			return maps, err
		}
		if len(status.Maps) != 1 || status.Maps[0].Scan == nil {
			return maps, fmt.Errorf("ask %s about its scans: it has none", s.Config.NodeName)
		}
		maps[i] = status.Maps[0]
	}
	return maps, nil
}

// pause waits for a time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
