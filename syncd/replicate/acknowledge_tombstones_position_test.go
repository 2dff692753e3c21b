package replicate

import (
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
)

// readyReport is the report of a peer that is ready.
var readyReport = &receivedReport{m: &mapsyncv1.MapReport{State: NodeStateReady}}

// TestAcknowledgedPositionOfAllNodes checks up to which position a table may forget tombstones early.
func TestAcknowledgedPositionOfAllNodes(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(v *ackSnapshot, x, c *outboundMap)
		want   uint64
	}{
		"all peers acknowledge":               {func(*ackSnapshot, *outboundMap, *outboundMap) {}, 10},
		"the slower peer limits the position": {func(_ *ackSnapshot, _, c *outboundMap) { c.ackedPosition.Store(7) }, 7},
		"the other peer limits the position":  {func(_ *ackSnapshot, x, _ *outboundMap) { x.ackedPosition.Store(7) }, 7},
		"a peer is not ready": {func(_ *ackSnapshot, _, c *outboundMap) {
			c.peerReport.Store(&receivedReport{&mapsyncv1.MapReport{State: NodeStateNotReady}, now})
		}, 0},
		"a peer has not been ready for the TTL": {func(v *ackSnapshot, _, c *outboundMap) {
			c.peerReport.Store(&receivedReport{&mapsyncv1.MapReport{State: NodeStateNotReady}, now})
			v.now = now.Add(time.Hour)
		}, 10},
		"a peer is drained": {func(_ *ackSnapshot, _, c *outboundMap) {
			c.peerReport.Store(&receivedReport{&mapsyncv1.MapReport{State: NodeStateDrained}, now})
		}, 10},
		"a peer does not know whether it is ready": {func(_ *ackSnapshot, _, c *outboundMap) {
			c.peerReport.Store(&receivedReport{&mapsyncv1.MapReport{}, now})
		}, 10},
		"a peer has yet to report":                       {func(_ *ackSnapshot, _, c *outboundMap) { c.peerReport.Store(nil) }, 0},
		"a peer is not served yet":                       {func(_ *ackSnapshot, _, c *outboundMap) { c.serving.Store(false) }, 0},
		"a peer has no stream":                           {func(v *ackSnapshot, _, _ *outboundMap) { v.streams = v.streams[:1] }, 0},
		"a new stream has no subscription":               {func(_ *ackSnapshot, _, c *outboundMap) { c.unsubscribed.Store(true) }, 0},
		"a new stream has a subscription to another map": {func(_ *ackSnapshot, _, c *outboundMap) { c.name = "other" }, 0},
		"a stream has had no subscription for long": {func(v *ackSnapshot, _, c *outboundMap) {
			c.unsubscribed.Store(true)
			v.now = now.Add(subscribeGrace + 1)
		}, 10},
		"a stream has had no subscription for subscribeGrace": {func(v *ackSnapshot, _, c *outboundMap) { c.unsubscribed.Store(true); v.now = now.Add(subscribeGrace) }, 0},
		"a subscription has been pending for long":            {func(v *ackSnapshot, _, c *outboundMap) { c.serving.Store(false); v.now = now.Add(time.Hour / 2) }, 0},
		"the stream belongs to an earlier incarnation":        {func(v *ackSnapshot, _, c *outboundMap) { c.s.target.Incarnation-- }, 0},
		"the slower peer has left":                            {func(v *ackSnapshot, _, c *outboundMap) { c.ackedPosition.Store(3); delete(v.live, "c") }, 10},
		"the slower peer, of incarnation 0, has left": {func(v *ackSnapshot, _, c *outboundMap) {
			c.ackedPosition.Store(3)
			c.s.target.Incarnation = 0
			delete(v.live, "c")
		}, 10},
		"the only stream of a peer observes":                       {func(_ *ackSnapshot, _, c *outboundMap) { makeObserver(c, 20) }, 0},
		"no peer is live":                                          {func(v *ackSnapshot, _, _ *outboundMap) { clear(v.live) }, 1<<64 - 1},
		"membership is not set":                                    {func(v *ackSnapshot, _, _ *outboundMap) { v.membershipSince = time.Time{} }, 0},
		"a node has left":                                          {func(v *ackSnapshot, _, _ *outboundMap) { v.goneAt["z"] = now }, 0},
		"a node left 1 ns less than the TTL ago":                   {func(v *ackSnapshot, _, _ *outboundMap) { v.goneAt["z"] = now.Add(1 - time.Hour) }, 0},
		"a node left a TTL ago":                                    {func(v *ackSnapshot, _, _ *outboundMap) { v.goneAt["z"] = now.Add(-time.Hour) }, 10},
		"an unverified owner was found 1 ns less than the TTL ago": {func(v *ackSnapshot, _, _ *outboundMap) { v.unverifiedAt = now.Add(1 - time.Hour) }, 0},
		"an unverified owner was found a TTL ago":                  {func(v *ackSnapshot, _, _ *outboundMap) { v.unverifiedAt = now.Add(-time.Hour) }, 10},
		"an expected peer was never live":                          {func(v *ackSnapshot, _, _ *outboundMap) { v.expected = 3 }, 0},
		"an expected peer was never live, 1 ns before the TTL":     {func(v *ackSnapshot, _, _ *outboundMap) { v.expected, v.membershipSince = 3, now.Add(1-time.Hour) }, 0},
		"an expected peer was never live, after the TTL":           {func(v *ackSnapshot, _, _ *outboundMap) { v.expected, v.membershipSince = 3, now.Add(-time.Hour) }, 10},
		"all expected peers are live":                              {func(v *ackSnapshot, _, _ *outboundMap) { v.expected = 2 }, 10},
	} {
		r, _ := newTestReplicator(t)
		m := r.localMaps()[testMap]
		v := &ackSnapshot{now: now, live: map[string]Peer{}, goneAt: map[string]time.Time{}, membershipSince: now}
		var maps []*outboundMap
		for _, owner := range []Peer{{Node: "x", Incarnation: 3}, {Node: "c", Incarnation: 9}} {
			s := newOutboundStream(r, owner.owner(), nil)
			s.startedAt = now
			out := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
			out.serving.Store(true)
			out.ackedPosition.Store(10)
			out.peerReport.Store(readyReport)
			s.maps = []*outboundMap{out}
			v.live[owner.Node], v.streams, maps = owner, append(v.streams, s), append(maps, out)
		}
		c.change(v, maps[0], maps[1])
		if got := v.position(m); got != c.want {
			t.Errorf("%s: acknowledged position: got %d, want %d", name, got, c.want)
		}
	}
}

