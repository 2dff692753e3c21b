package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"mapsync/bench/hostile"
	"mapsync/internal/testcert"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// infiltrate makes mallory a member. talk and hear may be nil.
func (c *cluster) infiltrate(ctx context.Context, incarnation uint64, talk func(context.Context, *hostile.Outlet) error,
	hear func(*hostile.Outlet, *mapsyncv1.SubscribeRequest),
) (*hostile.Member, error) {
	creds, err := c.credentials(mallory)
	if err != nil {
		return nil, err
	}
	host := c.address(attackers - 1)
	o := hostile.Options{
		Name: mallory, Incarnation: incarnation, GossipAddr: host + ":" + gossipPort, ServiceAddr: host + ":" + grpcPort,
		GossipKey: gossipKey, DeadTime: 2 * time.Second, Credentials: creds, Talk: talk, Hear: hear,
	}
	for _, n := range c.nodes {
		o.Join = append(o.Join, n.addr+":"+gossipPort)
	}
	m, err := hostile.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, n := range c.nodes { // an introduction: a caller with a certificate is dialled before names of gossip
		s, err := c.receiver(ctx, n, incarnation)
		if err != nil {
			m.Close()
			return nil, err
		}
		time.AfterFunc(time.Second, s.close)
	}
	return m, nil
}

// wireSchema is that of the map under attack.
func wireSchema() *mapsyncv1.Schema { return hostile.Schema(mapName, keySize, valueSize) }

// records makes deltas of the map under attack.
var records = sync.OnceValue(func() *hostile.Records {
	r, err := hostile.NewRecords(mapName, keySize, valueSize)
	if err != nil {
		panic(err) // of a schema without types
	}
	return r
})

// update returns the delta that gives a key a value of mallory's.
func update(key [keySize]byte, owner uint32, version uint64) *mapsyncv1.Delta {
	value := make([]byte, valueSize)
	value[0], value[valueSize-1] = 0xee, 0xee
	return records().Update(key[:], value, owner, version)
}

// remove returns the delta that deletes a key.
func remove(key [keySize]byte, owner uint32, version uint64) *mapsyncv1.Delta {
	return records().Delete(key[:], owner, version)
}

// now is a version of this moment, moved by d.
func now(d time.Duration) uint64 { return uint64(time.Now().Add(d).UnixNano()) }

// receiver opens a stream to a daemon as mallory and receives from it.
func (c *cluster) receiver(ctx context.Context, n *node, incarnation uint64) (*subscriber, error) {
	conf, err := c.tlsConfig(mallory, testcert.Options{File: mallory + "-client"})
	if err != nil {
		return nil, err
	}
	return c.subscribe(ctx, n, conf, mallory, incarnation)
}

// receiveInTurn makes mallory a member and receives from one daemon after another, as long as more returns
// true. It calls fn with each stream and closes the stream afterwards. Refused streams count as attempts.
func (c *cluster) receiveInTurn(ctx context.Context, nodes []*node, more func(attempts int) bool, fn func(*subscriber)) error {
	self := now(0)
	e, err := c.infiltrate(ctx, self, nil, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	sleep(ctx, time.Second)
	for i := 0; more(i); i++ {
		s, err := c.receiver(ctx, nodes[i%len(nodes)], self)
		if err != nil {
			continue // refused, or the time is over
		}
		fn(s)
		s.close()
	}
	return nil
}

// drained reads from a stream until it ends and calls fn for each message.
func drained(s *subscriber, fn func(*mapsyncv1.SubscribeResponse)) error {
	for {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		fn(m)
	}
}
