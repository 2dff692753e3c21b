package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

const (
	// victim is the number of the daemon that restarts.
	victim = 3
	// freshCount is the number of entries that the load balancer of the victim writes while syncd is stopped.
	freshCount = 100
)

// falseFullSync is an attack of a member on a daemon that restarts: its entries are not adopted yet, so that the member is
// requested to send the records of all nodes.
type falseFullSync struct {
	// operation is what the member sends in the full sync for each entry of the daemons.
	operation mapsyncv1.Operation
	// named returns the owner that the member names for the entries of a daemon, as an index into the owners of the
	// cluster.
	named func(daemon int) uint32
	// earlier also sends records in the name of the victim's incarnation before the restart, after the full sync. They
	// are older than the restart.
	earlier bool
	// leaves has the member leave the cluster after the restart.
	leaves bool
}

// run attacks until the context ends.
func (a *falseFullSync) run(ctx context.Context, c *cluster) error {
	self := versionAt(0)
	owners, err := c.owners(ctx, self)
	if err != nil {
		return err
	}
	n := c.nodes[victim-1]
	var fresh atomic.Pointer[[][keySize]byte] // nil until the restart
	var f fingerprints
	var running sync.WaitGroup
	defer running.Wait()
	digests := falseAnswer{}
	e, err := c.joinAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
		if keys := fresh.Load(); keys != nil && o.To == n.name {
			if err := a.send(ctx, c, o, owners, *keys); err != nil {
				return err
			}
		}
		return digests.sendDigests(ctx, c, o, &f)
	}, func(o *hostile.OutboundMap, r *mapsyncv1.SubscribeRequest) {
		if r.GetResend() != nil && r.GetResend().GetMap() == o.Index { // the member has no record
			_ = o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: o.Index}}})
		}
	})
	if err != nil {
		return err
	}
	closeMember := sync.OnceFunc(e.Close)
	defer closeMember()
	running.Go(func() { f.read(ctx, c, self) })
	err = eventually(ctx, 5*time.Second, func() error {
		if e.Subscriptions() < int64(len(c.nodes)) {
			return errNoSubscriber
		}
		return nil
	})
	if err != nil {
		return err
	}
	n.stop()
	keys, err := n.writeFresh(freshCount)
	if err != nil {
		return err
	}
	fresh.Store(&keys)
	running.Go(func() { c.callAsMallory(ctx, n, self) })
	if err := n.start(ctx); err != nil {
		return err
	}
	if a.leaves && sleep(ctx, 4*time.Second) {
		closeMember()
	}
	<-ctx.Done()
	if e.Subscriptions() <= int64(len(c.nodes)) {
		return errNoSubscriber
	}
	return nil
}

// callAsMallory opens a stream to a daemon as soon as it answers. The daemon then subscribes to mallory as early as it can.
func (c *cluster) callAsMallory(ctx context.Context, n *node, incarnation uint64) {
	for sleep(ctx, time.Millisecond) {
		s, err := c.receiveAsMallory(ctx, n, incarnation)
		if err != nil {
			continue
		}
		_, err = s.Recv()
		time.AfterFunc(time.Second, s.close)
		if err == nil {
			return
		}
	}
}

// send sends the full sync to the victim, and records in the name of its earlier incarnation.
func (a *falseFullSync) send(ctx context.Context, c *cluster, o *hostile.OutboundMap, owners []*mapsyncv1.Incarnation, fresh [][keySize]byte) error {
	deltas := c.entryDeltas(a.operation, versionAt(0), a.named)
	for _, key := range fresh {
		deltas = append(deltas, makeDelta(a.operation, key, a.named(victim-1), versionAt(0)))
	}
	if err := o.Batch(owners, deltas, true); err != nil || !a.earlier {
		return err
	}
	restarted := versionAt(-2 * time.Second)
	// Before the victim has adopted its entries, such records make it send the entries as its own.
	for sleep(ctx, 2500*time.Millisecond) {
		deltas := c.entryDeltas(mapsyncv1.Operation_OPERATION_UPDATE, restarted, func(int) uint32 { return victim - 1 })
		for _, key := range fresh {
			deltas = append(deltas, updateDelta(key, victim-1, restarted))
		}
		if err := o.Batch(owners, deltas, true); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// liveOwner names the next daemon for the entries of a daemon.
func liveOwner(daemon int) uint32 { return uint32(daemon+1) % victim }

// itself names the member.
func itself(int) uint32 { return victim }

// restartAttacks returns the attacks on a daemon that restarts, and those of a relay and by tombstones. A daemon that restarts
// needs others without the names that an earlier attack has invented: gossip detects for minutes that these are dead, and the
// death of the member after them.
func restartAttacks() []attack {
	of := func(name string, a falseFullSync) attack {
		return attack{name: name, by: byMember, length: 12 * time.Second, trace: falseDigestsTrace, restartedNode: victim, run: a.run}
	}
	update, remove := mapsyncv1.Operation_OPERATION_UPDATE, mapsyncv1.Operation_OPERATION_DELETE
	unsent := mapsyncv1.Operation_OPERATION_UNSENT
	restarts := []attack{
		of("member: a restart, foreign records", falseFullSync{operation: update, named: ownerOfEntry}),
		of("member: a restart, foreign deletes", falseFullSync{operation: remove, named: ownerOfEntry}),
		of("member: a restart, another live owner", falseFullSync{operation: update, named: liveOwner}),
		of("member: a restart, names another owner", falseFullSync{operation: unsent, named: liveOwner, earlier: true}),
		of("member: a restart, names itself", falseFullSync{operation: unsent, named: itself, leaves: true}),
		of("member: a restart, the last incarnation", falseFullSync{operation: update, named: ownerOfEntry, earlier: true}),
	}
	restarts[0].newDaemons = true // the others find the owners that those before have left
	return slices.Concat(restarts, []attack{
		{name: "member: relay of a node, foreign records", by: byMember, length: 8 * time.Second, trace: recordsRefusedTrace, run: relayForOthers(update)},
		{name: "member: relay of a node, foreign deletes", by: byMember, length: 8 * time.Second, trace: recordsRefusedTrace, run: relayForOthers(remove)},
		{name: "member: tombstones of all kinds of owners", by: byMember, length: 10 * time.Second, trace: recordsRefusedTrace, run: floodTombstones},
	})
}
