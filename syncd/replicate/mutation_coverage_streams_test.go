package replicate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"mapsync/internal/race"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestStreamThatCannotBeOpened checks that an attempt without a stream returns an error for the
// status, and leaves no context behind: attempts repeat while a peer is unreachable.
func TestStreamThatCannotBeOpened(t *testing.T) {
	r, _ := newTestReplicator(t)
	var opened context.Context
	refuse := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
		opened = ctx
		return nil, status.Error(codes.Unavailable, "no route")
	}
	r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+p.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(refuse))
	}
	err := newInboundStream(r, peerX(5)).runStream(t.Context())
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "subscribe to "+verifyAddr) {
		t.Errorf("run stream: got error %v, want Unavailable and %q", err, "subscribe to "+verifyAddr)
	}
	if opened.Err() == nil {
		t.Error("context of the attempt: got open after its end, want cancelled")
	}
}

// slowRequestStream answers a handshake, and sends one heartbeat after half a second. It fails once
// a request after the handshake is in progress, which takes a second.
type slowRequestStream struct {
	welcomeStream
	stream  *inboundStream
	begun   chan struct{}
	ended   bool
	beatSet bool
}

func (s *slowRequestStream) Send(m *mapsyncv1.SubscribeRequest) error {
	if !s.stream.connected() {
		return s.welcomeStream.Send(m)
	}
	close(s.begun)
	time.Sleep(time.Second) // in the bubble of the test
	s.ended = true
	return errBroken
}

func (s *slowRequestStream) RecvMsg(v any) error {
	if !s.beatSet {
		s.beatSet = true
		time.Sleep(time.Second / 2) // in the bubble of the test
		beat, err := proto.Marshal(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}})
		return errors.Join(err, (&frameStream{all: [][]byte{beat}}).RecvMsg(v))
	}
	<-s.begun
	return errRefusedHere
}

// streamClient opens one stream.
type streamClient struct {
	mapsyncv1.ReplicationServiceClient
	stream mapsyncv1.ReplicationService_SubscribeClient
}

func (c streamClient) Subscribe(context.Context, ...grpc.CallOption) (mapsyncv1.ReplicationService_SubscribeClient, error) {
	return c.stream, nil
}

// TestInboundStreamUntilItEnds checks that the opened stream and each message restart the receive
// timeout, that each message is a contact, and that no request is in progress after the end.
func TestInboundStreamUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		x.stream.up = false
		x.in.comparison.requestBuckets = true
		w := &mapsyncv1.Welcome{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: "x", Number: 1}}
		s := &slowRequestStream{stream: x.stream, begun: make(chan struct{})}
		s.welcome = &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: w}}
		ctx, cancel := context.WithCancelCause(t.Context())
		begun, restarts := time.Now(), 0
		err := x.stream.subscribeAndReceive(ctx, cancel, streamClient{stream: s}, "addr", func() { restarts++ })
		if !errors.Is(err, errRefusedHere) || !s.ended {
			t.Errorf("end of the stream: got error %v, last request ended %t, want %v and true", err, s.ended, errRefusedHere)
		}
		if restarts != 2 {
			t.Errorf("restarts of the receive timeout: got %d, want 2", restarts)
		}
		if got := time.Unix(0, x.stream.lastContact.Load()).Sub(begun); got != time.Second/2 {
			t.Errorf("last contact: got %s after the start, want %s", got, time.Second/2)
		}
	})
}

// TestInvalidMessageEndsStream checks that an invalid message ends the stream, also if a batch is not
// the only field of its message.
func TestInvalidMessageEndsStream(t *testing.T) {
	unknownField := protowire.AppendVarint(protowire.AppendTag(nil, 2000, protowire.VarintType), 1)
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"batch of an unknown subscription, with another field": {append(mustMarshal(t, stockBatch(9, 0, 10, 1)), unknownField...), errProtocol},
		"source without a name": {mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{
			Sources: &mapsyncv1.Sources{Map: 1, Nodes: []string{""}},
		}}), wire.ErrMalformed},
	} {
		x := newInboundFixture(t)
		if err := x.stream.handle(c.data); !errors.Is(err, c.want) {
			t.Errorf("%s: handle message: got error %v, want %v", name, err, c.want)
		}
	}
}

