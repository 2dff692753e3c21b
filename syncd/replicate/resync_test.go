package replicate

import (
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// receiver is an inbound map stream without a stream, of node x.
type receiver struct {
	t      *testing.T
	r      *Replicator
	tb     *table.Table
	l      *link
	in     *intake
	writer *table.Cursor
}

func newStreamless(t *testing.T) *receiver {
	t.Helper()
	r, tb := newReceiver(t)
	x := Peer{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}
	r.SetPeers([]Peer{x})
	l, in := acceptedLink(r, x)
	l.up = true
	r.links["x"] = l
	c := tb.NewCursor(0)
	t.Cleanup(c.Close)
	return &receiver{t, r, tb, l, in, c}
}

func (x *receiver) take(m *mapsyncv1.SubscribeResponse) {
	x.t.Helper()
	if err := x.l.take(mustMarshal(x.t, m)); err != nil || x.in.err != nil {
		x.t.Fatal(err, x.in.err)
	}
}

// subscribe makes a new subscription and has it accepted.
func (x *receiver) subscribe(generation uint64, reset bool) *mapsyncv1.MapSubscription {
	x.t.Helper()
	var sub *mapsyncv1.MapSubscription
	for _, m := range x.l.requests(nil, x.r.localMaps(), time.Now()) {
		if m.GetSubscribe() != nil {
			sub = m.GetSubscribe()
		}
	}
	if sub == nil {
		x.t.Fatal("no subscription is made")
	}
	position := sub.GetResume().GetPosition()
	if reset {
		position = 0
	}
	x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
		Map: x.in.index, Generation: generation, Position: position, Reset_: reset, Schema: x.in.m.wire,
	}}})
	return sub
}

// acked returns the position that is acknowledged now, 0 if none is.
func (x *receiver) acked() (position uint64) {
	for _, m := range x.l.acks(nil) {
		position = m.GetAck().GetPosition()
	}
	return position
}

// write has the kernel map hold everything.
func (x *receiver) write() { write(x.tb, x.writer) }

// digest returns the digests of a peer that holds what this node holds of it.
func (x *receiver) digest(parts bool) *mapsyncv1.SubscribeResponse {
	m := &mapsyncv1.Digest{Map: x.in.index, Position: x.in.position, Key: x.tb.DigestID(), Scope: x.tb.DigestScope()}
	x.tb.View(func(tx *table.Tx) {
		g, buckets := digestOf(tx, "x", parts)
		m.Nodes = append(m.Nodes, g.message("x", buckets))
	})
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}}
}

// outOfTurn returns a batch of some keys of version 6 that the receiver asked for again.
func (x *receiver) outOfTurn(keys ...int) *mapsyncv1.SubscribeResponse {
	m := stockBatch(x.in.index, x.in.position, x.in.position, keys...)
	m.GetBatch().Retold, m.GetBatch().CaughtUp = true, false
	for _, d := range m.GetBatch().GetDeltas() {
		d.Version = 6
	}
	return m
}

// TestAcknowledgementAfterResume has a stream break while the kernel map is behind. The new
// stream counts from the position that was merged, and that is acknowledged once written.
func TestAcknowledgementAfterResume(t *testing.T) {
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	x.l.down(errors.New("broken"))
	if sub := x.subscribe(1, false); sub.GetResume().GetPosition() != 10 {
		t.Fatalf("resumes at %d", sub.GetResume().GetPosition())
	}
	if p := x.acked(); p != 0 {
		t.Errorf("position %d is acknowledged before it is written", p)
	}
	x.write()
	if p := x.acked(); p != 10 {
		t.Errorf("position %d is acknowledged when all is written, expected 10", p)
	}
	if p := x.acked(); p != 0 {
		t.Errorf("position %d is acknowledged a second time", p)
	}
}

// TestAcknowledgementOfABatchThatBringsNothing has a batch whose records the table holds
// already: its position is acknowledged all the same.
func TestAcknowledgementOfABatchThatBringsNothing(t *testing.T) {
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	x.write()
	if p := x.acked(); p != 10 {
		t.Fatalf("position %d is acknowledged, expected 10", p)
	}
	x.take(stockBatch(x.in.index, 10, 20, 1, 2))
	if p := x.acked(); p != 20 {
		t.Errorf("position %d is acknowledged, expected 20", p)
	}
	x.take(stockBatch(x.in.index, 20, 30))
	if p := x.acked(); p != 30 {
		t.Errorf("position %d is acknowledged, expected 30", p)
	}
	x.take(stockBatch(x.in.index, 30, 30, 1))
	if p := x.acked(); p != 0 {
		t.Errorf("position %d is acknowledged a second time", p)
	}
}