// makeObserver makes a map stream one of an observer, which acknowledges nothing.
func makeObserver(out *outboundMap, sent uint64) {
	out.observe = true
	out.ackedPosition.Store(0)
	out.sentPosition.Store(sent)
}

// TestObserverLimitsAcknowledgedPosition checks that an observer limits the acknowledged position
// to the position sent, once it is served.
func TestObserverLimitsAcknowledgedPosition(t *testing.T) {
	r, _ := newTestReplicator(t)
	m := r.localMaps()[testMap]
	s := newOutboundStream(r, target, nil)
	out := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap, Observe: true}, allOrphaned)
	s.maps = []*outboundMap{out}
	makeObserver(out, 6)
	v := &ackSnapshot{now: time.Now(), membershipSince: time.Now(), streams: []*outboundStream{s}}
	if p := v.position(m); p != 1<<64-1 {
		t.Errorf("observer that is not served: got acknowledged position %d, want no limit", p)
	}
	out.serving.Store(true)
	if p := v.position(m); p != 6 {
		t.Errorf("observer that was sent position 6: got acknowledged position %d, want 6", p)
	}
}

// TestDeparturesExpireWithTombstoneTTL checks that goneAt keeps a node for the longest TombstoneTTL
// of all maps.
func TestDeparturesExpireWithTombstoneTTL(t *testing.T) {
	r, tb := newTestReplicator(t)
	now := time.Now()
	r.membershipSince = now
	r.goneAt["z"], r.goneAt["y"] = now.Add(-tb.TombstoneTTL()), now.Add(1-tb.TombstoneTTL())
	v := r.ackSnapshot(now)
	if _, ok := r.goneAt["z"]; ok || len(r.goneAt) != 1 {
		t.Errorf("departures of nodes: got %v, want only the recent one", r.goneAt)
	}
	if len(v.goneAt) != 1 || v.position(r.localMaps()[testMap]) != 0 {
		t.Errorf("departures in the snapshot: got %v, want the recent one, which holds back the position", v.goneAt)
	}
}

