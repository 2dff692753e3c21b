package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"mapsync/syncd/replicate"
)

// calmTime is how long an emulated machine may take for the work that the load left behind.
const calmTime = 2 * time.Minute

// settles is eventually. In an emulated machine the limit counts from the moment at which each
// node has received and written what the others have: how long that takes depends on the load of
// the host.
func (c *chaos) settles(limit time.Duration, check func(context.Context) error) {
	c.t.Helper()
	if os.Getenv(inMachine) != "" {
		c.calm()
	}
	c.eventually(limit, check)
}

func (c *chaos) calm() {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(500 * time.Millisecond) { // to ask costs time, too
		err := c.behind(c.t.Context())
		took := time.Since(began).Round(time.Millisecond)
		switch {
		case err == nil:
			c.t.Logf("calm after %v", took)
			return
		case took > calmTime:
			c.t.Fatalf("not calm within %v: %v", calmTime, err)
		}
	}
}

// behind returns an error if a node has not received or written what the others have.
func (c *chaos) behind(ctx context.Context) error {
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
			if !c.isMisfit(p.Node) && (len(p.Maps) == 0 || p.Maps[0].State != string(replicate.StateCaughtUp)) {
				errs = append(errs, fmt.Errorf("node %s has not received all of %s", n.name, p.Node))
			}
		}
	}
	return errors.Join(errs...)
}
