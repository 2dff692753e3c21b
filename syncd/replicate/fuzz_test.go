package replicate

import (
	"testing"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fuzzReplicator has one small map.
func fuzzReplicator(t testing.TB) (*Replicator, *table.Table) {
	t.Helper()
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	tb := newSizedTable(t, r.opt.Self, 2, 3, true)
	if err := r.AddMap(testMap, Layout{KeySize: 2, ValueSize: 3}, tb); err != nil {
		t.Fatal(err)
	}
	return r, tb
}

func fuzzBatch() *mapsyncv1.Batch {
	return &mapsyncv1.Batch{
		Map: 1, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}, Position: 7,
		Owners: []*mapsyncv1.Incarnation{{Node: "x", Number: 1}, {Node: "b", Number: 1}, {Node: "b", Number: 2}},
		Deltas: []*mapsyncv1.Delta{
			{Key: []byte("k1"), Value: []byte("abc"), Version: 5, Operation: mapsyncv1.Operation_OPERATION_UPDATE},
			{Key: []byte("k2"), Version: 6, Owner: 1, Operation: mapsyncv1.Operation_OPERATION_DELETE},
			{Key: []byte("k3"), Value: []byte("abc"), Version: 7, Owner: 2, Operation: mapsyncv1.Operation_OPERATION_UPDATE},
		},
		CaughtUp: true,
	}
}

// FuzzBatch feeds the decoder by hand, through to the merge. What it accepts
// the stock decoder accepts too, and what the stock decoder makes of it means
// the same to both.
func FuzzBatch(f *testing.F) {
	f.Add(mustMarshal(f, fuzzBatch()))
	f.Add(mustMarshal(f, &mapsyncv1.Batch{Map: 1, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b batch
		if _, err := decoded(&b, data); err == nil {
			var m mapsyncv1.Batch
			if err := proto.Unmarshal(data, &m); err != nil {
				t.Fatalf("the stock decoder does not take it: %v", err)
			}
			again, err := decoded(&b, mustMarshal(t, &m))
			if err != nil {
				t.Fatalf("in its plain form it does not decode: %v", err)
			}
			m.ProtoReflect().SetUnknown(nil)
			again.ProtoReflect().SetUnknown(nil)
			if len(again.GetDeltas()) != len(m.GetDeltas()) || again.GetPosition() != m.GetPosition() {
				t.Fatalf("decoded as %v and %v", &m, again)
			}
		}
		r, tb := fuzzReplicator(t)
		l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
		if err := l.takeBatch(data); err == nil && in.state == StateCaughtUp && in.position < b.previous {
			t.Fatalf("position %d after a batch from %d", in.position, b.previous)
		}
		checkTable(t, tb)
	})
}

// checkTable looks at all that was merged.
func checkTable(t *testing.T, tb *table.Table) {
	t.Helper()
	c := tb.NewCursor(0)
	defer c.Close()
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		for tx.Next(c, &rec) {
			if len(rec.Key) != 2 || rec.Version == 0 || (!rec.Delete && len(rec.Value) != 3) || tx.Owner(rec.Owner).Node == "" {
				t.Fatalf("record %+v", rec)
			}
		}
	})
}

// FuzzResponses feeds a receiver a run of messages, each with its length before
// it.
func FuzzResponses(f *testing.F) {
	var run []byte
	for _, m := range []*mapsyncv1.SubscribeResponse{
		{Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: 1}}},
		{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: 1, Generation: 3, Reset_: true}}},
		{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: fuzzBatch()}},
		{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}},
		{Message: &mapsyncv1.SubscribeResponse_Ended{Ended: &mapsyncv1.MapEnded{Map: 1}}},
		{Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: 1, Text: "no"}}},
	} {
		b := mustMarshal(f, m)
		run = append(append(run, byte(len(b))), b...)
	}
	f.Add(run)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, tb := fuzzReplicator(t)
		l, _ := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
		each(data, func(b []byte) bool {
			err := l.take(b)
			l.acks(l.requests(nil, r.localMaps(), l.since.Add(1<<40)))
			return err == nil
		})
		checkTable(t, tb)
		l.down(nil)
	})
}

// each calls fn with the pieces of data until it returns false.
func each(data []byte, fn func([]byte) bool) {
	for len(data) > 0 {
		n := min(int(data[0]), len(data)-1)
		if !fn(data[1 : 1+n]) {
			return
		}
		data = data[1+n:]
	}
}

// FuzzRequests feeds a sender a run of requests, and lets it answer after each.
func FuzzRequests(f *testing.F) {
	var run []byte
	for _, m := range []*mapsyncv1.SubscribeRequest{
		hello("x"),
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: subscription(1, testMap, Layout{KeySize: 2, ValueSize: 3})}},
		{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: 1, Position: 1}}},
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: subscription(2, testMap, Layout{KeySize: 4})}},
		{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{Unsubscribe: &mapsyncv1.MapUnsubscription{Map: 1}}},
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: &mapsyncv1.MapSubscription{
			Map: 3, Name: testMap, Resume: &mapsyncv1.Resume{Incarnation: 2, Generation: 5, Position: 1 << 63},
		}}},
	} {
		b := mustMarshal(f, m)
		run = append(append(run, byte(len(b))), b...)
	}
	f.Add(run)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, tb := fuzzReplicator(t)
		tb.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: []byte("k1"), Value: []byte("abc"), Time: 5})
		})
		s := newSession(r, table.Owner{Node: "x", Incarnation: 1}, &discard{responder: nowhere{}})
		defer s.closeFeeds()
		each(data, func(b []byte) bool {
			var m mapsyncv1.SubscribeRequest
			if err := proto.Unmarshal(b, &m); err != nil {
				return false
			}
			if h := m.GetHello(); h != nil {
				_, err := r.checkHello(t.Context(), h)
				return err == nil
			}
			if s.handle(&m) != nil {
				return false
			}
			_, err := s.sendRound(s.begun)
			return err == nil
		})
		if n := len(s.feeds); n > 2*MaxMaps {
			t.Fatalf("%d feeds", n)
		}
	})
}

// nowhere takes what is sent.
type nowhere struct{}

func (nowhere) Send(*mapsyncv1.SubscribeResponse) error { return nil }
func (nowhere) SendMsg(any) error                       { return nil }
