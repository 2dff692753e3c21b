package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestResumeAfterOwnerLeft has an owner leave while a peer is away. This node alone has some
// orphaned records of it, which it did not send to that peer before. The peer resumes from a later
// position and receives the records by the stream, not by a repair.
func TestResumeAfterOwnerLeft(t *testing.T) {
	gone := Peer{Node: "a", Incarnation: 1, Addr: "127.0.0.1:1"}
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	b.r.SetPeers([]Peer{gone, c.peer()})
	c.r.SetPeers([]Peer{gone, b.peer()})
	b.tb.Update(func(tx *table.Tx) {
		id := tx.Intern(gone.owner())
		for i := range 100 {
			tx.Remote(&table.Delta{Key: key(i), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
		}
	})
	b.put(100, 101, 1)
	poll.Within(t, deadline, "c has passed the records", func() bool {
		m, _ := c.status("b", testMap)
		return len(live(c.tb)) == 1 && m.Received == 101
	})
	c.r.SetPeers([]Peer{gone})
	poll.Within(t, deadline, "the stream has ended", func() bool { return b.r.Stats().Serving == 0 })
	b.r.SetPeers(nil)
	connectNodes(b, c)
	poll.Within(t, deadline, "c holds the records", func() bool { return len(live(c.tb)) == 101 })
	if s := c.r.Stats(); s.Repaired != 0 {
		t.Errorf("repaired records: got %d, want 0", s.Repaired)
	}
	if s := b.r.Stats(); s.FullSyncs != 1 || s.Resumes != 1 {
		t.Errorf("got %d full syncs and %d resumes, want 1 and 1", s.FullSyncs, s.Resumes)
	}
}

// TestIncarnationMismatch checks that IncarnationMismatch is called if a peer has another
// incarnation than the one passed to SetPeers.
func TestIncarnationMismatch(t *testing.T) {
	mistaken := make(chan string, 1)
	a := startNode(t, "a", 1, nil, func(o *Options) {
		o.IncarnationMismatch = func(node string) {
			select {
			case mistaken <- node:
			default:
			}
		}
	})
	b := startNode(t, "b", 2, nil)
	b.put(0, 10, 1)
	was := b.peer()
	was.Incarnation = 1
	a.r.SetPeers([]Peer{was})
	if node := <-mistaken; node != "b" {
		t.Errorf("mismatch: got %q, want b", node)
	}
	connectNodes(a, b)
	poll.Within(t, deadline, "a holds the entries of b", func() bool { return len(live(a.tb)) == 10 })
}

// TestFullSyncKeepsNewerRecords has a full sync of a peer arrive after a later record of that peer,
// which another peer has sent. The full sync does not contain the record, and does not delete it.
func TestFullSyncKeepsNewerRecords(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	take := func(m *mapsyncv1.SubscribeResponse) {
		t.Helper()
		if err := s.handle(mustMarshal(t, m)); err != nil || in.err != nil {
			t.Fatalf("handle a message: got error %v, error of the map %v, want none", err, in.err)
		}
	}
	take(stockBatch(in.index, 0, 10, 1, 2))
	in.repeatFullSyncAt = time.Now().Add(-time.Second)
	s.appendSubscriptions(nil, r.localMaps(), time.Now())
	tb.Update(func(tx *table.Tx) {
		d := table.Delta{Key: key(3), Value: value(3), Version: 9, Owner: tx.Intern(s.peer)}
		tx.Remote(&d, 9, table.RemoteOptions{})
	})
	take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
		Accepted: &mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Reset_: true, Schema: in.m.wireSchema},
	}})
	take(stockBatch(in.index, 0, 10, 1))
	if got := live(tb); len(got) != 2 || got[1] != 1 || got[3] != 3 {
		t.Errorf("live records: got %v, want keys 1 and 3", got)
	}
}
