package drill

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"mapsync/bench/lb"
	benchprocess "mapsync/bench/process"
)

// startReports starts syncd without hooks on both nodes, and then replaces the active load balancer by one that reports its writes
// to it.
func (s *rateSyncd) startReports(ctx context.Context) error {
	r := s.run
	for i := range r.net.nodes {
		if err := s.startReporter(i); err != nil {
			return err
		}
	}
	if err := s.awaitReporters(ctx); err != nil {
		return err
	}
	if err := r.balancers[active].kill(); err != nil {
		return err
	}
	return r.startReportingBalancer(s.reports[active])
}

func (s *rateSyncd) startReporter(i int) error {
	r := s.run
	node, peer := r.net.nodes[i], r.net.nodes[1-i]
	m, err := r.openMap(i)
	if err != nil {
		return err
	}
	p, err := benchprocess.NewSyncd(i+1, lb.MapName, m)
	if err := errors.Join(err, m.Close()); err != nil {
		return err
	}
	s.reports[i] = p
	c := &p.Config
	c.NodeName, c.Join = node.name, []string{peer.sync + ":" + gossipPort}
	c.GossipListen, c.GRPCListen, c.MetricsListen = node.sync+":"+gossipPort, node.sync+":"+grpcPort, ""
	return p.Start(func(cmd *exec.Cmd) error {
		return node.ns.Do(func() error { return control.startOn(cmd) })
	})
}

// awaitReporters waits until both syncd are ready and connected.
func (s *rateSyncd) awaitReporters(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.run.opts.SyncTimeout)
	defer cancel()
	for _, p := range s.reports {
		for {
			status, err := p.Client.Status(ctx)
			if err == nil && status.Ready && len(status.Peers) == 1 && status.Peers[0].Sending && status.Peers[0].Receiving {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for syncd of %s: %w\n%s", p.Config.NodeName, ctx.Err(), p.Log.String())
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

// startReportingBalancer starts the active node's load balancer with its existing map and reports to a capture.
func (r *run) startReportingBalancer(to *benchprocess.Syncd) error {
	ids := make(map[string]uint32)
	for name, m := range to.Shared {
		id, err := benchprocess.MapID(m)
		if err != nil {
			return err
		}
		ids[name] = id
	}
	o := r.balancerConfig(active)
	o.Reports = ids
	var err error
	if r.balancers[active], err = startRole(r.net.nodes[active].ns, roleBalancer, command{Balancer: o}); err != nil {
		return err
	}
	_, err = r.balancers[active].ready()
	return err
}
