package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// Traces of the messages of a member that a daemon refused.
const (
	recordsRefusedTrace = `^mapsync_(records_rejected_total|stream_errors_total\{.*cause="(refused_delta|clock_ahead|bad_message|gap)")`
	memberStreamTrace   = `^mapsync_stream_errors_total\{.*cause="(bad_message|bad_request|gap)"|^mapsync_records_rejected_total`
)

// memberAttacks returns the attacks of a member of the cluster, by the protocol between nodes.
func memberAttacks() []attack {
	return []attack{
		{name: "member: records of live owners", by: byMember, trace: recordsRefusedTrace, run: forgeUpdates},
		{name: "member: deletes of live owners", by: byMember, trace: recordsRefusedTrace, run: forgeDeletes},
		{name: "member: records of 66,000 invented owners", by: byMember, trace: recordsRefusedTrace, run: inventOwners},
		{name: "member: 66,000 incarnations of its own", by: byMember, run: useManyIncarnations(mallory)},
		{name: "member: 66,000 incarnations of a node", by: byMember, run: useManyIncarnations("lb1")},
		{name: "member: versions below max-clock-ahead", by: byMember, run: acceptedFutureVersions},
		{name: "member: versions beyond max-clock-ahead", by: byMember, trace: recordsRefusedTrace, run: rejectedFutureVersions},
		{name: "member: 100,000 records for 4,096 entries", by: byMember, trace: recordsRefusedTrace, remedy: forgetMallory, run: overfill},
		{name: "member: malformed batches", by: byMember, trace: memberStreamTrace, run: malformedBatches},
		{name: "member: batches of 64 MiB", by: byMember, run: largeBatches},
		{name: "member: repeated and regressing acks", by: byMember, trace: memberStreamTrace, run: invalidAcks},
		{name: "member: permanently false digests", by: byMember, length: 8 * time.Second, trace: `^mapsync_(repairs_total|digest_rounds_total\{.*"(differ|impossible)")|repair`, run: falseDigests},
		{name: "member: sends as the fallback sender", by: byMember, trace: recordsRefusedTrace, run: forgeFallbackSender},
		{name: "member: thousands of map names", by: byMember, trace: memberStreamTrace, run: manyMapNames},
		{name: "member: endless repair requests", by: byMember, run: endlessRepairs},
	}
}

// errNoSubscriber is returned if an attack could not be made.
var errNoSubscriber = errors.New("no daemon subscribed to the attacker, so that nothing was sent")

// sendAsMallory makes mallory a member, which calls onSubscribe for each subscription, until the
// attack's time has passed.
func (c *cluster) sendAsMallory(ctx context.Context, incarnation uint64, onSubscribe func(context.Context, *hostile.OutboundMap) error) error {
	e, err := c.joinAsMallory(ctx, incarnation, onSubscribe, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	<-ctx.Done()
	if e.Subscriptions() == 0 {
		return errNoSubscriber
	}
	return nil
}

// owners returns the incarnations of the daemons and of mallory.
func (c *cluster) owners(ctx context.Context, self uint64) ([]*mapsyncv1.Incarnation, error) {
	var all []*mapsyncv1.Incarnation
	for _, n := range c.nodes {
		s, err := n.status(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, &mapsyncv1.Incarnation{Node: n.name, Number: s.Incarnation})
	}
	return append(all, &mapsyncv1.Incarnation{Node: mallory, Number: self}), nil
}

// forgeDeltas returns an attack that repeatedly sends a delta for each entry of the load balancers,
// with the name of its owner and a newer version.
func forgeDeltas(delta func([keySize]byte, uint32, uint64) *mapsyncv1.Delta) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		self := versionAt(0)
		owners, err := c.owners(ctx, self)
		if err != nil {
			return err
		}
		return c.sendAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
			for sleep(ctx, 200*time.Millisecond) {
				var deltas []*mapsyncv1.Delta
				for i := range c.nodes {
					for flow := range uint32(entriesEach) {
						deltas = append(deltas, delta(entryKey(uint32(i+1), flow), uint32(i), versionAt(0)))
					}
				}
				if err := o.Batch(owners, deltas, true); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
}

func forgeUpdates(ctx context.Context, c *cluster) error { return forgeDeltas(updateDelta)(ctx, c) }

func forgeDeletes(ctx context.Context, c *cluster) error { return forgeDeltas(deleteDelta)(ctx, c) }

// inventOwners sends one record of each of 66,000 owners that have never been members.
func inventOwners(ctx context.Context, c *cluster) error {
	return c.sendManyOwners(ctx, 99, func(i int) *mapsyncv1.Incarnation {
		return &mapsyncv1.Incarnation{Node: "owner-" + strconv.Itoa(i), Number: versionAt(0)}
	})
}

// useManyIncarnations returns an attack that sends one record of each of 66,000 incarnations of a
// member, to use up the ids of owners.
func useManyIncarnations(node string) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		return c.sendManyOwners(ctx, 94, func(i int) *mapsyncv1.Incarnation {
			return &mapsyncv1.Incarnation{Node: node, Number: uint64(i + 1)}
		})
	}
}

