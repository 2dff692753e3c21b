package replicate

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("marshal: got error %v, want nil", err)
	}
	return b
}

// richLayout returns the layout of the map of the fuzz targets.
func richLayout() Layout {
	s := schematest.Rich()
	return Layout{KeySize: s.Key.Size, ValueSize: s.Value.Size, Schema: s, Links: &testInterfaces{names: []string{"lo", "eth0"}}}
}

// fuzzReplicator returns a replicator with one map that has fields of all kinds.
func fuzzReplicator(t testing.TB) (*Replicator, *table.Table) {
	t.Helper()
	r, err := New(Options{
		Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial,
		Times: func() schema.Times { return schema.Times{Ktime: 1e18, Boottime: 1e18, JiffiesAt: 1e18, Tick: 4e6} },
	})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	layout := richLayout()
	tb := newSizedTable(t, r.opt.Self, layout.KeySize, layout.ValueSize, true)
	if err := r.AddMap(testMap, layout, tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	return r, tb
}

func richDelta(t testing.TB, i byte) *mapsyncv1.Delta {
	t.Helper()
	layout := richLayout()
	e, err := schema.NewEncoder(layout.Schema, layout.Links)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	key, value := schematest.RichEntry(i)
	d := &mapsyncv1.Delta{Version: 5 + uint64(i), Operation: mapsyncv1.Operation_OPERATION_UPDATE}
	if d.Key, err = e.AppendKey(nil, key); err != nil {
		t.Fatalf("encode key: got error %v, want nil", err)
	}
	d.Value = e.AppendValue(nil, nil, value, &schema.Times{Ktime: 1e18, Boottime: 1e18, JiffiesAt: 1e18, Tick: 4e6})
	return d
}

func fuzzBatch(t testing.TB) *mapsyncv1.Batch {
	deltas := []*mapsyncv1.Delta{richDelta(t, 0), richDelta(t, 1), richDelta(t, 2), richDelta(t, 3)}
	deltas[2].Owner, deltas[2].Operation, deltas[2].Value = 1, mapsyncv1.Operation_OPERATION_DELETE, nil
	deltas[3].Owner = 2
	return &mapsyncv1.Batch{
		Map: 1, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}, Position: 7,
		Owners: []*mapsyncv1.Incarnation{{Node: "x", Number: 1}, {Node: "b", Number: 1}, {Node: "b", Number: 2}},
		Deltas: deltas, CaughtUp: true,
	}
}

// FuzzBatch passes data to the decoder and to the merge.
func FuzzBatch(f *testing.F) {
	f.Add(mustMarshal(f, fuzzBatch(f)))
	f.Add(mustMarshal(f, &mapsyncv1.Batch{Map: 1, Origin: &mapsyncv1.Incarnation{Node: "x", Number: 1}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, tb := fuzzReplicator(t)
		s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
		if err := s.handleBatch(data); err == nil && in.state == StateCaughtUp && in.position < s.batch.PreviousPosition {
			t.Fatalf("position %d after a batch from %d, want no lower position", in.position, s.batch.PreviousPosition)
		}
		checkTable(t, tb)
	})
}

// checkTable checks that each merged record can be encoded, and that decoding returns the same record.
func checkTable(t *testing.T, tb *table.Table) {
	t.Helper()
	layout := richLayout()
	e, err := schema.NewEncoder(layout.Schema, layout.Links)
	if err != nil {
		t.Fatalf("new encoder: got error %v, want nil", err)
	}
	d, err := schema.NewDecoder(layout.Schema, layout.Schema, layout.Links)
	if err != nil {
		t.Fatalf("new decoder: got error %v, want nil", err)
	}
	again := make([]byte, layout.KeySize)
	c := tb.NewCursor(0)
	defer c.Close()
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		for tx.Next(c, &rec) {
			if rec.Version == 0 || (!rec.Delete && len(rec.Value) != layout.ValueSize) || tx.Owner(rec.Owner).Node == "" {
				t.Fatalf("invalid record: got %+v, want a version, an owner, and a value of %d bytes unless deleted",
					rec, layout.ValueSize)
			}
			key, err := e.AppendKey(nil, rec.Key)
			if err != nil {
				t.Fatalf("encode key %x: %v", rec.Key, err)
			}
			if err := d.Key(again, key); err != nil || string(again) != string(rec.Key) {
				t.Fatalf("key %x: got %x after encoding and decoding: %v, want the same key and no error", rec.Key, again, err)
			}
		}
	})
}

