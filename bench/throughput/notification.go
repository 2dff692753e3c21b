package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mapsync/internal/injector"
	"mapsync/internal/tool"
	"mapsync/syncd/config"
)

// notificationRate is the load of the comparison, in changes per second. A scan finds the last change of an entry only, so
// that the entries are many times this number.
const notificationRate = 2000

// measureNotification compares the two ways to detect changes under equal load: events for each change, which an injector emits
// with the hooks' code, and scans
// (attach: none), with the default settings and with a scan every second.
func measureNotification(ctx context.Context, n int, limit time.Duration) (all []Latency, err error) {
	for _, way := range []struct {
		name   string
		bound  float64 // of p99, ms
		scans  bool
		change func(*config.Config)
	}{
		{"notification by an injector", 20, false, nil},
		{"scans every second", 0, true, func(c *config.Config) {
			c.ScanInterval, c.MaxScanInterval, c.ScanBudget = time.Second, time.Second, 100
		}},
		{"scans, default settings", 0, true, nil},
	} {
		tool.Progress("notification: %s", way.name)
		l, err := notificationLatency(ctx, n, limit, way.scans, way.change)
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", way.name, err)
		}
		l.Name, l.Bound = way.name, way.bound
		all = append(all, l)
	}
	return all, nil
}

func notificationLatency(ctx context.Context, n int, limit time.Duration, scans bool, change func(*config.Config)) (l Latency, err error) {
	p, err := startNodes(ctx, n, n, change)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	kind := latencyKind{"", 0, flowPollEvery, openEventsBy(injector.Options{SkipEvent: scans}, notificationRate)}
	return p.latency(ctx, kind, limit)
}
