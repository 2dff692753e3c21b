package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
)

// Bounds of the processor use of a daemon while no entry changes, in percent of one core: 5 for scans that never
// become rare, which is the default of scan-budget, 1 for rare scans, and 1 for everything else.
const frequentScansBound, rareScansBound = 6, 2

// idleRest is the time between the last change and the start of the measurement: new entries are
// reread for a while.
const idleRest = 10 * time.Second

// Idle is the cost of a daemon with default settings while no entry changes.
type Idle struct {
	Kind    string  `json:"node"`
	Seconds float64 `json:"seconds"`
	// CPU is the processor use of the daemon, in percent of one core. Scans is the part of it that
	// compares the kernel map with the table. Bound is the limit of CPU.
	CPU   float64 `json:"cpu_percent"`
	Scans float64 `json:"scans_cpu_percent"`
	Bound float64 `json:"cpu_percent_bound"`
	// ScanTime is the duration of one scan, and ScanInterval the time from one to the next, in seconds.
	ScanTime     float64 `json:"scan_seconds"`
	ScanInterval float64 `json:"scan_interval_seconds"`
	// HeapPerEntry is the live Go memory of the whole process, in bytes per entry. TablePerEntry is
	// the part that its table accounts for.
	HeapPerEntry  float64 `json:"heap_per_entry"`
	TablePerEntry float64 `json:"table_per_entry"`
}

// measureIdle measures two daemons that hold n entries. The first one read them from its map at
// start. The second one received them from the first. It also measures a first daemon whose scans are rare: where hooks
// report all writes, with them, with changes in place found by scans and by the hook on lookups; elsewhere, with a
// scan-interval as long as theirs.
func measureIdle(ctx context.Context, n int, limit time.Duration) ([]Idle, error) {
	all, work, err := idleWithoutHooks(ctx, n, limit)
	if err != nil {
		return nil, err
	}
	if offer := capture.Probe(capture.AttachFexit)[0]; offer.Err != nil || !offer.DetectsAllWrites() {
		i, err := idleWithRareScans(ctx, n, limit, work)
		return append(all, i), err
	}
	for _, inPlace := range []string{config.InPlaceScan, config.InPlaceHook} {
		i, err := idleWithHooks(ctx, n, inPlace)
		if err != nil {
			return nil, fmt.Errorf("with hooks, in-place %s: %w", inPlace, err)
		}
		all = append(all, i)
	}
	return all, nil
}

// idleWithoutHooks measures both daemons for the duration limit. They scan their maps at the usual interval. work is the
// processor time of a scan.
func idleWithoutHooks(ctx context.Context, n int, limit time.Duration) (_ []Idle, work time.Duration, err error) {
	p, err := startNodes(ctx, n, n, nil)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	tool.Progress("idle: resting, then measuring for %s", limit)
	if err := tool.Pause(ctx, min(idleRest, limit)); err != nil {
		return nil, 0, err
	}
	idle, err := p.idle(ctx, limit)
	if err != nil {
		return nil, 0, err
	}
	for i, kind := range []string{"read them from its map at start", "received them from a peer"} {
		idle[i].Kind, idle[i].Bound = kind, frequentScansBound
		tool.Progress("  %s: %.2f %% of a core", kind, idle[i].CPU)
	}
	maps, err := p.scans(ctx)
	if err != nil {
		return nil, 0, err
	}
	return idle[:], time.Duration(maps[0].Scan.Work * float64(time.Second)), nil
}

// rareScans returns the settings of scans of an unchanged map.
func rareScans(c *config.Config) *kmap.ScannerOptions {
	return &kmap.ScannerOptions{Interval: c.ScanInterval, MaxInterval: c.LongestScanInterval(), MaxCostlyInterval: c.LongestCostlyScanInterval()}
}

