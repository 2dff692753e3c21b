package daemon_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// TestCommandsWhilePeersReconnect runs every command of the control socket in a loop while the
// streams of a peer break. Each call must return, and the nodes must be in sync afterwards.
func TestCommandsWhilePeersReconnect(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	// The records from n1 to n2 pass a proxy that breaks streams.
	w := newFaultyProxy(t, loopback(3)+":7947", n1.config.GRPCListen)
	n1.config.GRPCAdvertise = w.l.Addr().String()
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, n := range []*node{n1, n2} {
		for _, command := range commands(n.client) {
			wg.Go(func() {
				for ctx.Err() == nil {
					once, stop := context.WithTimeout(ctx, 100*time.Millisecond)
					command(once)
					stop()
				}
			})
		}
	}
	for v := range uint64(40) {
		w.cut()
		n1.write(m1, 0, 100, 10+v)
		time.Sleep(50 * time.Millisecond) // the rate of broken connections
	}
	cancel()
	var returned atomic.Bool
	go func() { wg.Wait(); returned.Store(true) }()
	poll.Eventually(t, "all commands return", returned.Load)
	for _, n := range []*node{n1, n2} {
		if _, err := n.client.Undrain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n1.write(m1, 0, 500, 9)
	poll.Eventually(t, "both nodes are ready and in sync", func() bool {
		return n1.status().Ready && n2.status().Ready && holds(t, m2, 500, 9)
	})
}

// commands returns a call of each command of the control socket.
func commands(c *daemon.Client) []func(context.Context) {
	entries := func(watch bool) func(context.Context) {
		return func(ctx context.Context) {
			_ = c.Entries(ctx, "ct", daemon.EntryQuery{Watch: watch}, func(*daemon.Entry) error { return nil })
		}
	}
	return []func(context.Context){
		func(ctx context.Context) { _, _ = c.Status(ctx) },
		func(ctx context.Context) { _, _ = c.Ready(ctx) },
		func(ctx context.Context) { _, _ = c.Handover(ctx) },
		func(ctx context.Context) { _, _ = c.Drain(ctx, false) },
		func(ctx context.Context) { _, _ = c.Undrain(ctx) },
		func(ctx context.Context) { _ = c.Resync(ctx, "ct", func(*daemon.Resync) {}) },
		func(ctx context.Context) {
			_ = c.Diff(ctx, "ct", daemon.DiffQuery{}, func(*daemon.DiffEntry) error { return nil })
		},
		func(ctx context.Context) { _, _ = c.Forget(ctx, "n9", "", false) },
		func(ctx context.Context) { _, _ = c.Purge(ctx, "ct") },
		entries(false), entries(true),
	}
}
