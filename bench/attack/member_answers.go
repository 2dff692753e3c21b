package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/daemon"
)

// falseAnswer is an attack of a member that makes daemons request records again, by digests that differ, and
// answers with records of other nodes.
type falseAnswer struct {
	// ofOthers also sends false digests of the daemons and of orphaned records.
	ofOthers bool
	// sources claims that the member receives the map from all daemons.
	sources bool
	// operation is what the member sends for each entry of the daemons.
	operation mapsyncv1.Operation
	// requested marks the answer as requested records instead of resent ones.
	requested bool
	// commands has operators run syncd diff and syncd resync on all daemons meanwhile. The member also sends its records in
	// each full sync.
	commands bool
}

// fingerprints are those of the digests of a daemon.
type fingerprints struct {
	mu                  sync.Mutex
	key, scope, members uint64
}

// read takes the fingerprints of the digests that a daemon sends, until the context ends.
func (f *fingerprints) read(ctx context.Context, c *cluster, incarnation uint64) {
	for ctx.Err() == nil {
		s, err := c.receiveAsMallory(ctx, c.nodes[0], incarnation)
		if err != nil {
			sleep(ctx, 100*time.Millisecond)
			continue // refused, or the time has passed
		}
		stop := context.AfterFunc(ctx, s.close)
		s.subscribeMap(replicaSubscription(1))
		_ = receiveAll(s, func(m *mapsyncv1.SubscribeResponse) { // ends with the context
			if d := m.GetDigest(); d != nil {
				f.mu.Lock()
				f.key, f.scope, f.members = d.GetKeyFingerprint(), d.GetScopeFingerprint(), d.GetMembersFingerprint()
				f.mu.Unlock()
			}
		})
		stop()
		s.close()
	}
}

// run attacks until the context ends.
func (a *falseAnswer) run(ctx context.Context, c *cluster) error {
	self := versionAt(0)
	owners, err := c.owners(ctx, self)
	if err != nil {
		return err
	}
	var f fingerprints
	var running sync.WaitGroup
	defer running.Wait()
	e, err := c.joinAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
		if a.commands {
			if err := o.Batch(owners, c.entryDeltas(a.operation, versionAt(0), ownerOfEntry), false); err != nil {
				return err
			}
		}
		return a.sendDigests(ctx, c, o, &f)
	}, func(o *hostile.OutboundMap, r *mapsyncv1.SubscribeRequest) {
		if r.GetResend() != nil && r.GetResend().GetMap() == o.Index {
			_ = a.answer(c, o, owners) // the stream may have ended
		}
	})
	if err != nil {
		return err
	}
	defer e.Close()
	running.Go(func() { f.read(ctx, c, self) })
	if a.commands {
		for _, n := range c.nodes {
			running.Go(func() { n.runCommands(ctx) })
		}
	}
	<-ctx.Done()
	if e.Subscriptions() == 0 {
		return errNoSubscriber
	}
	return nil
}

// sendDigests sends false digests, each of them twice, so that the daemons confirm the difference.
func (a *falseAnswer) sendDigests(ctx context.Context, c *cluster, o *hostile.OutboundMap, f *fingerprints) error {
	if err := o.Batch(nil, nil, true); err != nil {
		return err
	}
	if a.sources {
		err := o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{
			Sources: &mapsyncv1.Sources{Map: o.Index, Nodes: c.names()},
		}})
		if err != nil {
			return err
		}
	}
	for i := 0; sleep(ctx, 250*time.Millisecond); i++ {
		// All buckets differ, by another sum every second.
		buckets := slices.Repeat([]byte{byte(i/4 + 1)}, 8<<10)
		digest := func(node string) *mapsyncv1.NodeDigest {
			return &mapsyncv1.NodeDigest{Node: node, Sum: uint64(i/4 + 1), VersionSum: uint64(i/4 + 1), Live: 3, Buckets: buckets}
		}
		f.mu.Lock()
		d := &mapsyncv1.Digest{
			Map: o.Index, Position: o.Position, KeyFingerprint: f.key, ScopeFingerprint: f.scope, MembersFingerprint: f.members,
			Nodes: []*mapsyncv1.NodeDigest{digest(mallory)},
		}
		f.mu.Unlock()
		if a.ofOthers {
			for _, name := range c.names() {
				d.Nodes = append(d.Nodes, digest(name))
			}
			d.Orphaned = digest("")
		}
		if err := o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: d}}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// runCommands runs syncd diff and syncd resync in turn, until the context ends. Neither can complete: the digests of the member