// idleWithRareScans measures the first daemon without hooks during one interval between scans that is as long as with
// hooks. work is the processor time of a scan. If limit is shorter than that of a scan, it measures that time only.
func idleWithRareScans(ctx context.Context, n int, limit, work time.Duration) (_ Idle, err error) {
	c := config.Default()
	interval := rareScans(&c).IntervalAtRest(work)
	p, err := startNodes(ctx, n, n, func(c *config.Config) { c.ScanInterval = interval })
	if err != nil {
		return Idle{}, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	during := interval
	if limit < c.ScanInterval {
		during = limit
	}
	tool.Progress("idle: a scan every %s, measuring for %s", interval, during)
	// The scan begins one interval after the start, and has to end within the measurement.
	if err := tool.Pause(ctx, min(during, 3*idleRest)); err != nil {
		return Idle{}, err
	}
	idle, err := p.idle(ctx, during)
	if err != nil {
		return Idle{}, err
	}
	i := idle[0]
	i.Kind, i.Bound = fmt.Sprintf("scans every %s, as with hooks", interval), rareScansBound
	tool.Progress("  %s: %.2f %% of a core", i.Kind, i.CPU)
	return i, nil
}

// idleWithHooks measures the first daemon during one interval between scans, after they have become rare.
func idleWithHooks(ctx context.Context, n int, inPlace string) (_ Idle, err error) {
	p, err := startNodes(ctx, n, n, func(c *config.Config) {
		c.Attach, c.InPlace = string(capture.AttachFexit), []string{mapName + "=" + inPlace}
	})
	if err != nil {
		return Idle{}, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	tool.Progress("idle, fexit, in-place: %s: until scans are rare", inPlace)
	interval, err := p.awaitRareScans(ctx)
	if err != nil {
		return Idle{}, err
	}
	idle, err := p.idle(ctx, interval)
	if err != nil {
		return Idle{}, err
	}
	i := idle[0]
	i.Kind, i.Bound = "has hooks, in-place: "+inPlace, rareScansBound
	tool.Progress("  %s: %.2f %% of a core", i.Kind, i.CPU)
	return i, nil
}

// awaitRareScans returns the interval of the first daemon's scans once it no longer grows. It fails if that takes much
// longer than the interval.
func (p *nodes) awaitRareScans(ctx context.Context) (time.Duration, error) {
	o := rareScans(&p.a.Config)
	ctx, cancel := context.WithTimeout(ctx, 10*o.MaxCostlyInterval)
	defer cancel()
	for shown := 0.; ; {
		maps, err := p.scans(ctx)
		if err != nil {
			return 0, err
		}
		s := maps[0].Scan
		if interval := time.Duration(s.Interval * float64(time.Second)); s.Scans > 0 && interval >= o.IntervalAtRest(time.Duration(s.Work*float64(time.Second))) {
			return interval, nil
		}
		if s.Interval != shown {
			shown = s.Interval
			tool.Progress("  a scan every %.0f s", shown)
		}
		if err := tool.Pause(ctx, time.Second); err != nil {
			return 0, err
		}
	}
}

// idle measures both daemons for the duration limit.
func (p *nodes) idle(ctx context.Context, limit time.Duration) (all [2]Idle, err error) {
	before, err := p.scans(ctx)
	if err != nil {
		return all, err
	}
	a, b, err := p.cpuShares(func() error { return tool.Pause(ctx, limit) })
	if err != nil {
		return all, err
	}
	after, err := p.scans(ctx)
	if err != nil {
		return all, err
	}
	for i, s := range []*syncd{p.a, p.b} {
		heap, err := s.heap()
		if err != nil {
			return all, err
		}
		all[i] = Idle{
			Seconds: limit.Seconds(), CPU: []float64{a, b}[i],
			Scans:         100 * float64(after[i].Scan.Entries-before[i].Scan.Entries) / limit.Seconds() * perEntry(&after[i]),
			ScanTime:      after[i].Scan.Last,
			ScanInterval:  after[i].Scan.Interval,
			HeapPerEntry:  float64(heap) / float64(p.n),
			TablePerEntry: float64(after[i].Memory) / float64(p.n),
		}
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