// TestPeerThatResubscribesCountsMeanwhile has a peer end its subscription on an old stream, and subscribe
// again later. Meanwhile it counts as a peer with the map, because it resumes at its old position and
// may hold the records of deletes that it has not received.
func TestPeerThatResubscribesCountsMeanwhile(t *testing.T) {
	for name, end := range map[string]func(s *outboundStream, out *outboundMap) error{
		"ended by the peer": func(s *outboundStream, _ *outboundMap) error {
			return s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{Unsubscribe: &mapsyncv1.MapUnsubscription{Map: 1}}})
		},
		"ended by this node": func(_ *outboundStream, out *outboundMap) error {
			return out.end(mapsyncv1.EndReason_END_REASON_POSITION_LOST)
		},
	} {
		o := newOutboundFixture(t)
		m, now := o.r.localMaps()[testMap], time.Now()
		o.sendPending()
		o.s.startedAt = now.Add(-time.Hour)
		v := &ackSnapshot{now: now, live: map[string]Peer{"x": {Node: "x", Incarnation: 3}}, membershipSince: now, streams: []*outboundStream{o.s}}
		if err := end(o.s, o.m); err != nil {
			t.Fatalf("end of the map: got error %v, want nil", err)
		}
		for after, want := range map[time.Duration]uint64{0: 0, subscribeGrace - time.Second: 0, subscribeGrace + time.Minute: 1<<64 - 1} {
			if v.now = now.Add(after); v.position(m) != want {
				t.Errorf("%s, after %s: acknowledged position: got %d, want %d", name, after, v.position(m), want)
			}
		}
	}
	// A name that only the peer has chosen is not stored.
	_, s := newSubscribedStream(t)
	if err := s.subscribe(subscription(2, "unknown", Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
		t.Fatalf("subscribe: got error %v, want nil", err)
	}
	if err := s.unsubscribe(2); err != nil || len(s.endedAt) != 0 {
		t.Errorf("ended subscription to an unknown map: got error %v, %d stored ends, want none", err, len(s.endedAt))
	}
}

// TestTombstonesAreKeptWhileRecordsAreFiltered: a peer has records of an earlier incarnation of this node that this node has
// filtered. They may be above the tombstones that the peer has acknowledged, so that the tombstones stay until a full sync has
// brought the records.
func TestTombstonesAreKeptWhileRecordsAreFiltered(t *testing.T) {
	r, _ := newTestReplicator(t)
	m, p := r.localMaps()[testMap], Peer{Node: "x", Incarnation: 3}
	s, in := newAcceptedStream(r, p)
	sender := newOutboundStream(r, p.owner(), nil)
	out := newOutboundMap(sender, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
	out.serving.Store(true)
	out.peerReport.Store(readyReport)
	out.ackedPosition.Store(10)
	sender.maps = []*outboundMap{out}
	r.inboundStreams["x"], r.outboundStreams[sender] = s, struct{}{}
	r.SetPeers([]Peer{p})
	now := time.Now()
	filter := func() {
		in.unheld.Store(true)
		in.handleMerged(&wire.Batch{Position: in.position}, mergeResult{}, now)
	}
	for _, step := range []struct {
		name string
		do   func()
		want uint64
	}{
		{"all records were merged", func() {}, 10},
		{"a record was filtered", filter, 0},
		{"a full sync brings it again", func() { in.position = 1; in.beginFullSync(true, 0) }, 0},
		{"the full sync has ended", in.handleCaughtUp, 10},
		{"a record was filtered again", filter, 0},
		{"the peer has no map any more", func() { in.state = StatePending }, 10},
		{"the map does not fit", func() { in.state = StateRefused }, 10},
		{"the peer may not write the map", func() { in.state = StateExcluded }, 10},
		{"the peer has the map again", func() { in.state = StateCaughtUp }, 0},
		{"full syncs do not bring it", func() { in.beginFullSync(true, 0); filter(); in.handleCaughtUp() }, 0},
		{"it is filtered for the lifetime of tombstones", func() { now = now.Add(m.table.TombstoneTTL()) }, 10},
		{"a full sync has brought it", func() { in.beginFullSync(true, 0); in.handleCaughtUp() }, 10},
		{"another record was filtered", filter, 0},
	} {
		step.do()
		if got := r.ackSnapshot(now).position(m); got != step.want {
			t.Errorf("%s: acknowledged position: got %d, want %d", step.name, got, step.want)
		}
	}
}
