package replicate

import (
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// inboundFixture is an inbound map stream from node x, without a gRPC stream.
type inboundFixture struct {
	t      *testing.T
	r      *Replicator
	tb     *table.Table
	stream *inboundStream
	in     *inboundMap
	writer *table.Cursor
}

func newInboundFixture(t *testing.T) *inboundFixture {
	t.Helper()
	r, tb := newTestReplicator(t)
	x := Peer{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}
	r.SetPeers([]Peer{x})
	s, in := newAcceptedStream(r, x)
	s.up = true
	r.inboundStreams["x"] = s
	c := tb.NewCursor(0)
	t.Cleanup(c.Close)
	return &inboundFixture{t, r, tb, s, in, c}
}

func (x *inboundFixture) handle(m *mapsyncv1.SubscribeResponse) {
	x.t.Helper()
	if err := x.stream.handle(mustMarshal(x.t, m)); err != nil || x.in.err != nil {
		x.t.Fatalf("handle a message: got error %v, error of the map %v, want none", err, x.in.err)
	}
}

// subscribe requests a new subscription and accepts it.
func (x *inboundFixture) subscribe(generation uint64, reset bool) *mapsyncv1.MapSubscription {
	x.t.Helper()
	var sub *mapsyncv1.MapSubscription
	for _, m := range x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now()) {
		if m.GetSubscribe() != nil {
			sub = m.GetSubscribe()
		}
	}
	if sub == nil {
		x.t.Fatal("subscribe: got no request, want one")
	}
	position := sub.GetResume().GetPosition()
	if reset {
		position = 0
	}
	x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
		Map: x.in.index, Generation: generation, Position: position, Reset_: reset, Schema: x.in.m.wireSchema,
	}}})
	return sub
}

// newAck returns the position that the next acknowledgement has; 0: none.
func (x *inboundFixture) newAck() (position uint64) {
	for _, m := range x.stream.appendAcks(nil) {
		position = m.GetAck().GetPosition()
	}
	return position
}

// writeAll writes all records to the kernel map.
func (x *inboundFixture) writeAll() { write(x.tb, x.writer) }

// digestMessage returns the digests of a peer with the same records as this node.
func (x *inboundFixture) digestMessage(parts bool) *mapsyncv1.SubscribeResponse {
	m := &mapsyncv1.Digest{Map: x.in.index, Position: x.in.position, KeyFingerprint: x.tb.DigestID(), ScopeFingerprint: x.tb.DigestScope()}
	x.tb.View(func(tx *table.Tx) {
		digest, buckets := digestOf(tx, "x", parts)
		m.Nodes = append(m.Nodes, wire.NodeDigestToProto("x", digest, buckets))
	})
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}}
}

// resentBatch returns a resent batch with some keys of version 6.
func (x *inboundFixture) resentBatch(keys ...int) *mapsyncv1.SubscribeResponse {
	m := stockBatch(x.in.index, x.in.position, x.in.position, keys...)
	m.GetBatch().Resent, m.GetBatch().CaughtUp = true, false
	for _, d := range m.GetBatch().GetDeltas() {
		d.Version = 6
	}
	return m
}

// TestAcknowledgementAfterResume has a stream break before the kernel map holds all records. The
// new stream resumes from the merged position, which is acknowledged once written.
func TestAcknowledgementAfterResume(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	x.stream.markDown(errors.New("broken"))
	if sub := x.subscribe(1, false); sub.GetResume().GetPosition() != 10 {
		t.Fatalf("resume: got position %d, want 10", sub.GetResume().GetPosition())
	}
	if p := x.newAck(); p != 0 {
		t.Errorf("acknowledged position before the write: got %d, want 0", p)
	}
	x.writeAll()
	if p := x.newAck(); p != 10 {
		t.Errorf("acknowledged position after the write: got %d, want 10", p)
	}
	if p := x.newAck(); p != 0 {
		t.Errorf("second acknowledgement: got position %d, want none", p)
	}
}

// TestAckOfBatchWithoutChanges has a batch with records that the table already holds. Its position is
// acknowledged, too.
func TestAckOfBatchWithoutChanges(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	x.writeAll()
	if p := x.newAck(); p != 10 {
		t.Fatalf("acknowledged position: got %d, want 10", p)
	}
	x.handle(stockBatch(x.in.index, 10, 20, 1, 2))
	if p := x.newAck(); p != 20 {
		t.Errorf("acknowledged position: got %d, want 20", p)
	}
	x.handle(stockBatch(x.in.index, 20, 30))
	if p := x.newAck(); p != 30 {
		t.Errorf("acknowledged position: got %d, want 30", p)
	}
	x.handle(stockBatch(x.in.index, 30, 30, 1))
	if p := x.newAck(); p != 0 {
		t.Errorf("second acknowledgement: got position %d, want none", p)
	}
}