// TestAcknowledgementAfterRepair has a repair change what is not written yet: nothing that is
// merged later is acknowledged before it is.
func TestAcknowledgementAfterRepair(t *testing.T) {
	for name, test := range map[string]struct {
		bucket int // of this key
		keys   []int
	}{"brings a record": {3, []int{3}}, "deletes a record": {2, nil}} {
		t.Run(name, func(t *testing.T) {
			x := newStreamless(t)
			x.take(stockBatch(x.in.index, 0, 10, 1, 2))
			x.write()
			if p := x.acked(); p != 10 {
				t.Fatalf("position %d is acknowledged, expected 10", p)
			}
			set := bucketOf(x.tb, test.bucket)
			x.in.comparing.want = &set
			x.l.comparisons(nil)
			x.take(x.outOfTurn(test.keys...))
			x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: x.in.index}}})
			if x.in.comparing.divergent != 1 {
				t.Fatalf("%d entries repaired", x.in.comparing.divergent)
			}
			x.take(stockBatch(x.in.index, 10, 20))
			if p := x.acked(); p != 0 {
				t.Errorf("position %d is acknowledged while the repair is not written", p)
			}
			x.write()
			if p := x.acked(); p != 20 {
				t.Errorf("position %d is acknowledged when all is written, expected 20", p)
			}
		})
	}
}

// TestSweepThatRestarts breaks a full sync that is to delete what it does not meet before its
// first batch: the next one deletes it.
func TestSweepThatRestarts(t *testing.T) {
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	for range 3 {
		x.in.rewalk = time.Now().Add(-time.Second)
		x.subscribe(1, true)
		x.l.down(errors.New("broken"))
	}
	x.subscribe(1, true)
	x.take(stockBatch(x.in.index, 0, 10, 1))
	if got := live(x.tb); len(got) != 1 || got[1] != 1 {
		t.Errorf("left %v, expected what the sync met: 1", got)
	}
	// The next one is of another map: that it does not have a key means nothing.
	x.l.down(errors.New("broken"))
	x.subscribe(2, true)
	x.take(stockBatch(x.in.index, 0, 10, 5))
	if got := live(x.tb); len(got) != 2 {
		t.Errorf("left %v, expected 1 and 5", got)
	}
}

// TestAgreementIsOfOneStream has digests agree, and the stream break: on the new stream
// nothing is proven until they agree again, and a departure takes the proof back, too.
func TestAgreementIsOfOneStream(t *testing.T) {
	x := newStreamless(t)
	proven := func() bool { ok, _ := x.r.Agreed(); return ok }
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	if proven() {
		t.Error("proven without a comparison")
	}
	if x.take(x.digest(false)); !proven() {
		t.Fatal("not proven by equal digests")
	}
	x.l.down(errors.New("broken"))
	if proven() {
		t.Error("proven without a stream")
	}
	x.l.up = true
	x.subscribe(1, false)
	x.take(stockBatch(x.in.index, 10, 10))
	if !x.in.comparing.agreed || x.in.state != StateCaughtUp {
		t.Fatal("nothing is remembered, so nothing is tested")
	}
	if proven() {
		t.Error("proven on a stream on which nothing was compared")
	}
	if x.take(x.digest(false)); !proven() {
		t.Fatal("not proven by equal digests on the new stream")
	}
	peer := x.l.current()
	x.r.SetPeers([]Peer{peer, {Node: "z", Incarnation: 1, Addr: "127.0.0.1:1"}})
	x.r.SetPeers([]Peer{peer})
	if proven() {
		t.Error("proven although orphaned records may have come up since")
	}
	if x.take(x.digest(false)); !proven() {
		t.Error("not proven again")
	}
}

// TestVacuousComparison has a peer that sends digests of nothing, or of less than is to be
// compared: that proves nothing.
func TestVacuousComparison(t *testing.T) {
	for name, change := range map[string]func(*mapsyncv1.Digest){
		"of no node":                func(d *mapsyncv1.Digest) { d.Nodes = nil },
		"of another node":           func(d *mapsyncv1.Digest) { d.Nodes[0].Node = "y" },
		"with something left out":   func(d *mapsyncv1.Digest) { d.Unknown = "too many owners" },
		"without orphaned records":  func(d *mapsyncv1.Digest) { d.Orphaned = nil },
		"of another membership":     func(d *mapsyncv1.Digest) { d.Members++ },
		"of other orphaned records": func(d *mapsyncv1.Digest) { d.Orphaned.Sum++ },
		"of everything":             func(*mapsyncv1.Digest) {},
	} {
		t.Run(name, func(t *testing.T) {
			x := newStreamless(t)
			x.l.ownerRequests = true
			x.take(stockBatch(x.in.index, 0, 10, 1, 2))
			x.in.m.settled.Store(true)
			m := x.digest(false)
			m.GetDigest().Members, m.GetDigest().Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{}
			change(m.GetDigest())
			for range 2 * maxUnknowns {
				x.take(m)
			}
			ok, missing := x.r.Agreed()
			if want := name == "of everything"; ok != want {
				t.Errorf("proven: %t, missing %q", ok, missing)
			}
			st, _ := (&node{r: x.r}).status("x", testMap)
			unknown := name != "of everything" && name != "of other orphaned records"
			if (st.Incomparable != "") != unknown {
				t.Errorf("the status has the reason %q", st.Incomparable)
			}
		})
	}
	t.Run("while records are to come", func(t *testing.T) {
		x := newStreamless(t)
		x.l.ownerRequests = true
		x.take(stockBatch(x.in.index, 0, 10, 1, 2))
		m := x.digest(false)
		m.GetDigest().Members, m.GetDigest().Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{Sum: 1, Live: 1}
		for range 3 {
			x.take(m)
		}
		if ok, _ := x.r.Agreed(); ok || x.in.comparing.suspects != nil {
			t.Error("orphaned records are compared before they have been received")
		}
	})
}