// TestRefusedRecordsAreCounted checks that a record that the table refuses is counted, and that the
// statistics add up all refused records.
func TestRefusedRecordsAreCounted(t *testing.T) {
	x := newInboundFixture(t)
	x.r.opt.MaxClockAhead = math.MaxInt64 - time.Duration(time.Now().Add(time.Hour).UnixNano())
	m := stockBatch(x.in.index, 0, 10)
	m.GetBatch().Deltas = []*mapsyncv1.Delta{wireRecord(1, value(1), 1<<62+1, 0)} // above the limit of the table
	if err := x.stream.handle(mustMarshal(t, m)); err != nil {
		t.Fatalf("handle message: got error %v, want nil", err)
	}
	if got := x.r.Stats().DeltasRefused; got != 1 {
		t.Errorf("refused deltas: got %d, want 1", got)
	}
	x.r.count.outOfRange.Add(2)
	x.r.count.withoutInterface.Add(4)
	if got := x.r.Stats().DeltasRefused; got != 7 {
		t.Errorf("refused deltas with those out of range and without an interface: got %d, want 7", got)
	}
}

// TestLargestEntriesAndSchemas checks that a map at the limits of the wire is accepted, and one above
// them is not.
func TestLargestEntriesAndSchemas(t *testing.T) {
	race.SkipSequential(t)
	self := table.Owner{Node: "b", Incarnation: 2}
	add := func(value *schema.Message) error {
		s := schema.FromSizes("m", testKeySize, testValueSize)
		s.Value, s.Opaque = value, false
		tb := newSizedTable(t, self, testKeySize, value.Size, false)
		_, err := newLocalMap("m", Layout{KeySize: testKeySize, ValueSize: value.Size, Schema: s}, tb)
		return err
	}
	// entry returns a value of which a part can become long names, and the maximum size of an entry on the wire.
	entry := func(names, bytes int) (*schema.Message, int) {
		s := schema.FromSizes("m", testKeySize, testValueSize)
		s.Value, s.Opaque = schematest.Members("links",
			schema.Field{Size: 1, Count: names, Kind: schema.KindIfname}, schema.Field{Size: bytes, Kind: schema.KindBytes}), false
		e, err := schema.NewEncoder(s, nil)
		if err != nil {
			t.Fatalf("new encoder: got error %v, want nil", err)
		}
		return s.Value, e.MaxKey() + e.MaxValue()
	}
	const names, bytes = 25000, 1000
	_, first := entry(names, bytes)
	_, next := entry(names+1, bytes)
	more := (maxEncodedBytes - first) / (next - first)
	_, size := entry(names+more, bytes)
	rest := maxEncodedBytes - size
	text := func(n int) (*schema.Message, int) {
		m := schematest.Members("words", schema.Field{Size: 1, Kind: schema.KindEnum, Enum: &schema.Enum{}})
		for ; n > 0; n -= 60 {
			m.Fields[0].Enum.Values = append(m.Fields[0].Enum.Values, schema.EnumValue{Name: strings.Repeat("W", min(n, 60))})
		}
		s := schema.FromSizes("m", testKeySize, testValueSize)
		s.Value, s.Opaque = m, false
		return m, proto.Size(wire.SchemaToProto(s))
	}
	letters := 60 * 1900
	for _, size := text(letters); size < wire.MaxSchemaBytes; _, size = text(letters) {
		letters++
	}
	for above := range 2 {
		v, size := entry(names+more, bytes+rest+above)
		if err := add(v); size != maxEncodedBytes+above || errors.Is(err, ErrMap) != (above > 0) {
			t.Errorf("add a map with entries of %d bytes on the wire, limit %d: got error %v, want one: %t", size, maxEncodedBytes, err, above > 0)
		}
		v, size = text(letters + above)
		if err := add(v); size != wire.MaxSchemaBytes+above || errors.Is(err, ErrMap) != (above > 0) {
			t.Errorf("add a map with a schema of %d bytes, limit %d: got error %v, want one: %t", size, wire.MaxSchemaBytes, err, above > 0)
		}
	}
}

