package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// formerKeys replaces a load balancer's number in the keys of invented sessions.
const formerKeys = 92

// formerAttacks returns the attacks in the name of the incarnation of a node before its restart, which has ended.
func formerAttacks() []attack {
	of := func(name string, operation mapsyncv1.Operation, age time.Duration) attack {
		return attack{
			name: name, by: byMember, length: 14 * time.Second, newDaemons: age == 0, restartedNode: victim, trace: formerTrace,
			remedy: awaitNoInvented, run: inventFormer(operation, age),
		}
	}
	update, remove := mapsyncv1.Operation_OPERATION_UPDATE, mapsyncv1.Operation_OPERATION_DELETE
	return []attack{
		of("member: last incarnation, records of now", update, 0),
		of("member: last incarnation, deletes of now", remove, time.Second),
		of("member: last incarnation, before the restart", update, time.Minute),
		of("member: last incarnation, in the future", update, -50*time.Second),
	}
}

// formerTrace is that of rejected records, and of those that a member sends without end.
const formerTrace = recordsRefusedTrace + `|^mapsync_stream_deltas_total\{.*received`

// inventFormer returns an attack that restarts a daemon, waits until it has adopted its entries, and then sends each daemon records of
// an age in the name of the incarnation before the restart: for the sessions of all daemons, and for sessions that no one has.
func inventFormer(operation mapsyncv1.Operation, age time.Duration) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		self, n := versionAt(0), c.nodes[victim-1]
		before, err := n.status(ctx)
		if err != nil {
			return err
		}
		if err := n.restart(ctx); err != nil {
			return err
		}
		if err := c.awaitConverged(ctx); err != nil {
			return err
		}
		owners := []*mapsyncv1.Incarnation{{Node: n.name, Number: before.Incarnation}}
		most := 0
		err = c.sendAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
			for sleep(ctx, 200*time.Millisecond) {
				deltas := c.entryDeltas(operation, versionAt(-age), func(int) uint32 { return 0 })
				for flow := range uint32(entriesEach) {
					deltas = append(deltas, makeDelta(operation, entryKey(formerKeys, flow), 0, versionAt(-age)))
				}
				if err := o.Batch(owners, deltas, true); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
		for _, n := range c.nodes {
			if count, countErr := n.countKeys(formerKeys); countErr == nil {
				most = max(most, count)
			}
		}
		c.note(fmt.Sprintf("invented sessions in a map at the end: %d of %d", most, entriesEach))
		return err
	}
}

// countKeys returns the number of entries in this node's map with a number in place of a load balancer's one.
func (n *node) countKeys(number uint32) (count int, err error) {
	held, err := n.entries()
	for key := range held {
		if binary.BigEndian.Uint32(key[:]) == number {
			count++
		}
	}
	return count, err
}

// awaitNoInvented waits until no map has an invented session: the node in whose name they were sent has no such entry, and its map
// decides. No operator does anything.
func awaitNoInvented(ctx context.Context, c *cluster) error {
	begun := time.Now()
	defer func() { c.note(fmt.Sprintf("no invented session is left after %.1f s", time.Since(begun).Seconds())) }()
	return eventually(ctx, recovery, func() error {
		for _, n := range c.nodes {
			count, err := n.countKeys(formerKeys)
			if err != nil {
				return err
			}
			if count > 0 {
				return fmt.Errorf("map of %s has %d invented sessions", n.name, count)
			}
		}
		return nil
	})
}
