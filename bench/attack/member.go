package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// Traces of what a member sent and a daemon refused.
const (
	refusedRecords = `^mapsync_(records_rejected_total|stream_errors_total\{.*cause="(refused_delta|clock_ahead|bad_message|gap)")`
	refusedStream  = `^mapsync_stream_errors_total\{.*cause="(bad_message|bad_request|gap)"|^mapsync_records_rejected_total`
)

// memberAttacks are those of a member of the cluster, by the protocol between nodes.
func memberAttacks() []attack {
	return []attack{
		{name: "member: records of live owners", by: byMember, trace: refusedRecords, run: foreignRecords},
		{name: "member: deletes of live owners", by: byMember, trace: refusedRecords, run: foreignDeletes},
		{name: "member: records of 66,000 invented owners", by: byMember, trace: refusedRecords, run: inventOwners},
		{name: "member: versions below max-clock-ahead", by: byMember, run: farVersions},
		{name: "member: versions beyond max-clock-ahead", by: byMember, trace: refusedRecords, run: beyondVersions},
		{name: "member: 100,000 records for 4,096 entries", by: byMember, trace: refusedRecords, remedy: forgetMallory, run: overfill},
		{name: "member: malformed batches", by: byMember, trace: refusedStream, run: malformedBatches},
		{name: "member: batches of 64 MiB", by: byMember, run: hugeBatches},
		{name: "member: repeated and regressing acks", by: byMember, trace: refusedStream, run: badAcks},
		{name: "member: digests that are false for ever", by: byMember, fixed: 8 * time.Second, trace: `^mapsync_(repairs_total|digest_rounds_total\{.*"(differ|impossible)")|repair`, run: falseDigests},
		{name: "member: claims to be the fallback sender", by: byMember, trace: refusedRecords, run: claimFallback},
		{name: "member: thousands of map names", by: byMember, trace: refusedStream, run: mapNames},
		{name: "member: repairs requested for ever", by: byMember, run: repairsForEver},
	}
}

// errUnheard says that an attack was not made.
var errUnheard = errors.New("no daemon subscribed to the attacker, so that nothing was sent")

