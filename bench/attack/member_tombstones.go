package main

import (
	"context"
	"strconv"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// floodedTombstones is the number of tombstones that the flood sends to each daemon.
const floodedTombstones = 200_000

// floodTombstones sends tombstones in the names of live, departed and invented owners: for the entries of the load balancers,
// for keys that they use next, and for keys that they do not use. The tombstones of the departed owner are older than the
// entries: records of departed owners are accepted by version.
func floodTombstones(ctx context.Context, c *cluster) error {
	self := versionAt(0)
	owners, err := c.owners(ctx, self)
	if err != nil {
		return err
	}
	departed, err := c.join(ctx, attackers-2, hostile.Options{Name: accomplice, Incarnation: self})
	if err != nil {
		return err
	}
	sleep(ctx, 500*time.Millisecond)
	departed.Close()
	owners = append(owners, &mapsyncv1.Incarnation{Node: accomplice, Number: self})
	return c.sendAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
		return sendTombstones(ctx, c, o, owners)
	})
}

// sendTombstones sends the flood on one stream. owners are the daemons, mallory and the departed member.
func sendTombstones(ctx context.Context, c *cluster, o *hostile.OutboundMap, owners []*mapsyncv1.Incarnation) error {
	live, left := uint32(len(c.nodes)), uint32(len(owners)-1)
	next := func(i uint32) uint32 { return 1<<16 + uint32(c.nodes[i%live].version) } // see checkReplication
	for i := uint32(0); i < floodedTombstones && ctx.Err() == nil; {
		batch := append(owners[:len(owners):len(owners)], &mapsyncv1.Incarnation{Node: "owner-" + strconv.Itoa(int(i)), Number: versionAt(0)})
		invented := uint32(len(batch) - 1)
		var deltas []*mapsyncv1.Delta
		add := func(key [keySize]byte, owner uint32, version uint64) {
			deltas = append(deltas, deleteDelta(key, owner, version))
		}
		for range 100 {
			used := entryKey(1+i%live, i/live%entriesEach)
			add(used, i%live, versionAt(0))
			add(used, left, 1000)
			add(used, invented, versionAt(0))
			// The keys that checkReplication uses are among the next ones.
			for _, key := range [][keySize]byte{entryKey(1+i%live, next(i)+i/live%4096), entryKey(1+i%live, 1<<17), entryKey(90, i)} {
				add(key, []uint32{i % live, left, invented}[i/live%3], versionAt(0))
			}
			i++
		}
		if err := o.Batch(batch, deltas, true); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