// sendManyOwners sends one record of each of 66,000 owners as mallory. The records have 500 keys,
// which no load balancer uses.
func (c *cluster) sendManyOwners(ctx context.Context, keys uint32, owner func(i int) *mapsyncv1.Incarnation) error {
	return c.sendAsMallory(ctx, versionAt(0), func(ctx context.Context, o *hostile.OutboundMap) error {
		for i := 0; i < 66_000 && ctx.Err() == nil; i += 500 {
			var owners []*mapsyncv1.Incarnation
			var deltas []*mapsyncv1.Delta
			for k := range uint32(500) {
				owners = append(owners, owner(i+int(k)))
				deltas = append(deltas, updateDelta(entryKey(keys, k), k, versionAt(0)))
			}
			if err := o.Batch(owners, deltas, true); err != nil {
				return err
			}
		}
		return nil
	})
}

// acceptedFutureVersions sends mallory's own records with the latest version that daemons accept,
// under mallory's keys.
func acceptedFutureVersions(ctx context.Context, c *cluster) error {
	return c.sendFutureVersions(ctx, 58*time.Second)
}

// rejectedFutureVersions sends mallory's own records with versions one day ahead.
func rejectedFutureVersions(ctx context.Context, c *cluster) error {
	return c.sendFutureVersions(ctx, 24*time.Hour+time.Minute)
}