// talk sends, as a member, what talk does, until the attack's time is over.
func (c *cluster) talk(ctx context.Context, incarnation uint64, talk func(context.Context, *hostile.Outlet) error) error {
	e, err := c.infiltrate(ctx, incarnation, talk, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	<-ctx.Done()
	if e.Subscribed() == 0 {
		return errUnheard
	}
	return nil
}

// owners returns the incarnations of the daemons, and mallory's.
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

// forge returns an attack that sends, again and again, a delta for each entry of the load
// balancers, in its owner's name and with a newer version.
func forge(delta func([keySize]byte, uint32, uint64) *mapsyncv1.Delta) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		self := now(0)
		owners, err := c.owners(ctx, self)
		if err != nil {
			return err
		}
		return c.talk(ctx, self, func(ctx context.Context, o *hostile.Outlet) error {
			for sleep(ctx, 200*time.Millisecond) {
				var deltas []*mapsyncv1.Delta
				for i := range c.nodes {
					for flow := range uint32(entriesEach) {
						deltas = append(deltas, delta(entryKey(uint32(i+1), flow), uint32(i), now(0)))
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

func foreignRecords(ctx context.Context, c *cluster) error { return forge(update)(ctx, c) }

func foreignDeletes(ctx context.Context, c *cluster) error { return forge(remove)(ctx, c) }

// inventOwners sends one record of each of 66,000 owners that have never been members.
func inventOwners(ctx context.Context, c *cluster) error {
	return c.talk(ctx, now(0), func(ctx context.Context, o *hostile.Outlet) error {
		for i := 0; i < 66_000 && ctx.Err() == nil; i += 500 {
			var owners []*mapsyncv1.Incarnation
			var deltas []*mapsyncv1.Delta
			for k := range uint32(500) {
				owners = append(owners, &mapsyncv1.Incarnation{Node: "owner-" + strconv.Itoa(i+int(k)), Number: now(0)})
				deltas = append(deltas, update(entryKey(99, k), k, now(0)))
			}
			if err := o.Batch(owners, deltas, true); err != nil {
				return err
			}
		}
		return nil
	})
}

// farVersions sends records of its own, dated as late as is accepted, for keys of its own.
func farVersions(ctx context.Context, c *cluster) error {
	return c.ahead(ctx, 58*time.Second)
}

// beyondVersions sends records of its own that are dated a day ahead.
func beyondVersions(ctx context.Context, c *cluster) error {
	return c.ahead(ctx, 24*time.Hour+time.Minute)
}

func (c *cluster) ahead(ctx context.Context, d time.Duration) error {
	self := now(0)
	return c.talk(ctx, self, func(ctx context.Context, o *hostile.Outlet) error {
		owners := []*mapsyncv1.Incarnation{o.Self()}
		for flow := uint32(0); sleep(ctx, 100*time.Millisecond); flow++ {
			if err := o.Batch(owners, []*mapsyncv1.Delta{update(entryKey(98, flow%100), 0, now(d))}, true); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// malloryKeys takes the place of a load balancer's number in the keys of overfill.
const malloryKeys = 97

// overfill sends more records of its own than a map or a table may hold. Each load balancer has less
// than an equal share of the map. The member may take the rest of the map, and does: then no load
// balancer can add an entry until an operator removes the member's records.
func overfill(ctx context.Context, c *cluster) error {
	return c.talk(ctx, now(0), func(ctx context.Context, o *hostile.Outlet) error {
		owners := []*mapsyncv1.Incarnation{o.Self()}
		for i := uint32(0); i < 100_000 && ctx.Err() == nil; i += 500 {
			var deltas []*mapsyncv1.Delta
			for k := range uint32(500) {
				deltas = append(deltas, update(entryKey(malloryKeys, i+k), 0, now(0)))
			}
			if err := o.Batch(owners, deltas, i+500 >= 100_000); err != nil {
				return err
			}
		}
		return nil
	})
}

// forgetMallory removes mallory's records, as an operator does.
func forgetMallory(ctx context.Context, c *cluster) error {
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := exec.CommandContext(limited, c.syncd, "forget", "--owner", mallory, "--yes", "--control-socket", c.nodes[0].socket()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the records of %s: %w: %s", mallory, err, out)
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

// claimFallback starts before all others and sends records of an owner that it says has left,
// over entries of the load balancers.
func claimFallback(ctx context.Context, c *cluster) error {
	return c.talk(ctx, 1, func(ctx context.Context, o *hostile.Outlet) error {
		owners := []*mapsyncv1.Incarnation{{Node: "lb4", Number: 5}, {Node: "lb1", Number: 3}}
		for sleep(ctx, 200*time.Millisecond) {
			var deltas []*mapsyncv1.Delta
			for flow := range uint32(entriesEach) {
				deltas = append(deltas, update(entryKey(1, flow), 0, now(0)), update(entryKey(2, flow), 1, now(0)))
			}
			if err := o.Batch(owners, deltas, true); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// mapNames subscribes to more maps than there are.
func mapNames(ctx context.Context, c *cluster) error {
	more := func(attempts int) bool { return attempts < 50 && ctx.Err() == nil }
	return c.receiveInTurn(ctx, c.nodes, more, func(s *subscriber) {
		for k := range uint32(5000) {
			m := replica(k + 1)
			m.Name = fmt.Sprint("map-", k)
			s.ask(m)
		}
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		stop := context.AfterFunc(limited, s.close)
		_ = drained(s, func(*mapsyncv1.SubscribeResponse) {}) // the daemon ends it
		stop()
		cancel()
	})
}

// repairsForEver asks a daemon to send all it has again and again.
func repairsForEver(ctx context.Context, c *cluster) error {
	all := make([]byte, 128)
	for i := range all {
		all[i] = 0xff
	}
	more := func(int) bool { return ctx.Err() == nil }
	return c.receiveInTurn(ctx, c.nodes[:1], more, func(s *subscriber) {
		stop := context.AfterFunc(ctx, s.close)
		again := func() {
			_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Retell{Retell: &mapsyncv1.RetellRequest{Map: 1, Buckets: all}}})
			_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Compare{Compare: &mapsyncv1.CompareRequest{Map: 1}}})
		}
		s.ask(replica(1))
		_ = drained(s, func(m *mapsyncv1.SubscribeResponse) {
			if m.GetAccepted() != nil || m.GetRetold() != nil {
				again()
			}
		})
		stop()
		s.close() // before the pause
		sleep(ctx, 100*time.Millisecond)
	})
}
