package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"mapsync/syncd/replicate"
)

// catchUpTime is the longest time that an emulated machine may take for the remaining work after
// the load.
const catchUpTime = 2 * time.Minute

// eventuallyAfterCatchUp is like eventually. In an emulated machine the limit starts when each node
// has received and written the changes of the others. The time up to that point depends on the load
// of the host.
func (c *chaos) eventuallyAfterCatchUp(limit time.Duration, check func(context.Context) error) {
	c.t.Helper()
	if os.Getenv(inMachine) != "" {
		c.awaitCaughtUp()
	}
	c.eventually(limit, check)
}

func (c *chaos) awaitCaughtUp() {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(500 * time.Millisecond) { // the check takes time, too
		err := c.checkCaughtUp(c.t.Context())
		took := time.Since(began).Round(time.Millisecond)
		switch {
		case err == nil:
			c.t.Logf("caught up after %v", took)
			return
		case took > catchUpTime:
			c.t.Fatalf("catch up after the load: not within %v: %v", catchUpTime, err)
		}
	}
}

// checkCaughtUp returns an error if a node has not received or not written all changes of the
// others.
func (c *chaos) checkCaughtUp(ctx context.Context) error {
	var errs []error
	for _, n := range c.nodes {
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		if m := s.Maps[0]; len(s.Peers) != c.peers() || m.Pending > 0 || s.Capture.Losses.Open {
			errs = append(errs, fmt.Errorf("node %s sees %d peers, has %d entries to write, losses open: %v",
				n.name, len(s.Peers), m.Pending, s.Capture.Losses.Open))
		}
		for _, p := range s.Peers {
			if !c.isIncompatible(p.Node) && (len(p.Maps) == 0 || p.Maps[0].State != string(replicate.StateCaughtUp)) {
				errs = append(errs, fmt.Errorf("node %s has not received all of %s", n.name, p.Node))
			}
		}
	}
	return errors.Join(errs...)
}