// FuzzResponses passes a sequence of messages to a receiver, each with its length before it.
func FuzzResponses(f *testing.F) {
	wireSchema := wire.SchemaToProto(schematest.Rich())
	var run []byte
	for _, m := range []*mapsyncv1.SubscribeResponse{
		{Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: 1}}},
		{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: 1, Generation: 3, Reset_: true, Schema: wireSchema}}},
		{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: fuzzBatch(f)}},
		{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}},
		{Message: &mapsyncv1.SubscribeResponse_Ended{Ended: &mapsyncv1.MapEnded{Map: 1}}},
		{Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: 1, Text: "no"}}},
		{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: 2, Reset_: true, Schema: wire.SchemaToProto(schematest.OldVersion())}}},
		{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: &mapsyncv1.ClockReply{ProbeSent: 5, Received: 6, Clock: 7}}},
	} {
		b := mustMarshal(f, m)
		run = append(append(run, byte(len(b)), byte(len(b)>>8)), b...)
	}
	f.Add(run)
	f.Add(comparisonRun(f, wireSchema, false))
	f.Add(comparisonRun(f, wireSchema, true))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, tb := fuzzReplicator(t)
		s, _ := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
		s.clock.newProbe(time.Unix(0, 5))
		each(data, func(b []byte) bool {
			err := s.handle(b)
			s.appendAcks(s.appendComparisons(s.appendSubscriptions(nil, r.localMaps(), s.since.Add(1<<40))))
			return err == nil
		})
		checkTable(t, tb)
		s.markDown(nil)
	})
}

// comparisonRun returns a sequence of messages of a sender that holds other records and resends
// them on request.
func comparisonRun(f *testing.F, wireSchema *mapsyncv1.Schema, requested bool) (run []byte) {
	_, tb := fuzzReplicator(f)
	parts := make([]byte, wire.BucketBytes*table.DigestBuckets)
	parts[8] = 1
	digest := &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: &mapsyncv1.Digest{
		Map: 1, Position: 7, KeyFingerprint: tb.DigestID(), ScopeFingerprint: tb.DigestScope(),
		Nodes: []*mapsyncv1.NodeDigest{{Node: "x", Sum: 1, VersionSum: 2, Live: 3, Buckets: parts}, {Node: "b"}, {Node: "gone", Sum: 4}},
	}}}
	again := &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: fuzzBatch(f)}}
	again.GetBatch().Resent, again.GetBatch().CaughtUp, again.GetBatch().PreviousPosition = true, false, 7
	again.GetBatch().Requested = requested
	for _, m := range []*mapsyncv1.SubscribeResponse{
		{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: 1, Generation: 3, Reset_: true, Schema: wireSchema}}},
		{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: fuzzBatch(f)}},
		digest, digest, digest, again,
		{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: 1, Records: 4, Unsent: 1}}},
		digest,
	} {
		b := mustMarshal(f, m)
		run = append(append(run, byte(len(b)), byte(len(b)>>8)), b...)
	}
	return run
}

// each calls fn with the parts of data until fn returns false.
func each(data []byte, fn func([]byte) bool) {
	for len(data) > 1 {
		n := min(int(data[0])|int(data[1])<<8, len(data)-2)
		if !fn(data[2 : 2+n]) {
			return
		}
		data = data[2+n:]
	}
}

// FuzzRequests passes a sequence of requests to a sender, which answers each.
func FuzzRequests(f *testing.F) {
	var run []byte
	for _, m := range []*mapsyncv1.SubscribeRequest{
		hello("x"),
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: subscription(1, testMap, richLayout())}},
		{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: 1, Position: 1}}},
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: subscription(2, testMap, Layout{KeySize: 4})}},
		{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{Sent: 5}}},
		{Message: &mapsyncv1.SubscribeRequest_Compare{Compare: &mapsyncv1.CompareRequest{Map: 1}}},
		{Message: &mapsyncv1.SubscribeRequest_Resend{Resend: &mapsyncv1.ResendRequest{Map: 1, Buckets: bytes.Repeat([]byte{0xff}, wire.BucketSetBytes)}}},
		{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: 1, Position: 1}}},
		{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{Unsubscribe: &mapsyncv1.MapUnsubscription{Map: 1}}},
		{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: &mapsyncv1.MapSubscription{
			Map: 3, Name: testMap, Resume: &mapsyncv1.Resume{Incarnation: 2, Generation: 5, Position: 1 << 63},
		}}},
	} {
		b := mustMarshal(f, m)
		run = append(append(run, byte(len(b)), byte(len(b)>>8)), b...)
	}
	f.Add(run)
	watch := mustMarshal(f, observeRequest(1, testMap))
	f.Add(append([]byte{byte(len(watch)), 0}, watch...))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, tb := fuzzReplicator(t)
		key, value := schematest.RichEntry(1)
		tb.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: key, Value: value, Time: 5})
		})
		s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, &discardBatches{responseSender: discardStream{}})
		defer s.closeMaps()
		each(data, func(b []byte) bool {
			var m mapsyncv1.SubscribeRequest
			if err := proto.Unmarshal(b, &m); err != nil {
				return false
			}
			if h := m.GetHello(); h != nil {
				_, err := r.checkHello(t.Context(), h)
				return err == nil
			}
			if s.handle(&m) != nil {
				return false
			}
			_, err := s.sendRound(s.startedAt)
			return err == nil
		})
		if n := len(s.maps); n > 2*MaxMaps {
			t.Fatalf("outbound map streams: got %d, want at most 2*MaxMaps", n)
		}
	})
}

// discardStream discards all messages.
type discardStream struct{}

func (discardStream) Send(*mapsyncv1.SubscribeResponse) error { return nil }
func (discardStream) SendMsg(any) error                       { return nil }
