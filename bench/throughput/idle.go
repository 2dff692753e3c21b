package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mapsync/internal/tool"
	"mapsync/syncd/daemon"
)

// idleBound is the highest processor use of a daemon while no entry changes, in percent of one
// core: 5 for its scans, which is the default of scan-budget, and 1 for everything else.
const idleBound = 6

// idleRest is the time between the last change and the start of the measurement: new entries are
// reread for a while.
const idleRest = 10 * time.Second

// Idle is the cost of a daemon with default settings while no entry changes.
type Idle struct {
	Kind    string  `json:"node"`
	Seconds float64 `json:"seconds"`
	// CPU is the processor use of the daemon, in percent of one core. Scans is the part of it that
	// compares the kernel map with the table.
	CPU      float64 `json:"cpu_percent"`
	Scans    float64 `json:"scans_cpu_percent"`
	ScanTime float64 `json:"scan_seconds"` // duration of one scan
	// HeapPerEntry is the live Go memory of the whole process, in bytes per entry. TablePerEntry is
	// the part that its table accounts for.
	HeapPerEntry  float64 `json:"heap_per_entry"`
	TablePerEntry float64 `json:"table_per_entry"`
}

// measureIdle measures two daemons that hold n entries. The first one read them from its map at
// start. The second one received them from the first.
func measureIdle(ctx context.Context, n int, limit time.Duration) (_ []Idle, err error) {
	p, err := startNodes(ctx, n, n, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	tool.Progress("idle: resting, then measuring for %s", limit)
	if err := tool.Pause(ctx, min(idleRest, limit)); err != nil {
		return nil, err
	}
	before, err := p.scans(ctx)
	if err != nil {
		return nil, err
	}
	a, b, err := p.cpuShares(func() error { return tool.Pause(ctx, limit) })
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
			Kind: []string{"read them from its map at start", "received them from a peer"}[i], Seconds: limit.Seconds(), CPU: []float64{a, b}[i],
			Scans:         100 * float64(after[i].Scan.Entries-before[i].Scan.Entries) / limit.Seconds() * perEntry(&after[i]),
			ScanTime:      after[i].Scan.Last,
			HeapPerEntry:  float64(heap) / float64(n),
			TablePerEntry: float64(after[i].Memory) / float64(n),
		})
		tool.Progress("  %s: %.2f %% of a core", all[i].Kind, all[i].CPU)
	}
	return all, nil
}

// perEntry returns the processor time of the last scan per entry, in seconds.
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
