package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"mapsync/syncd/daemon"
)

// checkInSync returns an error if the nodes' contents differ, or if nodes do not report that they
// are in sync.
func (c *chaos) checkInSync(ctx context.Context) error {
	return c.inSyncAnd(func(held content) error {
		if !c.plan.isContentKnown() {
			return nil
		}
		return c.checkWritten(ctx, held)
	})(ctx)
}

// releaseClears decides about detected clears as an operator would who knows that no load balancer has cleared its map. In these
// maps, most flows end within seconds, which looks like a clear.
func (c *chaos) releaseClears(ctx context.Context) error {
	for _, n := range c.nodes {
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		if clear := s.Maps[0].Clear; clear != nil {
			return errors.Join(n.post(ctx, "/release"), fmt.Errorf("clear of %d entries of node %s released", clear.Entries, n.name))
		}
	}
	return nil
}

// inSyncAnd returns a check that the nodes are in sync and that check accepts their common content.
func (c *chaos) inSyncAnd(check func(content) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := c.checkNodesInSync(ctx); err != nil {
			return err
		}
		if err := c.releaseClears(ctx); err != nil {
			return err
		}
		var held content // content of the first table, which all others equal
		for i, n := range c.nodes {
			table, err := n.content(ctx, "/table")
			if err != nil {
				return err
			}
			kernel, err := n.content(ctx, "/dump")
			if err != nil {
				return err
			}
			if i == 0 {
				held = table
			}
			err = difference(n.name+" table against that of "+c.nodes[0].name, held, table)
			if err == nil && c.plan.Map.LRU {
				table = intersect(table, kernel) // the kernel evicted the rest
				kernel, err = unexpired(ctx, n, kernel, table)
			}
			if err == nil {
				err = difference(n.name+" kernel map against its table", table, kernel)
			}
			if err != nil {
				return err
			}
		}
		return check(held)
	}
}

// checkWritten compares the nodes' entries for each data plane's own flows with the entries that
// this data plane wrote. The hostile member may add flows that have ended.
func (c *chaos) checkWritten(ctx context.Context, held content) error {
	for i, n := range c.nodes {
		want, err := n.content(ctx, "/expected")
		if err != nil {
			return err
		}
		var number [4]byte
		for key := range want {
			number = [4]byte([]byte(key[:4]))
			break
		}
		own := make(content)
		for key, value := range held {
			if _, goesOn := want[key]; !goesOn && isForged(value) {
				continue
			}
			if len(want) > 0 && [4]byte([]byte(key[:4])) == number {
				own[key] = value
			}
		}
		if c.plan.Map.LRU && c.plan.EvictionDeletes {
			want = intersect(want, own) // the rest was evicted, and therefore deleted
		}
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		switch {
		case c.plan.mayBeForged(i):
			dropForged(want, own)
		case s.Capture.Lost > 0:
			dropForgedWrites(want, own)
		}
		if err := difference("flows of "+n.name, want, own); err != nil {
			return errors.Join(err, c.explain(ctx, n, want, own))
		}
	}
	return nil
}

// dropForged removes the flows that a forged record may have changed, deleted or kept. While a node counts as
// gone, a record in the name of an earlier incarnation of another node makes that node the owner of a flow.
// The end of the flow then counts as the delete of a collector.
func dropForged(want, own content) {
	for key := range own {
		if _, goesOn := want[key]; !goesOn {
			delete(own, key)
		}
	}
	for key := range want {
		if value, ok := own[key]; !ok || isForged(value) {
			delete(want, key)
			delete(own, key)
		}
	}
}

// dropForgedWrites removes the flows of a node that have a forged value. While a flow has ended, the node accepts such a
// record, and writes it over the next write of its data plane. The event of that write was lost.
func dropForgedWrites(want, own content) {
	for key := range want {
		if value, ok := own[key]; ok && isForged(value) {
			delete(want, key)
			delete(own, key)
		}
	}
}

// explain returns an error with the owners of some entries that differ from the written ones.
func (c *chaos) explain(ctx context.Context, n *remote, want, own content) error {
	records, err := n.content(ctx, "/records")
	if err != nil {
		return err
	}
	var lines []error
	all := maps.Clone(own)
	maps.Copy(all, want)
	for key := range all {
		if want[key] != own[key] && len(lines) < 8 {
			lines = append(lines, fmt.Errorf("  %x: want %x, got %s", key[:8], head(want[key]), records[key]))
		}
	}
	return errors.Join(lines...)
}

// checkNodesInSync returns an error that lists the pairs of nodes whose comparisons do not show that they are in
// sync.
func (c *chaos) checkNodesInSync(ctx context.Context) error {
	all := make([]daemon.Status, len(c.nodes))
	positions := make(map[string]uint64)
	var errs []error
	for i, n := range c.nodes {
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		all[i] = s
		positions[s.Node] = s.Maps[0].Position
		if !s.Ready || len(s.Peers) != c.peers() {
			errs = append(errs, fmt.Errorf("node %s has %d peers, not ready: %v", s.Node, len(s.Peers), s.NotReady))
		}
		if m := s.Maps[0]; unwritten(&m) > 0 || s.Capture.Losses.Open {
			errs = append(errs, fmt.Errorf("node %s has %d entries to write, %d failed, losses open: %v",
				s.Node, unwritten(&m), m.Failed, s.Capture.Losses.Open))
		}
	}
	for _, s := range all {
		for _, p := range s.Peers {
			m := daemon.PeerMapStatus{State: "unknown"}
			if len(p.Maps) > 0 {
				m = p.Maps[0]
			}
			if c.isIncompatible(p.Node) {
				errs = append(errs, neverInSync(s.Node, p.Node, m.Agreed))
				continue
			}
			if !m.Agreed || m.Divergent != 0 || m.AgreedPosition < positions[p.Node] {
				errs = append(errs, fmt.Errorf("%s is not in sync with %s: agreed %v up to %d of %d, %d divergent, %s %s",
					s.Node, p.Node, m.Agreed, m.AgreedPosition, positions[p.Node], m.Divergent, m.State, cmp.Or(p.Error, m.Error)))
			}
		}
	}
	return errors.Join(errs...)
}
