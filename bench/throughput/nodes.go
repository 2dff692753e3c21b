package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
)

// nodes are two whole daemons with typed maps, in separate processes. An injector in this process
// is the load balancer of the first daemon.
type nodes struct {
	n          int // entries that both hold
	mapA, mapB *ebpf.Map
	a, b       *syncd
}

// startNodes starts a daemon whose map holds n entries, then a daemon whose map is empty. It waits
// until both are ready. The maps have room for the given number of entries. change may change the
// settings of the first daemon.
func startNodes(ctx context.Context, n, room int, change func(*config.Config)) (_ *nodes, err error) {
	p, err := startFirst(ctx, n, room, change)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.mapB, err = newTypedMap("second", room); err != nil {
		return nil, err
	}
	if p.b, err = startSyncd(2, p.mapB, nil); err != nil {
		return nil, err
	}
	return p, errors.Join(p.b.awaitReady(ctx, 1), p.a.awaitReady(ctx, 1))
}

// startFirst starts only the first daemon.
func startFirst(ctx context.Context, n, room int, change func(*config.Config)) (_ *nodes, err error) {
	p := &nodes{n: n}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	tool.Progress("starting nodes of %d entries", n)
	if p.mapA, err = newTypedMap("first", room); err != nil {
		return nil, err
	}
	if err := batchUpdate(p.mapA, makeEntries(n)); err != nil {
		return nil, err
	}
	if p.a, err = startSyncd(1, p.mapA, change); err != nil {
		return nil, err
	}
	return p, p.a.awaitReady(ctx, 0)
}

// attachBy returns a change of the settings to an attach method.
func attachBy(attach capture.Attach) func(*config.Config) {
	return func(c *config.Config) { c.Attach = string(attach) }
}

// hookInPlace changes the settings to fexit, with the hook on lookups.
func hookInPlace(c *config.Config) {
	c.Attach, c.InPlace = string(capture.AttachFexit), []string{mapName + "=" + config.InPlaceHook}
}

// cpuShares returns the processor use of the two daemons while fn ran, in percent of one core.
func (p *nodes) cpuShares(fn func() error) (a, b float64, err error) {
	var used [2][2]time.Duration
	ask := func(at int) error {
		var errs [2]error
		used[at][0], errs[0] = p.a.cpu()
		used[at][1], errs[1] = p.b.cpu()
		return errors.Join(errs[:]...)
	}
	if err := ask(0); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	err = fn()
	took := time.Since(began)
	if err := errors.Join(err, ask(1)); err != nil {
		return 0, 0, err
	}
	share := func(i int) float64 { return 100 * float64(used[1][i]-used[0][i]) / float64(took) }
	return share(0), share(1), nil
}

func (p *nodes) close() error {
	errs := []error{p.b.close(), p.a.close()}
	for _, m := range []*ebpf.Map{p.mapA, p.mapB} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the nodes: %w", err)
	}
	return nil
}
