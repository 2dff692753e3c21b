package replicate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// measured is the map, and the peer at the other end, of an Encoding or a Decoding.
const (
	measuredMap  = "measured"
	measuredPeer = "measured-peer"
)

// Encoding is the sending half of a stream without the stream: what a table holds
// becomes batches, by the code that serves peers. It is there to be measured.
type Encoding struct {
	feed *feed
	sink sink
}

// sink is a stream that ends in a function.
type sink struct {
	take func(mem.BufferSlice)
}

func (s *sink) Send(*mapsyncv1.SubscribeResponse) error { return nil }

func (s *sink) SendMsg(m any) error {
	out := m.(*outbound)
	s.take(out.data)
	out.data.Free()
	return nil
}

// NewEncoding returns an Encoding of what the table has after a position, with
// entries of the given schema; nil means bytes. Close it when it is no longer used.
func NewEncoding(t *table.Table, s *schema.Schema, after uint64) (*Encoding, error) {
	r, m, err := measuring(t, s)
	if err != nil {
		return nil, err
	}
	e := &Encoding{}
	e.feed = newFeed(newSession(r, table.Owner{Node: measuredPeer}, &e.sink), &mapsyncv1.MapSubscription{
		Map: 1, Name: measuredMap, Layout: m.layout.proto(), Schema: m.wire,
		Resume: &mapsyncv1.Resume{Incarnation: t.Self().Incarnation, Generation: m.generation, Position: after},
	}, allOrphaned)
	return e, e.feed.serve(m)
}

// Next encodes one batch, if there is anything left, and calls fn with the message
// as gRPC would get it, good during the call only. It reports whether there is more.
func (e *Encoding) Next(fn func(message mem.BufferSlice)) (more bool, err error) {
	e.sink.take = fn
	return e.feed.step(e.feed.m, time.Now())
}

// Close gives up the place in the table.
func (e *Encoding) Close() { e.feed.close() }

// Decoding is the receiving half of a stream without the stream: messages become
// changes of a table, by the code that follows peers. It is there to be measured.
type Decoding struct {
	link *link
}

// NewDecoding returns a Decoding into a table with entries of the given schema, of
// messages that an Encoding of a table of that owner and with the same schema made
// from position 0 on.
func NewDecoding(t *table.Table, s *schema.Schema, from table.Owner) (*Decoding, error) {
	r, m, err := measuring(t, s)
	if err != nil {
		return nil, err
	}
	l := newLink(r, Peer{Node: from.Node, Incarnation: from.Incarnation})
	in := newIntake(l, m)
	in.index, l.last = 1, 1
	l.intakes[measuredMap], l.byIndex[1] = in, in
	err = in.accept(&mapsyncv1.MapAccepted{Map: 1, Generation: 1, Reset_: true, Schema: m.wire})
	return &Decoding{l}, err
}

// Take merges one message.
func (d *Decoding) Take(message []byte) error {
	if err := d.link.take(message); err != nil {
		return err
	}
	return d.link.intakes[measuredMap].err
}

// measuring returns a Replicator with the table, which is connected to nobody.
func measuring(t *table.Table, s *schema.Schema) (*Replicator, *localMap, error) {
	r, err := New(Options{Self: t.Self(), Dial: func(Peer) (*grpc.ClientConn, error) {
		return nil, fmt.Errorf("dial while measuring: %w", context.Canceled)
	}})
	if err != nil {
		return nil, nil, err
	}
	if err := r.AddMap(measuredMap, Layout{KeySize: t.KeySize(), ValueSize: t.ValueSize(), Schema: s}, t); err != nil {
		return nil, nil, err
	}
	return r, r.localMaps()[measuredMap], nil
}
