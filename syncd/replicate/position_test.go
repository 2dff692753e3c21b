package replicate

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// sending is an outbound map stream without a stream.
type sending struct {
	got  []*mapsyncv1.SubscribeResponse
	keys map[string]bool
}

func (s *sending) Send(m *mapsyncv1.SubscribeResponse) error {
	s.got = append(s.got, m)
	return nil
}

func (s *sending) SendMsg(m any) error {
	out := m.(*outbound)
	var r mapsyncv1.SubscribeResponse
	err := proto.Unmarshal(flat(out), &r)
	out.data.Free()
	for _, d := range r.GetBatch().GetDeltas() {
		s.keys[string(d.GetKey())] = true
	}
	s.got = append(s.got, &r)
	return err
}

// TestPositionLostInTheMiddle has deletes be forgotten while a full sync is under way. Those
// that were made before it began it does not need; of later ones the peer must know.
func TestPositionLostInTheMiddle(t *testing.T) {
	for name, test := range map[string]struct {
		after bool // the delete comes after the sync began
		lost  bool
	}{"before": {false, false}, "after": {true, true}} {
		t.Run(name, func(t *testing.T) {
			r, tb := newReceiver(t)
			putTable(t, tb, 1, 2000, 1)
			remove := func() {
				tb.Update(func(tx *table.Tx) {
					tx.Local(&table.Change{Key: key(1990), Op: table.OpDelete, Time: time.Now().UnixNano()})
				})
			}
			forget := func() {
				c := tb.NewCursor(0)
				defer c.Close()
				write(tb, c)
				tb.Update(func(tx *table.Tx) {
					for tx.Expire(time.Now().Add(2*time.Hour).UnixNano(), 100) {
					}
				})
			}
			if !test.after {
				remove()
			}
			s := &sending{keys: make(map[string]bool)}
			layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
			f := newFeed(newSession(r, table.Owner{Node: "x", Incarnation: 1}, s), subscription(1, testMap, layout), allOrphaned)
			defer f.close()
			step := func() bool {
				more, err := f.step(r.localMaps()[testMap], time.Now())
				if err != nil {
					t.Fatal(err)
				}
				return more
			}
			step() // accepted
			step() // the first batch
			if n := len(s.keys); n == 0 || n > 1900 {
				t.Fatalf("%d records in the first batch", n)
			}
			if test.after {
				remove()
			}
			forget()
			for step() {
			}
			lost := s.got[len(s.got)-1].GetEnded().GetReason() == mapsyncv1.EndReason_END_REASON_POSITION_LOST
			for _, m := range s.got {
				lost = lost || m.GetEnded().GetReason() == mapsyncv1.EndReason_END_REASON_POSITION_LOST
			}
			if lost != test.lost {
				t.Errorf("the position is lost: %t", lost)
			}
			if !lost && len(s.keys) < 1998 {
				t.Errorf("%d records sent", len(s.keys))
			}
		})
	}
}

// TestCaughtUpAfterRequestedRecords has the position move while requested records are sent
// out of turn: the peer receives the end of the stream after that.
func TestCaughtUpAfterRequestedRecords(t *testing.T) {
	r, tb := newReceiver(t)
	r.opt.advance = time.Nanosecond
	putTable(t, tb, 0, 100, 1)
	tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "z", Incarnation: 1})
		for i := range 100 {
			tx.Remote(&table.Delta{Key: key(1000 + i), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
		}
	})
	s := &sending{keys: make(map[string]bool)}
	session := newSession(r, table.Owner{Node: "x", Incarnation: 1}, s)
	sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Owners = &mapsyncv1.OwnerRequest{Serial: 1}
	if err := session.subscribe(sub); err != nil {
		t.Fatal(err)
	}
	f := session.feeds[0]
	defer f.close()
	run := func() (caughtUp bool) {
		for range 100 {
			if _, err := f.step(r.localMaps()[testMap], time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range s.got {
			if b := m.GetBatch(); b != nil && !b.GetRequested() {
				caughtUp = b.GetCaughtUp()
			}
		}
		return caughtUp
	}
	if !run() || len(s.keys) != 100 {
		t.Fatalf("%d records sent, the last batch is the end: %t", len(s.keys), run())
	}
	if err := session.requestOwners(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Orphaned: true}); err != nil {
		t.Fatal(err)
	}
	// Changes of other owners move the position and bring the peer nothing.
	tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "x", Incarnation: 1})
		tx.Remote(&table.Delta{Key: key(5000), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
	})
	if !run() || len(s.keys) != 200 {
		t.Errorf("%d records sent, the last batch is the end: %t", len(s.keys), run())
	}
}
