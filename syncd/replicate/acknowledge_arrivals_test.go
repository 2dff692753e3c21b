package replicate

import (
	"context"
	"sync"
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

// TestTombstoneOutlastsOlderRecordsUnderWay: a peer acknowledges a delete, and an older record that it has sent before is still on
// its way. The node keeps the tombstone until the record has arrived.
func TestTombstoneOutlastsOlderRecordsUnderWay(t *testing.T) {
	var late lateMessages
	nodes := make(map[string]*node)
	for _, name := range []string{"a", "b"} {
		tb, err := table.New(table.Options{
			Self: table.Owner{Node: name, Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize,
			TombstoneTTL: time.Hour, TombstoneGrace: time.Millisecond,
		})
		if err != nil {
			t.Fatalf("new table: got error %v, want nil", err)
		}
		nodes[name] = startNode(t, name, 1, tb, func(o *Options) {
			if o.receiveTimeout = deadline; name == "a" {
				late.option(o)
			}
		})
	}
	a, b := nodes["a"], nodes["b"]
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
	tombstones := func() int {
		a.tb.Update(func(tx *table.Tx) {
			for tx.Expire(time.Now().UnixNano(), 100) {
			}
		})
		return a.tb.Stats().Tombstones
	}
	time.Sleep(4 * housekeepingInterval) // an acknowledgement that counts too early counts after one
	if n := tombstones(); n != 1 {
		t.Errorf("tombstones while an older record is under way: got %d, want 1", n)
	}
	late.Unlock()
	b.put(1, 2, 3)
	poll.Within(t, deadline, "a holds what b has sent since", func() bool { return live(a.tb)[1] == 3 })
	if got := live(a.tb); len(got) != 1 {
		t.Errorf("live records after the delete: got %v, want only that of key 1", got)
	}
	poll.Within(t, deadline, "the tombstone is forgotten", func() bool { return tombstones() == 0 })
}