// TestInitialSyncWaitsForWhatWasRequested has the peer send all of its own records, and those
// that were requested later.
func TestInitialSyncWaitsForWhatWasRequested(t *testing.T) {
	x := newStreamless(t)
	x.l.ownerRequests = true
	if !x.in.requesting.wanted.orphaned {
		t.Fatal("x started first and is not asked for orphaned records")
	}
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	if ok, _ := x.r.SyncedAll(); ok {
		t.Error("synced although requested records are to come")
	}
	sent := func(serial uint64) {
		x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_OwnersSent{
			OwnersSent: &mapsyncv1.OwnersSent{Map: x.in.index, Serial: serial, Token: 7},
		}})
	}
	sent(x.in.requesting.serial)
	if ok, waiting := x.r.SyncedAll(); !ok {
		t.Errorf("not synced: %v", waiting)
	}
	// A departure makes another request, which the former answer does not satisfy.
	before := x.in.requesting.serial
	peer := x.l.current()
	x.r.SetPeers([]Peer{peer, {Node: "z", Incarnation: 9, Addr: "127.0.0.1:1"}})
	x.r.SetPeers([]Peer{peer})
	x.r.assign(time.Now())
	sent(before)
	if ok, _ := x.r.SyncedAll(); ok {
		t.Error("synced although records have become orphaned that were not sent yet")
	}
	if out := x.l.requests(nil, x.r.localMaps(), time.Now()); len(out) != 1 || out[0].GetOwners().GetSerial() <= before || !out[0].GetOwners().GetOrphaned() {
		t.Errorf("requests %v", out)
	}
	sent(x.in.requesting.serial)
	if ok, waiting := x.r.SyncedAll(); !ok {
		t.Errorf("not synced again: %v", waiting)
	}
}

// TestPermit is the rule of whose records a peer may send to a node.
func TestPermit(t *testing.T) {
	x := newStreamless(t)
	x.l.ownerRequests = true
	peer, live := x.l.current(), Peer{Node: "live", Incarnation: 3, Addr: "127.0.0.1:1"}
	x.r.SetPeers([]Peer{peer, live})
	allowed := func() (names string) {
		for _, node := range []string{"x", "b", "live", "left"} {
			if x.in.requesting.permit.allows(x.r.view.Load(), node) {
				names += node + " "
			}
		}
		return names
	}
	confirm := func() {
		x.l.requests(nil, x.r.localMaps(), time.Now())
		x.in.takeOwnersSent(&mapsyncv1.OwnersSent{Serial: x.in.requesting.serial})
	}
	request := func(orphaned bool, nodes ...string) {
		x.in.request(&permit{peer: "x", orphaned: orphaned, nodes: nodes}, x.r.view.Load().departures, time.Now())
	}
	confirm()
	if got := allowed(); got != "x b left " {
		t.Errorf("a fallback sender may send the records of %s", got)
	}
	request(false, "live")
	if got := allowed(); got != "x b live left " {
		t.Errorf("until the new request is answered, it may send the records of %s", got)
	}
	if confirm(); allowed() != "x b live " {
		t.Errorf("a relay may send the records of %s", allowed())
	}
	request(false)
	if confirm(); allowed() != "x b " {
		t.Errorf("any other peer may send the records of %s", allowed())
	}
	// Records that were set aside under the view of then are requested again.
	request(true)
	confirm()
	x.in.requesting.withheld = true
	x.r.SetPeers([]Peer{peer})
	request(true)
	if m := x.in.ownerRequest(); !m.GetAgain() {
		t.Error("what was set aside is not requested again")
	}
	if m := x.in.ownerRequest(); m.GetAgain() {
		t.Error("it is requested more than once")
	}
}