// TestAcknowledgementAfterRepair has a repair change unwritten records: batches merged later are
// acknowledged after the repair is written.
func TestAcknowledgementAfterRepair(t *testing.T) {
	for name, test := range map[string]struct {
		bucket int // the bucket of this key
		keys   []int
	}{"brings a record": {3, []int{3}}, "deletes a record": {2, nil}} {
		t.Run(name, func(t *testing.T) {
			x := newInboundFixture(t)
			x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
			x.writeAll()
			if p := x.newAck(); p != 10 {
				t.Fatalf("acknowledged position: got %d, want 10", p)
			}
			set := bucketOf(x.tb, test.bucket)
			x.in.comparison.chooseBuckets(&set, x.tb.DigestID())
			x.stream.appendComparisons(nil)
			x.handle(x.resentBatch(test.keys...))
			x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: x.in.index}}})
			if x.in.comparison.divergent != 1 {
				t.Fatalf("repaired entries: got %d, want 1", x.in.comparison.divergent)
			}
			x.handle(stockBatch(x.in.index, 10, 20))
			if p := x.newAck(); p != 0 {
				t.Errorf("acknowledged position before the repair is written: got %d, want 0", p)
			}
			x.writeAll()
			if p := x.newAck(); p != 20 {
				t.Errorf("acknowledged position after the write: got %d, want 20", p)
			}
		})
	}
}

// TestSweepAfterBrokenFullSync breaks a full sync with a sweep before its first batch: the next
// full sync deletes the records that it does not contain.
func TestSweepAfterBrokenFullSync(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	for range 3 {
		x.in.repeatFullSyncAt = time.Now().Add(-time.Second)
		x.subscribe(1, true)
		x.stream.markDown(errors.New("broken"))
	}
	x.subscribe(1, true)
	x.handle(stockBatch(x.in.index, 0, 10, 1))
	if got := live(x.tb); len(got) != 1 || got[1] != 1 {
		t.Errorf("live records: got %v, want key 1", got)
	}
	// The next full sync is of another map, so a missing key is not deleted.
	x.stream.markDown(errors.New("broken"))
	x.subscribe(2, true)
	x.handle(stockBatch(x.in.index, 0, 10, 5))
	if got := live(x.tb); len(got) != 2 {
		t.Errorf("live records: got %v, want keys 1 and 5", got)
	}
}

// TestInSyncIsPerStream has the stream break after the digests agreed: on the new stream they have
// to agree again, and also after a departure.
func TestInSyncIsPerStream(t *testing.T) {
	x := newInboundFixture(t)
	inSync := func() bool { ok, _ := x.r.InSync(); return ok }
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	if inSync() {
		t.Error("in sync without a comparison: got true, want false")
	}
	if x.handle(x.digestMessage(false)); !inSync() {
		t.Fatal("in sync with equal digests: got false, want true")
	}
	x.stream.markDown(errors.New("broken"))
	if inSync() {
		t.Error("in sync without a stream: got true, want false")
	}
	x.stream.up = true
	x.subscribe(1, false)
	x.handle(stockBatch(x.in.index, 10, 10))
	if !x.in.comparison.inSync || x.in.state != StateCaughtUp {
		t.Fatal("state after the stream broke: got other state, want in sync and caught up as before")
	}
	if inSync() {
		t.Error("in sync without a comparison on this stream: got true, want false")
	}
	if x.handle(x.digestMessage(false)); !inSync() {
		t.Fatal("in sync with equal digests on the new stream: got false, want true")
	}
	peer := x.stream.currentPeer()
	x.r.SetPeers([]Peer{peer, {Node: "z", Incarnation: 1, Addr: "127.0.0.1:1"}})
	x.r.SetPeers([]Peer{peer})
	if inSync() {
		t.Error("in sync after a departure: got true, want false")
	}
	if x.handle(x.digestMessage(false)); !inSync() {
		t.Error("in sync with equal digests after a departure: got false, want true")
	}
}

// TestIncompleteDigests has a peer send no digests, or fewer than required: such a comparison is
// inconclusive.
func TestIncompleteDigests(t *testing.T) {
	for name, change := range map[string]func(*mapsyncv1.Digest){
		"no node":                func(d *mapsyncv1.Digest) { d.Nodes = nil },
		"another node":           func(d *mapsyncv1.Digest) { d.Nodes[0].Node = "y" },
		"some records excluded":  func(d *mapsyncv1.Digest) { d.InconclusiveReason = "too many owners" },
		"no orphaned records":    func(d *mapsyncv1.Digest) { d.Orphaned = nil },
		"another membership":     func(d *mapsyncv1.Digest) { d.MembersFingerprint++ },
		"other orphaned records": func(d *mapsyncv1.Digest) { d.Orphaned.Sum++ },
		"complete":               func(*mapsyncv1.Digest) {},
	} {
		t.Run(name, func(t *testing.T) {
			x := newInboundFixture(t)
			x.stream.supportsOwnerRequests = true
			x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
			x.in.m.requestsComplete.Store(true)
			m := x.digestMessage(false)
			m.GetDigest().MembersFingerprint, m.GetDigest().Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{}
			change(m.GetDigest())
			for range 2 * maxInconclusive {
				x.handle(m)
			}
			ok, missing := x.r.InSync()
			if want := name == "complete"; ok != want {
				t.Errorf("in sync: got %t, missing %q, want %t", ok, missing, want)
			}
			st, _ := (&node{r: x.r}).status("x", testMap)
			unknown := name != "complete" && name != "other orphaned records"
			if (st.Incomparable != "") != unknown {
				t.Errorf("reason in the status: got %q, want a reason: %t", st.Incomparable, unknown)
			}
		})
	}
	t.Run("requested records are missing", func(t *testing.T) {
		x := newInboundFixture(t)
		x.stream.supportsOwnerRequests = true
		x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
		m := x.digestMessage(false)
		m.GetDigest().MembersFingerprint, m.GetDigest().Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{Sum: 1, Live: 1}
		for range 3 {
			x.handle(m)
		}
		if ok, _ := x.r.InSync(); ok || x.in.comparison.divergentNodes != nil {
			t.Error("orphaned records that are not received yet: got compared, want ignored")
		}
	})
}

