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

// joinAsMallory makes mallory a member of the cluster. onSubscribe and onRequest may be nil.
func (c *cluster) joinAsMallory(ctx context.Context, incarnation uint64, onSubscribe func(context.Context, *hostile.OutboundMap) error,
	onRequest func(*hostile.OutboundMap, *mapsyncv1.SubscribeRequest),
) (*hostile.Member, error) {
	return c.join(ctx, attackers-1, hostile.Options{Name: mallory, Incarnation: incarnation, OnSubscribe: onSubscribe, OnRequest: onRequest})
}

// join makes a member of the cluster, with a certificate for its name and the address of a number. It adds the values of
// the cluster to o.
func (c *cluster) join(ctx context.Context, address int, o hostile.Options) (*hostile.Member, error) {
	creds, err := c.credentials(o.Name)
	if err != nil {
		return nil, err
	}
	host := c.address(address)
	o.GossipAddr, o.ServiceAddr = host+":"+gossipPort, host+":"+grpcPort
	o.GossipKey, o.DeadTime, o.Credentials = gossipKey, 2*time.Second, creds
	for _, n := range c.nodes {
		o.Join = append(o.Join, n.addr+":"+gossipPort)
	}
	m, err := hostile.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	conf, err := c.tlsConfig(o.Name, testcert.Options{File: o.Name + "-client"})
	for _, n := range c.nodes { // a daemon dials a caller with a certificate before it dials names from gossip
		var s *attackStream
		if err == nil {
			s, err = c.subscribeAt(ctx, n, conf, m.Self, host)
		}
		if err != nil {
			m.Close()
			return nil, err
		}
		time.AfterFunc(time.Second, s.close)
	}
	return m, nil
}

// wireSchema returns the schema of the map under attack.
func wireSchema() *mapsyncv1.Schema { return hostile.Schema(mapName, keySize, valueSize) }

// recordMaker makes deltas of the map under attack.
var recordMaker = sync.OnceValue(func() *hostile.Records {
	r, err := hostile.NewRecords(mapName, keySize, valueSize)
	if err != nil {
		panic(err) // unreachable: the schema has no types
	}
	return r
})

// updateDelta returns the delta that sets a key to a value of mallory.
func updateDelta(key [keySize]byte, owner uint32, version uint64) *mapsyncv1.Delta {
	value := make([]byte, valueSize)
	value[0], value[valueSize-1] = 0xee, 0xee
	return recordMaker().Update(key[:], value, owner, version)
}

// deleteDelta returns the delta that deletes a key.
func deleteDelta(key [keySize]byte, owner uint32, version uint64) *mapsyncv1.Delta {
	return recordMaker().Delete(key[:], owner, version)
}

// versionAt returns the version of the current time plus d, in ns.
func versionAt(d time.Duration) uint64 { return uint64(time.Now().Add(d).UnixNano()) }

// receiveAsMallory opens a stream to a daemon as mallory and receives from it.
func (c *cluster) receiveAsMallory(ctx context.Context, n *node, incarnation uint64) (*attackStream, error) {
	conf, err := c.tlsConfig(mallory, testcert.Options{File: mallory + "-client"})
	if err != nil {
		return nil, err
	}
	return c.subscribe(ctx, n, conf, mallory, incarnation)
}

// receiveInTurn makes mallory a member and receives from one daemon after another, as long as more
// returns true. It calls fn with each stream and closes the stream afterwards. Refused streams
// count as attempts.
func (c *cluster) receiveInTurn(ctx context.Context, nodes []*node, more func(attempts int) bool, fn func(*attackStream)) error {
	self := versionAt(0)
	e, err := c.joinAsMallory(ctx, self, nil, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	sleep(ctx, time.Second)
	for i := 0; more(i); i++ {
		s, err := c.receiveAsMallory(ctx, nodes[i%len(nodes)], self)
		if err != nil {
			continue // refused, or the time has passed
		}
		fn(s)
		s.close()
	}
	return nil
}

// receiveAll reads from a stream until it ends and calls fn for each message.
func receiveAll(s *attackStream, fn func(*mapsyncv1.SubscribeResponse)) error {
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
