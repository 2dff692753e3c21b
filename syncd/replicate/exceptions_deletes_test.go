package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// unsendable is a node a with an entry whose interface vanishes, and its peer b.
type unsendable struct {
	*testing.T
	a, b  *node
	links *testInterfaces
	m     *localMap
}

// key of the entry, and of another one.
var unsendableKey, sendableKey = []byte{2, 0, 0, 0}, []byte{1, 0, 0, 0}

func newUnsendable(t *testing.T) *unsendable {
	t.Helper()
	x := &unsendable{T: t, links: &testInterfaces{names: []string{"eth0", "eth1"}}}
	x.a = typedNode(t, "a", schematest.InterfaceKey(), x.links)
	x.b = typedNode(t, "b", schematest.InterfaceKey(), &testInterfaces{names: []string{"eth0", "eth1"}})
	x.m = x.a.r.localMaps()["typed"]
	connectNodes(x.a, x.b)
	return x
}

// deleteUnsent has the peer acknowledge the entry, and deletes it. The delete cannot be sent.
func (x *unsendable) deleteUnsent() {
	x.Helper()
	putValue(x.T, x.a, unsendableKey, []byte{1})
	poll.Within(x, deadline, "the entry is received", func() bool { return valueOf(x.b.tb, unsendableKey) != nil })
	x.awaitAcknowledged()
	x.delete()
	poll.Within(x, deadline, "the delete cannot be sent", x.m.unsentDeletes.stored)
}

// delete deletes the entry while its interface is missing.
func (x *unsendable) delete() {
	x.links.set("eth0")
	x.a.tb.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: unsendableKey, Op: table.OpDelete, Time: time.Now().UnixNano()})
	})
}

// acknowledged returns the position that all peers have acknowledged.
func (x *unsendable) acknowledged() uint64 { return x.a.r.ackSnapshot(time.Now()).position(x.m) }

// awaitAcknowledged waits until the peer has acknowledged everything.
func (x *unsendable) awaitAcknowledged() {
	x.Helper()
	poll.Within(x, deadline, "everything is acknowledged", func() bool { return x.acknowledged() >= x.a.tb.Stats().Head })
}

// TestDeleteWithoutInterface has the interface of a key vanish before the delete of the entry. The delete is sent once the interface is
// back, and its tombstone stays until then.
func TestDeleteWithoutInterface(t *testing.T) {
	x := newUnsendable(t)
	x.deleteUnsent()
	if p := x.acknowledged(); p != 0 {
		t.Errorf("acknowledged position while a delete cannot be sent: got %d, want 0", p)
	}
	x.links.set("eth0", "eth1")
	poll.Within(t, deadline, "the delete is received", func() bool {
		x.a.tb.View(func(tx *table.Tx) { x.m.unsentDigests(tx) }) // a comparison does not end the waiting
		var rec table.Record
		x.b.tb.View(func(tx *table.Tx) { tx.Get(unsendableKey, &rec) })
		return rec.Delete && !rec.Inferred
	})
	x.awaitAcknowledged()
}

// TestDeleteResentAbovePositions: the position of a delete that can be sent again is above each position that a peer has acknowledged.
func TestDeleteResentAbovePositions(t *testing.T) {
	x := newUnsendable(t)
	x.deleteUnsent()
	head := x.a.tb.Stats().Head
	x.links.set("eth0", "eth1")
	x.m.resendSendable()
	var rec table.Record
	x.a.tb.View(func(tx *table.Tx) { tx.Get(unsendableKey, &rec) })
	if rec.Position <= head || x.m.unsentDeletes.stored() {
		t.Errorf("delete that can be sent: got position %d, stored as unsent: %t, want one above %d, and not", rec.Position, x.m.unsentDeletes.stored(), head)
	}
}

// TestUnsentDeleteEnds: a delete that cannot be sent ends with its tombstone, also without a peer.
func TestUnsentDeleteEnds(t *testing.T) {
	x := newUnsendable(t)
	x.deleteUnsent()
	x.b.stop()
	x.a.r.SetPeers(nil)
	x.a.tb.Update(func(tx *table.Tx) { tx.Expire(time.Now().Add(2*time.Hour).UnixNano(), 100) })
	poll.Within(t, deadline, "no delete is stored", func() bool { return !x.m.unsentDeletes.stored() })
}

// TestDeleteOfUnsentRecord: peers were never sent the record, so that its delete blocks no acknowledgement. A comparison between the
// delete and the next batch forgets that, and the delete then waits like others. The test tries again.
func TestDeleteOfUnsentRecord(t *testing.T) {
	for range 30 {
		x := newUnsendable(t)
		x.links.set("eth0")
		putValue(t, x.a, unsendableKey, []byte{1})
		poll.Within(t, deadline, "the entry cannot be sent", func() bool { return x.m.unsent.count() == 1 })
		x.delete()
		putValue(t, x.a, sendableKey, []byte{1})
		poll.Within(t, deadline, "the other entry is received", func() bool { return valueOf(x.b.tb, sendableKey) != nil })
		if !x.m.unsentDeletes.stored() {
			x.awaitAcknowledged()
			return
		}
	}
	t.Error("acknowledgements: got none in any attempt, because deletes of records that were not sent are stored; want some")
}

// TestDeleteAfterAnUnsentChange: an entry changes and is deleted while its interface is missing. The delete is not sent again, so that
// only the comparison ends the entry of the peer.
func TestDeleteAfterAnUnsentChange(t *testing.T) {
	x := newUnsendable(t)
	putValue(t, x.a, unsendableKey, []byte{1})
	poll.Within(t, deadline, "the entry is received", func() bool { return valueOf(x.b.tb, unsendableKey) != nil })
	x.links.set("eth0")
	putValue(t, x.a, unsendableKey, []byte{2})
	poll.Within(t, deadline, "the change cannot be sent", func() bool { return x.m.unsent.count() == 1 })
	x.delete()
	poll.Within(t, deadline, "the comparison deletes the entry", func() bool { return valueOf(x.b.tb, unsendableKey) == nil })
}