// TestInitialSyncWaitsForRequestedRecords has the peer send all of its own records, and later the
// requested records.
func TestInitialSyncWaitsForRequestedRecords(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.supportsOwnerRequests = true
	if !x.in.owners.requested.orphaned {
		t.Fatal("first request: got no orphaned records, want them: x started first")
	}
	x.r.assignRoles(time.Now())
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	if ok, _ := x.r.InitialSyncDone(); ok {
		t.Error("initial sync with missing requested records: got done, want not done")
	}
	sent := func(serial uint64) {
		x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_OwnersSent{
			OwnersSent: &mapsyncv1.OwnersSent{Map: x.in.index, Serial: serial, Token: 7},
		}})
	}
	sent(x.in.owners.serial)
	if ok, waiting := x.r.InitialSyncDone(); !ok {
		t.Errorf("initial sync: got waiting %v, want done", waiting)
	}
	// A departure causes another request. The earlier answer does not satisfy it.
	before := x.in.owners.serial
	peer := x.stream.currentPeer()
	x.r.SetPeers([]Peer{peer, {Node: "z", Incarnation: 9, Addr: "127.0.0.1:1"}})
	x.r.SetPeers([]Peer{peer})
	x.r.assignRoles(time.Now())
	sent(before)
	if ok, _ := x.r.InitialSyncDone(); ok {
		t.Error("initial sync after a departure: got done, want not done")
	}
	if out := x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now()); len(out) != 1 || out[0].GetOwners().GetSerial() <= before || !out[0].GetOwners().GetOrphaned() {
		t.Errorf("requests after a departure: got %v, want one with orphaned records and a serial above %d", out, before)
	}
	sent(x.in.owners.serial)
	if ok, waiting := x.r.InitialSyncDone(); !ok {
		t.Errorf("initial sync after the answer: got waiting %v, want done", waiting)
	}
}

// TestPermit checks whose records a peer may send to a node.
func TestPermit(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.supportsOwnerRequests = true
	peer, live := x.stream.currentPeer(), Peer{Node: "live", Incarnation: 3, Addr: "127.0.0.1:1"}
	x.r.SetPeers([]Peer{peer, live})
	allowed := func() (names string) {
		for _, node := range []string{"x", "b", "live", "left"} {
			if x.in.owners.permit.allows(x.r.view.Load(), node, false) {
				names += node + " "
			}
		}
		return names
	}
	confirm := func() {
		x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now())
		x.in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: x.in.owners.serial})
	}
	request := func(orphaned bool, nodes ...string) {
		x.in.setRequest(&permit{peer: "x", orphaned: orphaned, nodes: nodes}, x.r.view.Load().departures, time.Now())
	}
	confirm()
	if got := allowed(); got != "x b left " {
		t.Errorf("permit of a fallback sender: got %s, want \"x b left \"", got)
	}
	request(false, "live")
	if got := allowed(); got != "x b live left " {
		t.Errorf("permit before the new request is answered: got %s, want \"x b live left \"", got)
	}
	if confirm(); allowed() != "x b live " {
		t.Errorf("permit of a relay: got %s, want \"x b live \"", allowed())
	}
	request(false)
	if got := allowed(); got != "x b " {
		t.Errorf("permit of a former relay that has not confirmed: got %s, want \"x b \"", got)
	}
	x.in.owners.rejectedUnrequested = true // records on their way
	request(false, "live")
	if m := x.in.ownerRequestMessage(); !m.GetResend() {
		t.Error("request of a relay again after a rejection: got no resend, want resend")
	}
	request(false)
	if confirm(); allowed() != "x b " {
		t.Errorf("permit of any other peer: got %s, want \"x b \"", allowed())
	}
	// Records that were rejected under an earlier view are requested again.
	request(true)
	confirm()
	x.in.owners.rejectedUnrequested = true
	x.r.SetPeers([]Peer{peer})
	request(true)
	if m := x.in.ownerRequestMessage(); !m.GetResend() {
		t.Error("request after a rejection and a departure: got no resend, want resend")
	}
	if m := x.in.ownerRequestMessage(); m.GetResend() {
		t.Error("second request: got resend, want no resend")
	}
}
