package replicate

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// keyRecorder is a stream that stores the keys of the records sent.
type keyRecorder struct {
	got  []*mapsyncv1.SubscribeResponse
	keys map[string]bool
}

func (s *keyRecorder) Send(m *mapsyncv1.SubscribeResponse) error {
	s.got = append(s.got, m)
	return nil
}

func (s *keyRecorder) SendMsg(m any) error {
	out := m.(*wire.SentFrame)
	var r mapsyncv1.SubscribeResponse
	err := proto.Unmarshal(frameBytes(out), &r)
	out.Free()
	for _, d := range r.GetBatch().GetDeltas() {
		s.keys[string(d.GetKey())] = true
	}
	s.got = append(s.got, &r)
	return err
}

// TestPositionLostDuringFullSync has the table forget deletes during a full sync. The full sync
// does not need the deletes from before its start, but the later ones.
func TestPositionLostDuringFullSync(t *testing.T) {
	for name, test := range map[string]struct {
		after bool // the delete comes after the start of the full sync
		lost  bool
	}{"before": {false, false}, "after": {true, true}} {
		t.Run(name, func(t *testing.T) {
			r, tb := newTestReplicator(t)
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
			s := &keyRecorder{keys: make(map[string]bool)}
			layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
			out := newOutboundMap(newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, s), subscription(1, testMap, layout), allOrphaned)
			defer out.close()
			step := func() bool {
				more, err := out.step(r.localMaps()[testMap], time.Now())
				if err != nil {
					t.Fatalf("step: got error %v, want nil", err)
				}
				return more
			}
			step() // sends MapAccepted
			step() // sends the first batch
			if n := len(s.keys); n == 0 || n > 1900 {
				t.Fatalf("records in the first batch: got %d, want 1 to 1900", n)
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
				t.Errorf("position lost: got %t, want %t", lost, test.lost)
			}
			if !lost && len(s.keys) < 1998 {
				t.Errorf("records sent: got %d, want at least 1998", len(s.keys))
			}
		})
	}
}

// TestCaughtUpAfterRequestedRecords has the position advance during a backfill: the peer receives
// the caught-up batch after the backfill.
func TestCaughtUpAfterRequestedRecords(t *testing.T) {
	r, tb := newTestReplicator(t)
	r.opt.positionInterval = time.Nanosecond
	putTable(t, tb, 0, 100, 1)
	tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "z", Incarnation: 1})
		for i := range 100 {
			tx.Remote(&table.Delta{Key: key(1000 + i), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
		}
	})
	s := &keyRecorder{keys: make(map[string]bool)}
	session := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, s)
	sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Owners = &mapsyncv1.OwnerRequest{Serial: 1}
	if err := session.subscribe(sub); err != nil {
		t.Fatalf("subscribe: got error %v, want nil", err)
	}
	out := session.maps[0]
	defer out.close()
	run := func() (caughtUp bool) {
		for range 100 {
			if _, err := out.step(r.localMaps()[testMap], time.Now()); err != nil {
				t.Fatalf("step: got error %v, want nil", err)
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
		t.Fatalf("got %d records sent, last batch caught up %t, want 100 and true", len(s.keys), run())
	}
	if err := session.handleOwnerRequest(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Orphaned: true}); err != nil {
		t.Fatalf("handle owner request: got error %v, want nil", err)
	}
	// Changes of other owners advance the position without records for the peer.
	tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "x", Incarnation: 1})
		tx.Remote(&table.Delta{Key: key(5000), Value: value(1), Version: 5, Owner: id}, 5, table.RemoteOptions{})
	})
	if !run() || len(s.keys) != 200 {
		t.Errorf("got %d records sent, last batch caught up %t, want 200 and true", len(s.keys), run())
	}
}
