package replicate

import (
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestRequestDuringAWalk has the receiver request more owners while records that the stream
// has passed are sent again. The table is locked then, and the walk's cursor is given up after.
func TestRequestDuringAWalk(t *testing.T) {
	r, tb := newReceiver(t)
	putTable(t, tb, 1, 5000, 1)
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	s := &sending{keys: make(map[string]bool)}
	f := newFeed(newSession(r, table.Owner{Node: "x", Incarnation: 1}, s), subscription(1, testMap, layout), &ownerRequest{})
	f.requested.plain = false
	defer f.close()
	steps := make(chan error)
	step := func() {
		t.Helper()
		go func() {
			_, err := f.step(r.localMaps()[testMap], time.Now())
			steps <- err
		}()
		select {
		case err := <-steps:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the feed stands still")
		}
	}
	for !f.exhausted {
		step()
	}
	f.requested.request.Store(&ownerRequest{serial: 1, nodes: []string{"c"}})
	for f.requested.walk == nil {
		step()
	}
	step()
	walk := f.requested.walk
	if walk == nil {
		t.Fatal("the walk is over after one step")
	}
	f.requested.request.Store(&ownerRequest{serial: 2, nodes: []string{"c", "d"}, orphaned: true})
	step()
	if f.requested.walk == walk {
		t.Error("the walk goes on without the owners that were added")
	}
	for f.requested.pending() {
		step()
	}
	if f.requested.answered != 2 {
		t.Errorf("request %d is answered last, want 2", f.requested.answered)
	}
}
