package replicate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// standaloneMap and standalonePeer name the map and the peer of a StreamEncoder or StreamDecoder.
const (
	standaloneMap  = "measured"
	standalonePeer = "measured-peer"
)

// StreamEncoder is the sending half of a stream without a connection: it encodes the records of a
// table into batches with the code that serves peers. Benchmarks use it. It belongs to one goroutine.
type StreamEncoder struct {
	// outbound is the map stream to a peer that does not exist.
	outbound *outboundMap
	// stream passes the messages of outbound to a function.
	stream funcStream
}

// funcStream is a stream that passes each batch to a function. It discards other messages. It
// implements responseSender.
type funcStream struct {
	// fn is not nil while a batch is encoded. It must not keep the buffers.
	fn func(mem.BufferSlice)
}

// Send discards a message other than a batch.
func (s *funcStream) Send(*mapsyncv1.SubscribeResponse) error { return nil }

// SendMsg passes a batch to the function and releases its buffers. fn must not keep the buffers,
// which go back to the pool.
func (s *funcStream) SendMsg(m any) error {
	out := m.(*wire.SentFrame)
	s.fn(out.Buffers())
	out.Free()
	return nil
}

// NewStreamEncoder returns a StreamEncoder of the records of a table after a position, with entries
// of the given schema; nil: opaque bytes. The caller must close it. The table must not have
// unversioned records. The errors wrap ErrMap or ErrOptions.
func NewStreamEncoder(t *table.Table, s *schema.Schema, after uint64) (*StreamEncoder, error) {
	r, m, err := newStandaloneReplicator(t, s)
	if err != nil {
		return nil, err
	}
	e := &StreamEncoder{}
	e.outbound = newOutboundMap(newOutboundStream(r, table.Owner{Node: standalonePeer}, &e.stream), &mapsyncv1.MapSubscription{
		Map: 1, Name: standaloneMap, Layout: m.layout.proto(), Schema: m.wireSchema,
		// The resume makes serve begin after the given position.
		Resume: &mapsyncv1.Resume{Incarnation: t.Self().Incarnation, Generation: m.generation, Position: after},
	}, allOrphaned)
	return e, e.outbound.serve(m)
}

// Next encodes one batch, if records are left, and calls fn with the message as gRPC would get it.
// The message is valid during the call only. Next reports whether more records are left. It takes
// the table's lock.
func (e *StreamEncoder) Next(fn func(message mem.BufferSlice)) (more bool, err error) {
	e.stream.fn = fn
	return e.outbound.step(e.outbound.m, time.Now())
}

// Close releases the place in the table.
func (e *StreamEncoder) Close() { e.outbound.close() }

// StreamDecoder is the receiving half of a stream without a connection: it merges messages into a
// table with the code that receives from peers. Benchmarks use it. It belongs to one goroutine.
type StreamDecoder struct {
	// inbound is the stream from a peer that does not exist.
	inbound *inboundStream
}

// NewStreamDecoder returns a StreamDecoder that merges into a table with entries of the given
// schema. The messages must come from a StreamEncoder of a table of the owner from, with the same
// schema and from position 0.
func NewStreamDecoder(t *table.Table, s *schema.Schema, from table.Owner) (*StreamDecoder, error) {
	r, m, err := newStandaloneReplicator(t, s)
	if err != nil {
		return nil, err
	}
	inbound := newInboundStream(r, Peer{Node: from.Node, Incarnation: from.Incarnation})
	in := newInboundMap(inbound, m)
	// The subscription and its acceptance take place without a peer.
	in.index, inbound.lastIndex = 1, 1
	inbound.maps[standaloneMap], inbound.byIndex[1] = in, in
	err = in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: m.wireSchema})
	return &StreamDecoder{inbound}, err
}

// Merge merges one message. It does not keep the message. It takes the table's lock. After an
// error, the decoder must not be used further.
func (d *StreamDecoder) Merge(message []byte) error {
	if err := d.inbound.handle(message); err != nil {
		return err
	}
	// An error of the map does not end the stream, so handle does not return it.
	return d.inbound.maps[standaloneMap].err
}

// newStandaloneReplicator returns a Replicator without peers that replicates the table. Its Run is
// never called, so it has no goroutines and accepts no streams.
func newStandaloneReplicator(t *table.Table, s *schema.Schema) (*Replicator, *localMap, error) {
	r, err := New(Options{Self: t.Self(), Dial: func(Peer) (*grpc.ClientConn, error) {
		return nil, fmt.Errorf("dial from standalone replicator: %w", context.Canceled)
	}})
	if err != nil {
		return nil, nil, err
	}
	if err := r.AddMap(standaloneMap, Layout{KeySize: t.KeySize(), ValueSize: t.ValueSize(), Schema: s}, t); err != nil {
		return nil, nil, err
	}
	return r, r.localMaps()[standaloneMap], nil
}
