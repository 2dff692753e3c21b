package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/replicate"
)

// catchUpTime is the longest time that a busy machine may take for the remaining work after the load. It is longer in an
// emulated machine, whose host has an unknown load.
func catchUpTime() time.Duration {
	if os.Getenv(inMachine) != "" {
		return 2 * time.Minute
	}
	return 30 * time.Second
}

// awaitCaughtUp waits until each node has received and written the changes of the others.
func (tr *trial) awaitCaughtUp() {
	tr.t.Helper()
	began := time.Now()
	tr.eventually(catchUpTime(), tr.checkCaughtUp)
	tr.t.Logf("caught up after %v", time.Since(began).Round(time.Millisecond))
}

// eventuallyAfterCatchUp is like eventually. The limit begins once the nodes have caught up, which depends on the load of
// the machine.
func (c *chaos) eventuallyAfterCatchUp(limit time.Duration, check func(context.Context) error) {
	c.t.Helper()
	c.awaitCaughtUp()
	c.eventually(limit, check)
}

// checkCaughtUp returns an error if a node has not received or not written all changes of the
// others.
func (tr *trial) checkCaughtUp(ctx context.Context) error {
	var errs []error
	for _, n := range tr.nodes {
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		if m := s.Maps[0]; len(s.Peers) != tr.peers() || unwritten(&m) > 0 || s.Capture.Losses.Open {
			errs = append(errs, fmt.Errorf("node %s has %d peers, %d entries to write, losses open: %v",
				n.name, len(s.Peers), unwritten(&m), s.Capture.Losses.Open))
		}
		for _, p := range s.Peers {
			if !tr.isIncompatible(p.Node) && (len(p.Maps) == 0 || p.Maps[0].State != string(replicate.StateCaughtUp)) {
				errs = append(errs, fmt.Errorf("node %s has not received all of %s", n.name, p.Node))
			}
		}
	}
	return errors.Join(errs...)
}

// unwritten returns how many entries of a table are still to be written. An LRU map without room keeps the
// entries of its own data plane and refuses others: these are not held, and wait for room.
func unwritten(m *daemon.MapStatus) int {
	if m.Type == "lru_hash" {
		return m.Pending - m.Failed
	}
	return m.Pending
}
