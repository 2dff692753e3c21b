package replicate

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// lateMessages delays the messages of all streams from peers while it is locked.
type lateMessages struct{ sync.RWMutex }

func (l *lateMessages) option(o *Options) {
	dial := grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return &lateStream{s, l}, err
	})
	o.Dial = func(p Peer) (*grpc.ClientConn, error) {
		return grpc.NewClient(p.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), dial)
	}
}

type lateStream struct {
	grpc.ClientStream
	late *lateMessages
}

func (s *lateStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.late.RLock()
	defer s.late.RUnlock()
	return err
}

// startForgetful starts a node that forgets tombstones as soon as they are acknowledged.
func startForgetful(t *testing.T, name string, opts ...nodeOption) *node {
	t.Helper()
	tb, err := table.New(table.Options{
		Self: table.Owner{Node: name, Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize,
		TombstoneTTL: time.Hour, TombstoneGrace: time.Millisecond,
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	return startNode(t, name, 1, tb, opts...)
}

// tombstones returns the number of tombstones that the table keeps.
func (n *node) tombstones() int {
	n.tb.Update(func(tx *table.Tx) {
		for tx.Expire(time.Now().UnixNano(), 100) {
		}
	})
	return n.tb.Stats().Tombstones
}

// TestTombstoneOutlastsOlderRecordsUnderWay: a peer acknowledges a delete, and an older record that it has sent before is still on
// its way. The node keeps the tombstone until the record has arrived.
func TestTombstoneOutlastsOlderRecordsUnderWay(t *testing.T) {
	var late lateMessages
	patient := func(o *Options) { o.receiveTimeout = deadline }
	a, b := startForgetful(t, "a", patient, late.option), startForgetful(t, "b", patient)
	connectNodes(a, b)
	a.put(0, 1, 1)
	poll.Within(t, deadline, "b holds the record of a", func() bool { return live(b.tb)[0] == 1 })
	late.Lock()
	b.put(0, 1, 2)
	poll.Within(t, deadline, "b has sent its change", func() bool {
		m, _ := b.status("a", testMap)
		return m.Sent >= b.tb.Stats().Head
	})
	a.del(0, 1)
	poll.Within(t, deadline, "b has acknowledged the delete", func() bool { return len(live(b.tb)) == 0 && a.acknowledgedPosition() >= a.tb.Stats().Head })
	time.Sleep(4 * housekeepingInterval) // an acknowledgement that counts too early counts after one
	if n := a.tombstones(); n != 1 {
		t.Errorf("tombstones while an older record is under way: got %d, want 1", n)
	}
	late.Unlock()
	b.put(1, 2, 3)
	poll.Within(t, deadline, "a holds what b has sent since", func() bool { return live(a.tb)[1] == 3 })
	if got := live(a.tb); len(got) != 1 {
		t.Errorf("live records after the delete: got %v, want only that of key 1", got)
	}
	poll.Within(t, deadline, "the tombstone is forgotten", func() bool { return a.tombstones() == 0 })
}

// TestTombstoneOutlastsUnreadyNode: a node starts with an old record, and reaches only one of its two peers. The peer that it
// reaches keeps the tombstone of the other peer until the node is ready.
func TestTombstoneOutlastsUnreadyNode(t *testing.T) {
	var route blockedRoutes
	route.set("b")
	var ready atomic.Bool
	state := func(o *Options) {
		o.State = func() NodeState {
			if ready.Load() {
				return NodeStateReady
			}
			return NodeStateNotReady
		}
	}
	a, b, c := startForgetful(t, "a"), startForgetful(t, "b"), startForgetful(t, "c", route.option, state)
	c.put(0, 1, 1)
	connectNodes(a, b)
	b.put(0, 2, 2)
	poll.Within(t, deadline, "a holds the records of b", func() bool { return len(live(a.tb)) == 2 })
	a.r.SetPeers([]Peer{b.peer(), c.peer()})
	c.r.SetPeers([]Peer{a.peer(), b.peer()})
	b.del(0, 1)
	poll.Within(t, deadline, "a has the tombstone of b", func() bool { return len(live(a.tb)) == 1 })
	a.put(2, 3, 3)
	poll.Within(t, deadline, "c holds the record of a", func() bool { return live(c.tb)[2] == 3 })
	time.Sleep(8 * housekeepingInterval) // an acknowledgement that counts too early counts after at most six
	if n := a.tombstones(); n != 1 {
		t.Errorf("tombstones while a node is not ready: got %d, want 1", n)
	}
	connectNodes(a, b, c)
	route.set()
	ready.Store(true)
	poll.Within(t, deadline, "the tombstones are forgotten", func() bool { return a.tombstones()+b.tombstones() == 0 && len(live(c.tb)) == 2 })
	if got := live(a.tb); len(got) != 2 {
		t.Errorf("live records after the delete: got %v, want those of the keys 1 and 2", got)
	}
}