// TestPeerSchemaThatIsMalformed checks that a subscription with a malformed schema is refused.
func TestPeerSchemaThatIsMalformed(t *testing.T) {
	r, _ := newTestReplicator(t)
	sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Schema.Key = nil
	s, out := newStreamWith(t, r, sub)
	if _, err := s.findMap(1).step(r.localMaps()[testMap], time.Now()); err != nil {
		t.Fatalf("step: got error %v, want nil", err)
	}
	if got := fmt.Sprint(out.takeKinds(t)); got != "[refused]" {
		t.Errorf("answers: got %s, want [refused]", got)
	}
}

// TestStepVisitsFewRecords checks that a step which finds no record for the peer visits at most
// maxBatchScan records, so that it does not block the table.
func TestStepVisitsFewRecords(t *testing.T) {
	o := newOutboundFixture(t)
	keys := make([]int, maxBatchScan+100)
	for i := range keys {
		keys[i] = i
	}
	o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 5, keys...)
	o.step() // accepts the subscription
	if more := o.step(); !more || o.m.cursor.Position() != maxBatchScan {
		t.Errorf("step: got %d records visited, more %t, want %d and true", o.m.cursor.Position(), more, maxBatchScan)
	}
}

// TestAnswerWaitsForNewBackfill has the receiver request another owner during a backfill, at a time
// at which it may not start another scan. The answer comes after the records of that owner.
func TestAnswerWaitsForNewBackfill(t *testing.T) {
	o := newOutboundFixture(t)
	o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 5, 4000)
	for i := range 1000 {
		o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, i)
	}
	o.sendPending()
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	for _, requested := keysIn(o.sent); len(requested) == 0; _, requested = keysIn(o.sent) {
		o.step()
	}
	o.takeSent()
	for o.m.allowScan(o.m.m, o.now) {
	}
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 3, Orphaned: true, Nodes: []string{"c"}})
	o.expectSent("no scan is allowed", "")
	o.now = o.now.Add(o.r.opt.digestInterval)
	sent := o.sendPending()
	if _, requested := keysIn(sent); len(requested) != 1001 || requested[1000] != 4000 {
		t.Errorf("requested records: got %d, want 1001 with key 4000", len(requested))
	}
	if k := kinds(sent); strings.Count(k, "owners sent") != 1 || !strings.Contains(k, "], owners sent 3") {
		t.Errorf("answers: got %q, want one to request 3 after the records", k)
	}
}

// cursorEnded reports whether a cursor with records ahead was closed.
func cursorEnded(tb *table.Table, c *table.Cursor) (ended bool) {
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		ended = !tx.Next(c, &rec)
	})
	return ended
}

// TestStreamClosesItsCursors checks that a map stream that ends during a backfill leaves no cursor in
// the table, which outlives the stream.
func TestStreamClosesItsCursors(t *testing.T) {
	for name, nodes := range map[string][]string{"backfill in progress": nil, "backfill dropped": {"c"}} {
		o := newOutboundFixture(t)
		for i := range 1000 {
			o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, i)
		}
		o.sendPending()
		o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
		for _, requested := keysIn(o.sent); len(requested) == 0; _, requested = keysIn(o.sent) {
			o.step()
		}
		o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 3, Orphaned: true, Nodes: nodes})
		putTable(t, o.tb, 2000, 2001, 1)
		stream, backfill := o.m.cursor, o.m.owners.backfill.cursor
		o.err = errBroken
		if _, err := o.m.step(o.m.m, o.now); !errors.Is(err, errBroken) {
			t.Fatalf("%s: step: got error %v, want %v", name, err, errBroken)
		}
		o.m.close()
		putTable(t, o.tb, 2001, 2002, 1)
		if a, b := cursorEnded(o.tb, stream), cursorEnded(o.tb, backfill); !a || !b {
			t.Errorf("%s: closed cursors: got stream %t, backfill %t, want both", name, a, b)
		}
	}
	e, from := newTestEncoder(t, 0)
	c := e.outbound.cursor
	if e.Close(); !cursorEnded(from, c) {
		t.Error("closed stream encoder: got its cursor open, want it closed")
	}
}