func (c *cluster) sendFutureVersions(ctx context.Context, d time.Duration) error {
	self := versionAt(0)
	return c.sendAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
		owners := []*mapsyncv1.Incarnation{o.Self()}
		for flow := uint32(0); sleep(ctx, 100*time.Millisecond); flow++ {
			if err := o.Batch(owners, []*mapsyncv1.Delta{updateDelta(entryKey(98, flow%100), 0, versionAt(d))}, true); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// malloryKeys replaces a load balancer's number in the keys of overfill.
const malloryKeys = 97

// overfill sends more of mallory's own records than a map or a table can hold. The load balancers
// hold less than an equal share of the map. The member may fill the rest of the map, and does.
// After that, no load balancer can add an entry until an operator removes the member's records.
func overfill(ctx context.Context, c *cluster) error {
	return c.sendAsMallory(ctx, versionAt(0), func(ctx context.Context, o *hostile.OutboundMap) error {
		owners := []*mapsyncv1.Incarnation{o.Self()}
		for i := uint32(0); i < 100_000 && ctx.Err() == nil; i += 500 {
			var deltas []*mapsyncv1.Delta
			for k := range uint32(500) {
				deltas = append(deltas, updateDelta(entryKey(malloryKeys, i+k), 0, versionAt(0)))
			}
			if err := o.Batch(owners, deltas, i+500 >= 100_000); err != nil {
				return err
			}
		}
		return nil
	})
}

// forgetTime is the time in which the daemons usually notice that mallory has left.
const forgetTime = 20 * time.Second

// forgetMallory removes mallory's records, as an operator does once mallory has left. A member may have invented thousands of names
// in gossip, which delay the detection of a node whose leave message was lost. The operator then uses --force.
func forgetMallory(ctx context.Context, c *cluster) error {
	forget := func(flags ...string) error {
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		args := append([]string{"forget", "--owner", mallory, "--yes", "--control-socket", c.nodes[0].socket()}, flags...)
		out, err := exec.CommandContext(limited, c.syncd, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("remove the records of %s: %w: %s", mallory, err, out)
		}
		return nil
	}
	err := eventually(ctx, forgetTime, func() error { return forget() })
	if err != nil && strings.Contains(err.Error(), "the owner is live") {
		c.note("mallory counts as live although it has left: removed with --force")
		err = eventually(ctx, recovery, func() error { return forget("--force") })
	}
	if err != nil {
		return err
	}
	return eventually(ctx, recovery, func() error {
		for _, n := range c.nodes {
			held, err := n.entries()
			if err != nil {
				return err
			}
			for key := range held {
				if binary.BigEndian.Uint32(key[:]) == malloryKeys {
					return fmt.Errorf("%s holds entries of %s that were removed", n.name, mallory)
				}
			}
		}
		return nil
	})
}

// forgeFallbackSender joins with the oldest incarnation of all members. It sends records of owners
// that it claims have left, over entries of the load balancers.
func forgeFallbackSender(ctx context.Context, c *cluster) error {
	return c.sendAsMallory(ctx, 1, func(ctx context.Context, o *hostile.OutboundMap) error {
		owners := []*mapsyncv1.Incarnation{{Node: "lb4", Number: 5}, {Node: "lb1", Number: 3}}
		for sleep(ctx, 200*time.Millisecond) {
			var deltas []*mapsyncv1.Delta
			for flow := range uint32(entriesEach) {
				deltas = append(deltas, updateDelta(entryKey(1, flow), 0, versionAt(0)), updateDelta(entryKey(2, flow), 1, versionAt(0)))
			}
			if err := o.Batch(owners, deltas, true); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// manyMapNames subscribes to more maps than exist.
func manyMapNames(ctx context.Context, c *cluster) error {
	more := func(attempts int) bool { return attempts < 50 && ctx.Err() == nil }
	return c.receiveInTurn(ctx, c.nodes, more, func(s *attackStream) {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		defer context.AfterFunc(limited, s.close)()
		// A daemon reads requests only while its answers are read, and its limit is thousands of requests.
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = receiveAll(s, func(*mapsyncv1.SubscribeResponse) {}) // an error is an end as well
		}()
		for k := range uint32(5000) {
			m := replicaSubscription(k + 1)
			m.Name = fmt.Sprint("map-", k)
			s.subscribeMap(m)
		}
		<-ended // by the daemon, or because the time has passed
	})
}

// endlessRepairs repeatedly requests a resend of all records from a daemon.
func endlessRepairs(ctx context.Context, c *cluster) error {
	all := make([]byte, 128)
	for i := range all {
		all[i] = 0xff
	}
	more := func(int) bool { return ctx.Err() == nil }
	return c.receiveInTurn(ctx, c.nodes[:1], more, func(s *attackStream) {
		stop := context.AfterFunc(ctx, s.close)
		again := func() {
			_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Resend{Resend: &mapsyncv1.ResendRequest{Map: 1, Buckets: all}}})
			_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Compare{Compare: &mapsyncv1.CompareRequest{Map: 1}}})
		}
		s.subscribeMap(replicaSubscription(1))
		_ = receiveAll(s, func(m *mapsyncv1.SubscribeResponse) {
			if m.GetAccepted() != nil || m.GetResent() != nil {
				again()
			}
		})
		stop()
		s.close() // the stream is closed before the pause
		sleep(ctx, 100*time.Millisecond)
	})
}
