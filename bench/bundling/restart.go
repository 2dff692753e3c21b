package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"

	"mapsync/docs/examples/bundling/trace"
	"mapsync/internal/tool"
)

// The steps of a restart of the first node, under load: syncd ends, the tracer is killed, and both return.
const (
	stepTime  = time.Second
	crossRate = 50 // connections a second from the first node to the second one
)

// restart makes load on both nodes while the first one restarts. The observer, at the second node, has the sums of
// both in the end, without runs that the kernel has skipped. It returns the table of `syncd watch --cluster`, if the program is given.
func (c *cluster) restart(ctx context.Context, o *options) (table []byte, err error) {
	a, b := c.nodes[0], c.nodes[1]
	for _, n := range c.nodes {
		n.config.ScanInterval, n.config.MaxScanInterval = min(o.scanInterval, time.Second), min(o.scanInterval, time.Second)
		if _, err := n.startTracer(trace.Bundle); err != nil {
			return nil, err
		}
		if err := n.startSyncd(ctx); err != nil {
			return nil, err
		}
	}
	seen, err := c.observe(b)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, seen.close()) }()
	end, err := c.loadBoth(o)
	if err != nil {
		return nil, err
	}
	err = a.restartUnderLoad(ctx)
	if err == nil && o.syncd != "" {
		table, err = b.watch(ctx, o.syncd)
	}
	want, loadErr := end()
	if err := errors.Join(err, loadErr); err != nil {
		return table, err
	}
	w := want[a.name]
	want[a.name] = trace.Sums{Outgoing: sum(w.Outgoing, c.done.Outgoing), Incoming: sum(w.Incoming, c.done.Incoming)}
	missed := make(map[string]uint64)
	for _, n := range c.nodes {
		var r trace.Report // with the counters of the whole trace
		if err := n.stopTracer(&r); err != nil {
			return table, err
		}
		if missed[n.name] = r.Missed; r.Lost != 0 {
			return table, fmt.Errorf("tracer of node %s: got %d lost changes, want none", n.name, r.Lost)
		}
	}
	c.observed, err = awaitSums(ctx, seen, want, missed)
	for _, s := range c.observed {
		c.connections += s.Outgoing.Connections
	}
	return table, errors.Join(err, a.checkSums(ctx), b.checkSums(ctx))
}

// loadBoth begins load on both nodes, and from the first one to the second one. end waits for it and returns what the
// sockets of each node have done.
func (c *cluster) loadBoth(o *options) (end func() (map[string]trace.Sums, error), err error) {
	a, b := c.nodes[0], c.nodes[1]
	cross := &node{NS: a.NS}
	if cross.load, err = startChild(roleLoad, a.Start, fmt.Sprintf("127.0.0.1:%d", servicePort+1)); err != nil {
		return nil, err
	}
	if _, err := cross.load.line(); err != nil {
		return nil, err
	}
	var before, after [2]ends
	for i, n := range c.nodes {
		if err := n.load.ask("server", &before[i]); err != nil {
			return nil, err
		}
	}
	own := request{To: fmt.Sprintf("127.0.0.1:%d", servicePort), From: "127.1.0.1", Sources: 20, Rate: float64(o.rates[0]) / 10, Seconds: o.restartFor.Seconds()}
	between := own
	between.To, between.From, between.Sources, between.Rate = fmt.Sprintf("%s:%d", b.address, servicePort), a.address, 1, crossRate
	var running errgroup.Group
	var clients [3]result
	for i, n := range []*node{a, b, cross} {
		running.Go(func() (err error) {
			clients[i], err = n.makeLoad([]request{own, own, between}[i])
			return err
		})
	}
	return func() (map[string]trace.Sums, error) {
		err := errors.Join(running.Wait(), cross.load.kill())
		for i, n := range c.nodes {
			err = errors.Join(err, n.load.ask("server", &after[i]))
		}
		return map[string]trace.Sums{
			a.name: {Outgoing: sum(clients[0].Clients, clients[2].Clients), Incoming: difference(after[0], before[0])},
			b.name: {Outgoing: clients[1].Clients, Incoming: difference(after[1], before[1])},
		}, err
	}, nil
}

// restartUnderLoad stops syncd, kills the tracer, and starts both again.
func (n *node) restartUnderLoad(ctx context.Context) error {
	if err := tool.Pause(ctx, stepTime); err != nil {
		return err
	}
	if err := n.stopSyncd(); err != nil {
		return err
	}
	if err := tool.Pause(ctx, stepTime); err != nil {
		return err
	}
	if err := n.tracer.kill(); err != nil {
		return err
	}
	if err := tool.Pause(ctx, stepTime); err != nil {
		return err
	}
	first, err := n.startTracer(trace.Bundle)
	if err != nil {
		return err
	}
	tool.Progress("%s: %s", n.name, first)
	return n.startSyncd(ctx)
}

// watchLimit is the time in which `syncd watch` prints two tables.
const watchLimit = 15 * time.Second

// watch prints the sums of all nodes twice, as an operator would see them.
func (n *node) watch(ctx context.Context, syncd string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	table, err := n.output(exec.CommandContext(ctx, syncd, "watch", mapName, "--cluster", "--where", fmt.Sprintf("key.port=%d", servicePort),
		"--times", "2", "--interval", "1.5s", "--top", "6", "--control-socket", n.config.ControlSocket))
	if err != nil {
		return nil, fmt.Errorf("print the sums of all nodes: syncd watch within %s: %w\n%s", watchLimit, err, table)
	}
	return table, nil
}
