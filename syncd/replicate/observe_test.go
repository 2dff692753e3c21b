package replicate

import (
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

func observation(index uint32, name string) *mapsyncv1.SubscribeRequest {
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: &mapsyncv1.MapSubscription{Map: index, Name: name, Observe: true},
	}}
}

// deltasOf receives deltas until there are n, with the schema that they are of.
func deltasOf(t *testing.T, stream mapsyncv1.ReplicationService_SubscribeClient, n int) (s *schema.Schema, deltas []*mapsyncv1.Delta) {
	t.Helper()
	for len(deltas) < n {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if a := m.GetAccepted(); a != nil {
			if s, err = fromProto("typed", a.GetSchema()); err != nil {
				t.Fatal(err)
			}
		}
		deltas = append(deltas, m.GetBatch().GetDeltas()...)
	}
	return s, deltas
}

// TestObserver looks at a node's records, its own and others', under the name of a
// node that takes part and under one that nobody has.
func TestObserver(t *testing.T) {
	a, b := typedNode(t, "a", oldSchema(), nil), typedNode(t, "b", newSchema(), nil)
	meet(a, b)
	putValue(t, a, flow(1), ct{Packets: 1, Flags: 1}.old())
	putValue(t, b, flow(2), ct{Packets: 2, Flags: 2, Mark: 5}.new())
	eventually(t, "equal", func() bool { return a.tb.Stats().Live == 2 && b.tb.Stats().Live == 2 })
	before := a.r.Stats()
	for i, name := range []string{"b", "watcher", "watcher", "b"} {
		stream := stockClient(t, a)
		send(t, stream, hello(name))
		send(t, stream, observation(1, "typed"))
		s, deltas := deltasOf(t, stream, 2)
		d, err := schema.NewDecoder(s, newSchema(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[byte][]byte{}
		for _, delta := range deltas {
			k, v := make([]byte, 8), make([]byte, 48)
			if err := d.Key(k, delta.GetKey()); err != nil {
				t.Fatal(err)
			}
			if err := d.Value(v, delta.GetValue(), &schema.Times{}); err != nil {
				t.Fatal(err)
			}
			got[k[3]] = v
		}
		if string(got[1]) != string(ct{Packets: 1, Flags: 1}.new()) || string(got[2]) != string(ct{Packets: 2, Flags: 2}.new()) {
			t.Errorf("%s saw %x", name, got)
		}
		eventually(t, "counted apart", func() bool { s := a.r.Stats(); return s.Observers == i+1 && s.Serving == before.Serving })
	}
	// The replica's stream goes on, and nobody waits for an observer.
	putValue(t, a, flow(3), ct{Flags: 3}.old())
	eventually(t, "b has it", holds(b, flow(3), ct{Flags: 3}.new()))
	if n := b.r.Stats().ConnectErrors; n != 0 {
		t.Errorf("the stream of node b was ended %d times", n)
	}
	eventually(t, "acknowledged by b", func() bool { m, _ := a.status("b", "typed"); return m.Serving && m.LagEntries == 0 })
	if ok, waiting := a.r.SyncedAll(); !ok || len(a.r.Status()) != 1 {
		t.Errorf("waiting for %q, of %d peers", waiting, len(a.r.Status()))
	}
	// Membership is no business of theirs.
	a.r.SetPeers(nil)
	a.r.SetPeers([]Peer{b.peer()})
	if n := a.r.Stats().Observers; n != 4 {
		t.Errorf("%d observers left", n)
	}
}

// TestObserversAreBounded has more of them under the name of a peer than may be: the
// oldest go, and the peer stays.
func TestObserversAreBounded(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	meet(a, b)
	a.put(0, 1, 1)
	eventually(t, "served", func() bool { return len(live(b.tb)) == 1 && a.r.Stats().Serving == 1 })
	var streams []mapsyncv1.ReplicationService_SubscribeClient
	for range maxStreams + 3 {
		stream := stockClient(t, a)
		send(t, stream, hello("b"))
		send(t, stream, observation(1, testMap))
		deltasOf(t, stream, 1)
		streams = append(streams, stream)
	}
	for i, stream := range streams {
		if i < 4 {
			for err := error(nil); err == nil; {
				_, err = stream.Recv()
			}
			continue
		}
		if _, err := stream.Recv(); err != nil {
			t.Errorf("observer %d of %d is ended: %v", i, len(streams), err)
		}
	}
	eventually(t, "counted", func() bool { s := a.r.Stats(); return s.Observers == maxStreams-1 && s.Serving == 1 })
	if n := b.r.Stats().ConnectErrors; n != 0 {
		t.Errorf("the stream of node b was ended %d times", n)
	}
}

// TestNodeOfTheSameName may look, but not take part.
func TestNodeOfTheSameName(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	a.put(0, 1, 1)
	stream := stockClient(t, a)
	send(t, stream, hello("a"))
	send(t, stream, observation(1, testMap))
	deltasOf(t, stream, 1)

	stream = stockClient(t, a)
	send(t, stream, hello("a"))
	send(t, stream, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}),
	}})
	for {
		if _, err := stream.Recv(); err != nil {
			if !strings.Contains(err.Error(), "this node's own") {
				t.Errorf("refused with %q", err)
			}
			return
		}
	}
}

// TestObserverAmongReplicas has one stream that wants to be both.
func TestObserverAmongReplicas(t *testing.T) {
	r, _ := fuzzReplicator(t)
	for _, observe := range []bool{false, true} {
		s := newSession(r, table.Owner{Node: "x", Incarnation: 1}, &discard{responder: nowhere{}})
		first, second := subscription(1, testMap, Layout{KeySize: 2, ValueSize: 3}), subscription(2, testMap, Layout{KeySize: 2, ValueSize: 3})
		first.Observe, second.Observe = observe, !observe
		if err := s.subscribe(first); err != nil {
			t.Fatal(err)
		}
		if err := s.subscribe(second); err == nil {
			t.Errorf("a stream that observes (%v) is taken for the other kind too", observe)
		}
	}
}

func TestObserverThatStays(t *testing.T) {
	a := typedNode(t, "a", oldSchema(), nil)
	stream := stockClient(t, a)
	send(t, stream, hello("watcher"))
	send(t, stream, observation(1, "typed"))
	for i := range 3 {
		putValue(t, a, flow(byte(i)), ct{Flags: 1}.old())
		deltasOf(t, stream, 1)
	}
	a.tb.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: flow(0), Op: table.OpDelete, Time: time.Now().UnixNano()})
	})
	if _, d := deltasOf(t, stream, 1); d[0].GetOperation() != mapsyncv1.Operation_OPERATION_DELETE {
		t.Errorf("a deletion came as %v", d[0])
	}
}
