package replicate

import (
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

func observeRequest(index uint32, name string) *mapsyncv1.SubscribeRequest {
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: &mapsyncv1.MapSubscription{Map: index, Name: name, Observe: true},
	}}
}

// receiveDeltas receives n deltas and returns them with their schema.
func receiveDeltas(t *testing.T, stream mapsyncv1.ReplicationService_SubscribeClient, n int) (s *schema.Schema, deltas []*mapsyncv1.Delta) {
	t.Helper()
	for len(deltas) < n {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("receive: got error %v, want nil", err)
		}
		if a := m.GetAccepted(); a != nil {
			if s, err = wire.SchemaFromProto("typed", a.GetSchema()); err != nil {
				t.Fatalf("read schema: got error %v, want nil", err)
			}
		}
		deltas = append(deltas, m.GetBatch().GetDeltas()...)
	}
	return s, deltas
}

// TestObserver observes all records of a node, under the name of a live peer and under an unused name.
func TestObserver(t *testing.T) {
	a, b := typedNode(t, "a", schematest.OldVersion(), nil), typedNode(t, "b", schematest.NewVersion(), nil)
	connectNodes(a, b)
	putValue(t, a, flow(1), ct{Packets: 1, Flags: 1}.old())
	putValue(t, b, flow(2), ct{Packets: 2, Flags: 2, Mark: 5}.new())
	poll.Within(t, deadline, "the tables are equal", func() bool { return a.tb.Stats().Live == 2 && b.tb.Stats().Live == 2 })
	before := a.r.Stats()
	for i, name := range []string{"b", "watcher", "watcher", "b"} {
		stream := stockClient(t, a)
		send(t, stream, hello(name))
		send(t, stream, observeRequest(1, "typed"))
		s, deltas := receiveDeltas(t, stream, 2)
		d, err := schema.NewDecoder(s, schematest.NewVersion(), nil)
		if err != nil {
			t.Fatalf("new decoder: got error %v, want nil", err)
		}
		got := map[byte][]byte{}
		for _, delta := range deltas {
			k, v := make([]byte, 8), make([]byte, 48)
			if err := d.Key(k, delta.GetKey()); err != nil {
				t.Fatalf("decode key: got error %v, want nil", err)
			}
			if err := d.Value(v, nil, delta.GetValue(), &schema.Times{}); err != nil {
				t.Fatalf("decode value: got error %v, want nil", err)
			}
			got[k[3]] = v
		}
		if string(got[1]) != string(ct{Packets: 1, Flags: 1}.new()) || string(got[2]) != string(ct{Packets: 2, Flags: 2}.new()) {
			t.Errorf("%s: values: got %x, want %x for 1 and %x for 2",
				name, got, ct{Packets: 1, Flags: 1}.new(), ct{Packets: 2, Flags: 2}.new())
		}
		poll.Within(t, deadline, "the observer is counted separately", func() bool { s := a.r.Stats(); return s.Observers == i+1 && s.Serving == before.Serving })
	}
	// The stream of the replica continues, and no node waits for an observer.
	putValue(t, a, flow(3), ct{Flags: 3}.old())
	poll.Within(t, deadline, "b holds the entry", hasEntry(b, flow(3), ct{Flags: 3}.new()))
	if n := b.r.Stats().ConnectErrors; n != 0 {
		t.Errorf("ended streams of node b: got %d, want 0", n)
	}
	poll.Within(t, deadline, "b has acknowledged the change", func() bool { m, _ := a.status("b", "typed"); return m.Serving && m.LagEntries == 0 })
	if ok, waiting := a.r.InitialSyncDone(); !ok || len(a.r.Status()) != 1 {
		t.Errorf("initial sync: got waiting %q with %d peers, want done", waiting, len(a.r.Status()))
	}
	// Membership does not end the streams of observers.
	a.r.SetPeers(nil)
	a.r.SetPeers([]Peer{b.peer()})
	if n := a.r.Stats().Observers; n != 4 {
		t.Errorf("observers: got %d, want 4", n)
	}
}

// TestObserversAreBounded opens more observers than allowed under the name of a peer: the oldest
// observers end, and the peer's stream continues.
func TestObserversAreBounded(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	connectNodes(a, b)
	a.put(0, 1, 1)
	poll.Within(t, deadline, "the map is served", func() bool { return len(live(b.tb)) == 1 && a.r.Stats().Serving == 1 })
	var streams []mapsyncv1.ReplicationService_SubscribeClient
	for range maxStreams + 3 {
		stream := stockClient(t, a)
		send(t, stream, hello("b"))
		send(t, stream, observeRequest(1, testMap))
		receiveDeltas(t, stream, 1)
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
			t.Errorf("observer %d of %d: got %v, want an open stream", i, len(streams), err)
		}
	}
	poll.Within(t, deadline, "the count is reached", func() bool { s := a.r.Stats(); return s.Observers == maxStreams-1 && s.Serving == 1 })
	if n := b.r.Stats().ConnectErrors; n != 0 {
		t.Errorf("ended streams of node b: got %d, want 0", n)
	}
}

// TestOwnNameMayOnlyObserve checks that a stream under this node's name may observe but not replicate.
func TestOwnNameMayOnlyObserve(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	a.put(0, 1, 1)
	stream := stockClient(t, a)
	send(t, stream, hello("a"))
	send(t, stream, observeRequest(1, testMap))
	receiveDeltas(t, stream, 1)

	stream = stockClient(t, a)
	send(t, stream, hello("a"))
	send(t, stream, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
		Subscribe: subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}),
	}})
	for {
		if _, err := stream.Recv(); err != nil {
			if !strings.Contains(err.Error(), "this node's own") {
				t.Errorf("subscribe under this node's name: got %q, want \"this node's own\"", err)
			}
			return
		}
	}
}

// TestMixedSubscriptionsAreRefused has a stream that subscribes as an observer and as a replica.
func TestMixedSubscriptionsAreRefused(t *testing.T) {
	r, _ := fuzzReplicator(t)
	for _, observe := range []bool{false, true} {
		s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, &discardBatches{responseSender: discardStream{}})
		first, second := subscription(1, testMap, Layout{KeySize: 2, ValueSize: 3}), subscription(2, testMap, Layout{KeySize: 2, ValueSize: 3})
		first.Observe, second.Observe = observe, !observe
		if err := s.subscribe(first); err != nil {
			t.Fatalf("subscribe: got error %v, want nil", err)
		}
		if err := s.subscribe(second); err == nil {
			t.Errorf("stream that observes (%v): second subscription of the other kind: got no error, want one", observe)
		}
	}
}

// TestObserverReceivesChanges checks that an observer receives changes and deletes.
func TestObserverReceivesChanges(t *testing.T) {
	a := typedNode(t, "a", schematest.OldVersion(), nil)
	stream := stockClient(t, a)
	send(t, stream, hello("watcher"))
	send(t, stream, observeRequest(1, "typed"))
	for i := range 3 {
		putValue(t, a, flow(byte(i)), ct{Flags: 1}.old())
		receiveDeltas(t, stream, 1)
	}
	a.tb.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: flow(0), Op: table.OpDelete, Time: time.Now().UnixNano()})
	})
	if _, d := receiveDeltas(t, stream, 1); d[0].GetOperation() != mapsyncv1.Operation_OPERATION_DELETE {
		t.Errorf("delete: got %v, want operation %s", d[0], mapsyncv1.Operation_OPERATION_DELETE)
	}
}
