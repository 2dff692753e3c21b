package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// stopLimit is the longest time of a clean stop of a daemon.
const stopLimit = 30 * time.Second

// restartAll stops all daemons cleanly and starts them again. They then restore their records.
func (c *cluster) restartAll(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.process.Load().Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop %s: %w", n.name, err)
		}
	}
	var errs []error
	for _, n := range c.nodes {
		select {
		case <-n.exited:
		case <-time.After(stopLimit):
			errs = append(errs, fmt.Errorf("%s has not ended within %s", n.name, stopLimit))
		}
	}
	for _, n := range c.nodes {
		errs = append(errs, n.start(ctx))
	}
	return errors.Join(append(errs, c.awaitConverged(ctx))...)
}

// forgeRestored returns an attack on daemons that have restored all records. A member repeatedly sends each daemon a newer
// restored record for each entry of the load balancers, in the name of an earlier incarnation of that daemon.
func forgeRestored(operation mapsyncv1.Operation) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		self := versionAt(0)
		owners, err := c.owners(ctx, self)
		if err != nil {
			return err
		}
		for _, o := range owners[:len(c.nodes)] {
			o.Number--
		}
		return c.sendAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
			for sleep(ctx, 200*time.Millisecond) {
				for i, n := range c.nodes {
					if n.name != o.To {
						continue
					}
					version := versionAt(0) - uint64(table.RestoredVersions-table.AdoptedVersion-1)
					if err := o.Batch(owners, c.entryDeltas(operation, version, func(int) uint32 { return uint32(i) }), true); err != nil {
						return err
					}
				}
			}
			return ctx.Err()
		})
	}
}

// restoredAttacks returns the attacks on daemons that were all stopped.
func restoredAttacks() []attack {
	update, remove := mapsyncv1.Operation_OPERATION_UPDATE, mapsyncv1.Operation_OPERATION_DELETE
	return []attack{
		{name: "member: restored records, earlier incarnations", by: byMember, restored: true, newDaemons: true, length: 6 * time.Second, trace: recordsRefusedTrace, run: forgeRestored(update)},
		{name: "member: restored deletes, earlier incarnations", by: byMember, restored: true, length: 6 * time.Second, trace: recordsRefusedTrace, run: forgeRestored(remove)},
	}
}
