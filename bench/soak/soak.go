package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// soak runs the sessions against two daemons. The report is nil if the daemons could not be
// started. After another error the report has the results up to the error.
func soak(ctx context.Context, o options) (r *report, err error) {
	p, err := startPair(ctx, o)
	defer func() { err = errors.Join(err, p.close()) }()
	if err != nil {
		return nil, err
	}
	r = &report{options: o}
	if r.start, err = p.lowestUsage(ctx, nil); err != nil {
		return nil, err
	}
	if err := p.load(ctx, r); err != nil {
		return r, err
	}
	if err := p.awaitInSync(ctx); err != nil {
		return r, err
	}
	if r.end, err = p.lowestUsage(ctx, &r.start); err != nil {
		return r, err
	}
	return r, r.check()
}

// pair is two daemons and the sessions of the first daemon's load balancer.
type pair struct {
	maps     [2]*ebpf.Map
	nodes    [2]*syncd
	sessions *sessionLoad
}

func startPair(ctx context.Context, o options) (*pair, error) {
	p := new(pair)
	// Twice the average number of live entries: the rate of sessions varies.
	room := uint32(2*o.lifetime.Seconds()*float64(o.rate)) + 4*maxBatch
	for i := range p.maps {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: room})
		if err != nil {
			return p, fmt.Errorf("create map: %w", err)
		}
		p.maps[i] = m
		if p.nodes[i], err = startSyncd(i+1, m); err != nil {
			return p, err
		}
	}
	for _, s := range p.nodes {
		if err := s.awaitReady(ctx); err != nil {
			return p, err
		}
	}
	var err error
	p.sessions, err = newSessionLoad(p.maps[0], p.nodes[0].Shared)
	return p, err
}

// load runs the sessions and takes samples.
func (p *pair) load(ctx context.Context, r *report) error {
	loading, stop := context.WithTimeout(ctx, r.options.duration)
	defer stop()
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- p.sessions.run(loading, r.options.rate, r.options.lifetime) }()
	every := time.NewTicker(r.options.every)
	defer every.Stop()
	for {
		select {
		case err := <-done:
			r.sessions, r.took = p.sessions.created, time.Since(began)
			return errors.Join(err, ctx.Err())
		case <-every.C:
			s, err := p.sample(ctx, time.Since(began))
			if err != nil {
				stop()
				return errors.Join(err, <-done)
			}
			r.add(s)
		}
	}
}

// sample samples both daemons.
func (p *pair) sample(ctx context.Context, at time.Duration) (s sample, err error) {
	s.at = at
	for i, node := range p.nodes {
		if s.nodes[i].usage, err = node.usage(); err != nil {
			return s, err
		}
		status, err := node.Client.Status(ctx)
		if err != nil {
			return s, err
		}
		if len(status.Maps) != 1 {
			return s, fmt.Errorf("ask %s for its map: it has %d", node.Config.NodeName, len(status.Maps))
		}
		m := &status.Maps[0]
		s.nodes[i].live, s.nodes[i].tombstones, s.nodes[i].table = m.Live, m.Tombstones, m.Memory
		s.nodes[i].lost = status.Capture.Lost
	}
	return s, nil
}

// convergeTimeout is the longest time that the daemons may take to converge after the load.
const convergeTimeout = 3 * time.Minute

// awaitInSync returns after the kernel maps are equal and both daemons report that they are in
// sync.
func (p *pair) awaitInSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, convergeTimeout)
	defer cancel()
	for {
		_, err := sameContent(p.maps[0], p.maps[1])
		for _, node := range p.nodes {
			status, statusErr := node.Client.Status(ctx)
			err = errors.Join(err, statusErr)
			for _, peer := range status.Peers {
				for _, m := range peer.Maps {
					if !m.Agreed || m.Divergent != 0 {
						err = errors.Join(err, fmt.Errorf("%s: in sync with %s: %v, %d divergent entries", node.Config.NodeName, peer.Node, m.Agreed, m.Divergent))
					}
				}
			}
			if statusErr == nil && (len(status.Peers) != 1 || !status.Ready) {
				err = errors.Join(err, fmt.Errorf("%s: %d peers, not ready: %q", node.Config.NodeName, len(status.Peers), status.NotReady))
			}
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the nodes are in sync: %w", err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// lowestUsage returns the lowest usage of each node within 5 s: the numbers of connections and
// goroutines vary. With a bound it returns as soon as the lowest usage of both nodes is within the
// bound, at the latest after 30 s.
func (p *pair) lowestUsage(ctx context.Context, bound *[2]usage) (least [2]usage, err error) {
	looks := 20
	if bound != nil {
		looks = 120
	}
	for look := range looks {
		within := bound != nil
		for i, node := range p.nodes {
			u, err := node.usage()
			if err != nil {
				return least, err
			}
			if look == 0 {
				least[i] = u
			}
			least[i].Goroutines = min(least[i].Goroutines, u.Goroutines)
			least[i].Descriptors = min(least[i].Descriptors, u.Descriptors)
			within = within && least[i].Goroutines <= bound[i].Goroutines && least[i].Descriptors <= bound[i].Descriptors
		}
		if within {
			break
		}
		select {
		case <-ctx.Done():
			return least, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
	return least, nil
}

func (p *pair) close() error {
	var errs []error
	if p.sessions != nil {
		errs = append(errs, p.sessions.close())
	}
	for i := range p.nodes {
		if p.nodes[i] != nil {
			errs = append(errs, p.nodes[i].Close())
		}
		if p.maps[i] != nil {
			errs = append(errs, p.maps[i].Close())
		}
	}
	return errors.Join(errs...)
}
