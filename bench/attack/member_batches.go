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

// malformedBatches sends one invalid batch per stream.
func malformedBatches(ctx context.Context, c *cluster) error {
	self := versionAt(0)
	var mu sync.Mutex
	number := 0
	return c.sendAsMallory(ctx, self, func(_ context.Context, o *hostile.OutboundMap) error {
		mu.Lock()
		number++
		i := number
		mu.Unlock()
		good := updateDelta(entryKey(96, 1), 0, versionAt(0))
		text := make([]byte, 3000)
		_, _ = rand.Read(text)
		b := &mapsyncv1.Batch{Map: o.Index, Origin: o.Self(), Position: 1, Owners: []*mapsyncv1.Incarnation{o.Self()}}
		switch i % 10 {
		case 0:
			b.Deltas = []*mapsyncv1.Delta{{Key: text, Value: text, Version: versionAt(0), Operation: 1}}
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
		return errors.Join(o.SendBatch(b), io.EOF)
	})
}

// largeBatches sends batches that are larger than those of a daemon.
func largeBatches(ctx context.Context, c *cluster) error {
	return c.sendAsMallory(ctx, versionAt(0), func(ctx context.Context, o *hostile.OutboundMap) error {
		d := updateDelta(entryKey(95, 1), 0, versionAt(0))
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

// invalidAcks receives from each daemon as a member does, and sends invalid acknowledgements.
func invalidAcks(ctx context.Context, c *cluster) error {
	ack := func(s *attackStream, position uint64) error {
		return s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: 1, Position: position}}})
	}
	more := func(int) bool { return sleep(ctx, 100*time.Millisecond) }
	return c.receiveInTurn(ctx, c.nodes, more, func(s *attackStream) {
		s.subscribeMap(replicaSubscription(1))
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
		// The peer ends the stream. If this side ended it at once, the peer might not read the ack.
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		defer context.AfterFunc(limited, s.close)()
		_ = receiveAll(s, func(*mapsyncv1.SubscribeResponse) {})
	})
}

// falseDigests sends digests that no repair can make agree.
func falseDigests(ctx context.Context, c *cluster) error {
	self := versionAt(0)
	s, err := c.receiveAsMallory(ctx, c.nodes[0], self)
	if err != nil {
		return err
	}
	s.subscribeMap(replicaSubscription(1))
	key, scope := uint64(0), uint64(0)
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	stop := context.AfterFunc(limited, s.close)
	_ = receiveAll(s, func(m *mapsyncv1.SubscribeResponse) { // ends with the time limit
		if d := m.GetDigest(); d != nil {
			key, scope = d.GetKeyFingerprint(), d.GetScopeFingerprint()
			cancel()
		}
	})
	stop()
	cancel()
	s.close()
	digest := func(o *hostile.OutboundMap, buckets []byte) error {
		d := &mapsyncv1.Digest{Map: o.Index, Position: o.Position, KeyFingerprint: key, ScopeFingerprint: scope}
		for _, name := range append(c.names(), mallory) {
			d.Nodes = append(d.Nodes, &mapsyncv1.NodeDigest{Node: name, Sum: versionAt(0), VersionSum: versionAt(0), Live: 3, Buckets: buckets})
		}
		return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: d}})
	}
	e, err := c.joinAsMallory(ctx, self, func(ctx context.Context, o *hostile.OutboundMap) error {
		if err := o.Batch(nil, nil, true); err != nil {
			return err
		}
		for sleep(ctx, 50*time.Millisecond) {
			if err := digest(o, nil); err != nil {
				return err
			}
		}
		return ctx.Err()
	}, func(o *hostile.OutboundMap, r *mapsyncv1.SubscribeRequest) {
		text := make([]byte, 8<<10)
		_, _ = rand.Read(text)
		switch {
		case r.GetCompare() != nil:
			_ = digest(o, text)
		case r.GetResend() != nil:
			_ = o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: o.Index, Records: 1 << 40}}})
		}
	})
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
