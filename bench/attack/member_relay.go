package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// accomplice is a second malicious member. Its name is in allowed-names.
const accomplice = "lb8"

// errNoRequest is returned if no daemon requested the records of the accomplice from mallory.
var errNoRequest = errors.New("no daemon uses the attacker as a relay, so that nothing was sent")

// relayForOthers returns an attack of a member that daemons use as the relay of one live node, from which they receive nothing.
// It sends records of other live nodes.
func relayForOthers(operation mapsyncv1.Operation) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		self := versionAt(0)
		owners, err := c.owners(ctx, self)
		if err != nil {
			return err
		}
		unreachable, err := c.join(ctx, attackers-2, hostile.Options{Name: accomplice, Incarnation: self, Unanswered: true})
		if err != nil {
			return err
		}
		defer unreachable.Close()
		r := &falseRelay{operation: operation, owners: owners}
		e, err := c.join(ctx, attackers-1, hostile.Options{
			Name: mallory, Incarnation: self, OwnerRequests: true, OnRequest: r.confirm,
			OnSubscribe: func(ctx context.Context, o *hostile.OutboundMap) error { return r.send(ctx, c, o) },
		})
		if err != nil {
			return err
		}
		defer e.Close()
		<-ctx.Done()
		if !r.requested.Load() {
			return errNoRequest
		}
		return nil
	}
}

// falseRelay is a relay that sends records which no daemon requested from it.
type falseRelay struct {
	operation mapsyncv1.Operation
	owners    []*mapsyncv1.Incarnation
	requested atomic.Bool // a daemon has requested the records of the accomplice
}

// confirm answers a request for the records of other nodes.
func (r *falseRelay) confirm(o *hostile.OutboundMap, m *mapsyncv1.SubscribeRequest) {
	q := m.GetOwners()
	if q == nil || q.GetMap() != o.Index {
		return
	}
	if slices.Contains(q.GetNodes(), accomplice) {
		r.requested.Store(true)
	}
	_ = o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_OwnersSent{ // the stream may have ended
		OwnersSent: &mapsyncv1.OwnersSent{Map: o.Index, Serial: q.GetSerial(), Token: 1},
	}})
}

// send claims to receive the map from all nodes. It then sends records of the daemons, as those that a relay sends.
func (r *falseRelay) send(ctx context.Context, c *cluster, o *hostile.OutboundMap) error {
	if err := o.Batch(nil, nil, true); err != nil {
		return err
	}
	for sleep(ctx, 200*time.Millisecond) {
		// After each start of a daemon, its list of sources is empty.
		err := o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{
			Sources: &mapsyncv1.Sources{Map: o.Index, Nodes: append(c.names(), accomplice)},
		}})
		if err != nil {
			return err
		}
		if !r.requested.Load() {
			continue
		}
		err = o.SendBatch(&mapsyncv1.Batch{
			Map: o.Index, Origin: o.Self(), PreviousPosition: o.Position, Position: o.Position, Requested: true,
			Owners: r.owners, Deltas: c.entryDeltas(r.operation, versionAt(0), ownerOfEntry),
		})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
