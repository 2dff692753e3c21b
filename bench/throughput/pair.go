package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"mapsync/internal/injector"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"
)

// pair is two nodes in one process, and the injector that writes the map of the first.
type pair struct {
	n        int
	a, b     *node
	capture  *capture.Capture
	injector *injector.Injector
	profile  string

	ctx   context.Context // ends at the first failure
	group *errgroup.Group
	stop  context.CancelFunc
}

// openPair starts two nodes that replicate a map of up to n entries, and waits for the stream
// between them.
func openPair(ctx context.Context, n int, secure bool) (_ *pair, err error) {
	names := [2]string{"first", "second"}
	var security [2]*tls.Config
	if secure {
		if security, err = newTLS(names); err != nil {
			return nil, err
		}
	}
	clock := newWallClock()
	p := &pair{n: n}
	ctx, p.stop = context.WithCancel(ctx)
	p.group, p.ctx = errgroup.WithContext(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.a, err = newNode(names[0], n, clock, security[0]); err != nil {
		return nil, err
	}
	if p.b, err = newNode(names[1], n, clock, security[1]); err != nil {
		return nil, err
	}
	if p.capture, err = openCapture(clock); err != nil {
		return nil, err
	}
	if p.injector, err = injector.Open(p.a.kernel, p.capture.Maps(), injector.Options{Capacity: n}); err != nil {
		return nil, err
	}
	if err := watch(p.capture, p.a.kernel, p.a.table); err != nil {
		return nil, err
	}
	p.group.Go(func() error { return p.capture.Run(p.ctx) })
	p.a.start(p.ctx, p.group, p.b.peer())
	p.b.start(p.ctx, p.group, p.a.peer())
	return p, p.await(func() bool {
		first, _ := p.a.repl.InitialSyncDone()
		second, _ := p.b.repl.InitialSyncDone()
		return first && second
	})
}

func openCapture(clock wallClock) (*capture.Capture, error) {
	return capture.Open(capture.Options{
		Attach: capture.AttachNone, Buffer: capture.BufferRing, WallOffset: clock.offset,
		Logger: slog.New(slog.DiscardHandler),
	})
}

// await polls until done returns true. It fails after 20 s without progress.
func (p *pair) await(done func() bool) error {
	const patience = 20 * time.Second
	progress, since := uint64(0), time.Now()
	for !done() {
		select {
		case <-p.ctx.Done():
			return fmt.Errorf("wait for the nodes: %w", context.Cause(p.ctx))
		case <-time.After(time.Millisecond):
		}
		b := p.b.table.Stats()
		if now := b.Head + b.Applied + p.capture.Stats().Events; now != progress {
			progress, since = now, time.Now()
		} else if time.Since(since) > patience {
			return fmt.Errorf("wait for the nodes: nothing moved for %s (%s; %s)", patience, p.a.state(), p.b.state())
		}
	}
	return nil
}

// close stops the nodes and releases all resources.
func (p *pair) close() error {
	p.stop()
	errs := []error{p.group.Wait()}
	if p.injector != nil {
		errs = append(errs, p.injector.Close())
	}
	if p.capture != nil {
		errs = append(errs, p.capture.Close())
	}
	for _, d := range []*node{p.a, p.b} {
		if d != nil {
			errs = append(errs, d.close())
		}
	}
	return errors.Join(errs...)
}

// load puts all entries of a generation into the injector. The first generation is in their order.
// Later ones are shuffled, because connections do not change in the order of their creation.
func load(f *injector.Injector, n, generation int) {
	var k key
	var v value
	stride := 1
	if generation > 0 {
		stride = strideOf(n)
	}
	f.Reset()
	for at := range n {
		i := at * stride % n
		fillKey(k[:], i)
		fillValue(v[:], i, generation)
		f.Add(table.OpUpdate, table.ContextPacket, k[:], v[:])
	}
}

// strideOf returns a step that visits all numbers below n, with a large distance between two
// consecutive ones.
func strideOf(n int) int {
	stride := int(float64(n)*0.618) | 1
	for gcd(stride, n) > 1 {
		stride += 2
	}
	return stride
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
