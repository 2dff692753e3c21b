package replicate

import (
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestResumeAfterOwnerDied has an owner die while a peer is away, to whom the records that
// this node alone has of it were none of its business before. The peer resumes behind
// them, and is told nevertheless: by the stream, not by a repair.
func TestResumeAfterOwnerDied(t *testing.T) {
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
	eventually(t, "c has passed them", func() bool {
		m, _ := c.status("b", testMap)
		return len(live(c.tb)) == 1 && m.Received == 101
	})
	c.r.SetPeers([]Peer{gone})
	eventually(t, "there is no stream", func() bool { return b.r.Stats().Serving == 0 })
	b.r.SetPeers(nil)
	meet(b, c)
	eventually(t, "c has them", func() bool { return len(live(c.tb)) == 101 })
	if s := c.r.Stats(); s.Repaired != 0 {
		t.Errorf("%d records repaired", s.Repaired)
	}
	if s := b.r.Stats(); s.Walks != 1 || s.Resumes != 1 {
		t.Errorf("%d walks and %d resumes", s.Walks, s.Resumes)
	}
}

// TestMistakenPeer has a peer be another life than this node was told of, which it has told.
func TestMistakenPeer(t *testing.T) {
	mistaken := make(chan string, 1)
	a := startNode(t, "a", 1, nil, func(o *Options) {
		o.Mistaken = func(node string) {
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
		t.Errorf("%q is another one", node)
	}
	meet(a, b)
	eventually(t, "a has b's entries", func() bool { return len(live(a.tb)) == 10 })
}

// TestWalkSparesWhatIsNewer has a walk from the beginning arrive after a record that its peer
// made later, and another told. Not to meet that says nothing.
func TestWalkSparesWhatIsNewer(t *testing.T) {
	r, tb := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	take := func(m *mapsyncv1.SubscribeResponse) {
		t.Helper()
		if err := l.take(mustMarshal(t, m)); err != nil || in.err != nil {
			t.Fatal(err, in.err)
		}
	}
	take(stockBatch(in.index, 0, 10, 1, 2))
	in.rewalk = time.Now().Add(-time.Second)
	l.requests(nil, r.localMaps(), time.Now())
	tb.Update(func(tx *table.Tx) {
		d := table.Delta{Key: key(3), Value: value(3), Version: 9, Owner: tx.Intern(l.peer)}
		tx.Remote(&d, 9, table.RemoteOptions{})
	})
	take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
		Accepted: &mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Reset_: true, Schema: in.m.wire},
	}})
	take(stockBatch(in.index, 0, 10, 1))
	if got := live(tb); len(got) != 2 || got[1] != 1 || got[3] != 3 {
		t.Errorf("left %v, expected 1 and 3: 2 is what the peer does not have", got)
	}
}