// stay false.
func (n *node) runCommands(ctx context.Context) {
	for sleep(ctx, 100*time.Millisecond) {
		limited, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		_ = n.client.Diff(limited, mapName, daemon.DiffQuery{}, func(*daemon.DiffEntry) error { return nil })
		cancel()
		limited, cancel = context.WithTimeout(ctx, 1500*time.Millisecond)
		_ = n.client.Resync(limited, mapName, func(*daemon.Resync) {})
		cancel()
	}
}

// makeDelta returns the delta of an operation.
func makeDelta(operation mapsyncv1.Operation, key [keySize]byte, owner uint32, version uint64) *mapsyncv1.Delta {
	d := deleteDelta(key, owner, version)
	if operation == mapsyncv1.Operation_OPERATION_UPDATE {
		d = updateDelta(key, owner, version)
	}
	d.Operation = operation
	return d
}

// ownerOfEntry returns the index of a daemon among the owners of a cluster.
func ownerOfEntry(daemon int) uint32 { return uint32(daemon) }

// entryDeltas returns a delta for each entry of the load balancers. owner returns the owner of a daemon's entries, as an index
// into the owners of the batch.
func (c *cluster) entryDeltas(operation mapsyncv1.Operation, version uint64, owner func(daemon int) uint32) (deltas []*mapsyncv1.Delta) {
	for i := range c.nodes {
		for flow := range uint32(entriesEach) {
			deltas = append(deltas, makeDelta(operation, entryKey(uint32(i+1), flow), owner(i), version))
		}
	}
	return deltas
}

// answer sends a record for each entry of the daemons, in the name of its owner.
func (a *falseAnswer) answer(c *cluster, o *hostile.OutboundMap, owners []*mapsyncv1.Incarnation) error {
	deltas := c.entryDeltas(a.operation, versionAt(0), ownerOfEntry)
	err := o.SendBatch(&mapsyncv1.Batch{
		Map: o.Index, Origin: o.Self(), PreviousPosition: o.Position, Position: o.Position,
		Owners: owners, Deltas: deltas, Resent: !a.requested, Requested: a.requested,
	})
	if err != nil {
		return err
	}
	return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{
		Resent: &mapsyncv1.Resent{Map: o.Index, Records: uint64(len(deltas))},
	}})
}

// falseDigestsTrace is the trace of a member whose digests stay false.
const falseDigestsTrace = `^mapsync_unexplained_repairs_total`

// answerAttacks returns the attacks by false digests and answers.
func answerAttacks() []attack {
	of := func(name string, a falseAnswer) attack {
		return attack{name: name, by: byMember, length: 8 * time.Second, trace: falseDigestsTrace, run: a.run}
	}
	update, remove, expire := mapsyncv1.Operation_OPERATION_UPDATE, mapsyncv1.Operation_OPERATION_DELETE, mapsyncv1.Operation_OPERATION_EXPIRE
	return []attack{
		of("member: false digests, foreign records", falseAnswer{operation: update}),
		of("member: false digests, foreign deletes", falseAnswer{operation: remove}),
		of("member: false digests, foreign expiries", falseAnswer{operation: expire}),
		of("member: false digests of other nodes", falseAnswer{ofOthers: true, operation: update}),
		of("member: false sources, foreign records", falseAnswer{sources: true, operation: update}),
		of("member: foreign records as requested", falseAnswer{requested: true, sources: true, operation: remove}),
		of("member: foreign records, diff and resync", falseAnswer{ofOthers: true, operation: update, commands: true}),
		of("member: foreign deletes, diff and resync", falseAnswer{ofOthers: true, operation: remove, commands: true}),
	}
}
