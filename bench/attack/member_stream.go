package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"mapsync/bench/hostile"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// malformedBatches sends a batch that cannot be, on one stream after another.
func malformedBatches(ctx context.Context, c *cluster) error {
	self := now(0)
	var mu sync.Mutex
	number := 0
	return c.talk(ctx, self, func(_ context.Context, o *hostile.Outlet) error {
		mu.Lock()
		number++
		i := number
		mu.Unlock()
		good := update(entryKey(96, 1), 0, now(0))
		text := make([]byte, 3000)
		_, _ = rand.Read(text)
		b := &mapsyncv1.Batch{Map: o.Index, Origin: o.Self(), Position: 1, Owners: []*mapsyncv1.Incarnation{o.Self()}}
		switch i % 10 {
		case 0:
			b.Deltas = []*mapsyncv1.Delta{{Key: text, Value: text, Version: now(0), Operation: 1}}
		case 1:
			good.Owner = 1 << 31
			b.Deltas = []*mapsyncv1.Delta{good}
		case 2:
			good.Version = 0
			b.Deltas = []*mapsyncv1.Delta{good}
		case 3:
			good.Operation = 77
			b.Deltas = []*mapsyncv1.Delta{good}
		case 4:
			b.PreviousPosition = 1 << 63
		case 5:
			b.PreviousPosition, b.Position = 5, 1
		case 6:
			b.Map = 1 << 30
		case 7:
			b.Owners = []*mapsyncv1.Incarnation{{Node: strings.Repeat("a", 1<<16), Number: 1}}
			b.Deltas = []*mapsyncv1.Delta{good}
		case 8:
			b.Owners, b.Deltas = []*mapsyncv1.Incarnation{{}}, []*mapsyncv1.Delta{good}
		case 9:
			return o.Send(&mapsyncv1.SubscribeResponse{})
		}
		return errors.Join(o.Raw(b), io.EOF)
	})
}

// hugeBatches sends batches that no daemon would make.
func hugeBatches(ctx context.Context, c *cluster) error {
	return c.talk(ctx, now(0), func(ctx context.Context, o *hostile.Outlet) error {
		d := update(entryKey(95, 1), 0, now(0))
		deltas := make([]*mapsyncv1.Delta, 600_000)
		for i := range deltas {
			deltas[i] = d
		}
		for ctx.Err() == nil {
			if err := o.Batch([]*mapsyncv1.Incarnation{o.Self()}, deltas, false); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// badAcks receives from each daemon as a member does, and acknowledges what it likes.
func badAcks(ctx context.Context, c *cluster) error {
	ack := func(s *subscriber, position uint64) error {
		return s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: 1, Position: position}}})
	}
	more := func(int) bool { return sleep(ctx, 100*time.Millisecond) }
	return c.receiveInTurn(ctx, c.nodes, more, func(s *subscriber) {
		s.ask(replica(1))
		head := uint64(0)
		for range 4 {
			m, err := s.Recv()
			if err != nil {
				break
			}
			if b := m.GetBatch(); b != nil {
				head = max(head, b.GetPosition())
				_ = errors.Join(ack(s, head), ack(s, head), ack(s, 0), ack(s, head/2), ack(s, 0))
			}
		}
		_ = ack(s, 1<<62)
	})
}

// falseDigests sends digests that no repair makes right.
func falseDigests(ctx context.Context, c *cluster) error {
	self := now(0)
	s, err := c.receiver(ctx, c.nodes[0], self)
	if err != nil {
		return err
	}
	s.ask(replica(1))
	key, scope := uint64(0), uint64(0)
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	stop := context.AfterFunc(limited, s.close)
	_ = drained(s, func(m *mapsyncv1.SubscribeResponse) { // it ends with the time
		if d := m.GetDigest(); d != nil {
			key, scope = d.GetKey(), d.GetScope()
			cancel()
		}
	})
	stop()
	cancel()
	s.close()
	digest := func(o *hostile.Outlet, buckets []byte) error {
		d := &mapsyncv1.Digest{Map: o.Index, Position: o.Position, Key: key, Scope: scope}
		for _, name := range append(c.names(), mallory) {
			d.Nodes = append(d.Nodes, &mapsyncv1.NodeDigest{Node: name, Sum: now(0), Loose: now(0), Live: 3, Buckets: buckets})
		}
		return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: d}})
	}
	e, err := c.infiltrate(ctx, self, func(ctx context.Context, o *hostile.Outlet) error {
		if err := o.Batch(nil, nil, true); err != nil {
			return err
		}
		for sleep(ctx, 50*time.Millisecond) {
			if err := digest(o, nil); err != nil {
				return err
			}
		}
		return ctx.Err()
	}, func(o *hostile.Outlet, r *mapsyncv1.SubscribeRequest) {
		text := make([]byte, 8<<10)
		_, _ = rand.Read(text)
		switch {
		case r.GetCompare() != nil:
			_ = digest(o, text)
		case r.GetRetell() != nil:
			_ = o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: o.Index, Records: 1 << 40}}})
		}
	})
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
