package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// alternative is another way to send deltas to a peer, for comparison with syncd. All alternatives
// end in a sink. Only the one from map to map also reads and writes kernel maps.
type alternative struct {
	name        string
	blockDeltas int // deltas per call
	// serve listens on loopback and stores the received deltas in the sink, until stop.
	serve func(s *sink) (addr string, stop func() error, err error)
	dial  func(addr string, e *entries) (*alternativeConn, error)
}

// alternativeConn is a connection of an alternative.
type alternativeConn struct {
	// send sends the deltas from first to end, or fewer, in one call and waits for the answer. It returns their number.
	send  func(ctx context.Context, first, end int) (int, error)
	close func() error
	// last returns the delta that was sent last, its key before its value; nil: it is the last of the entries.
	last func() []byte
}

var alternatives = []alternative{
	{"net/rpc, one call each", 1, serveNetRPC, dialNetRPC(false)},
	{"net/rpc, blocks of 8192", batchEntries, serveNetRPC, dialNetRPC(true)},
	{"net/rpc, blocks of 8192 from map to map", batchEntries, serveNetRPCMap, dialNetRPCMap},
	{"gRPC unary, typed", 1, serveTyped, dialTyped},
	{"gRPC unary, Any with JSON", 1, serveAnyJSON, dialAnyJSON},
}

// sink receives the deltas of all alternatives. It copies each delta into preallocated memory.
type sink struct {
	memory [batchEntries * (keySize + valueSize)]byte
	n      int
	m      *ebpf.Map // nil: none
}

func (s *sink) store(k, v []byte) error {
	if len(k) != keySize || len(v) != valueSize {
		return fmt.Errorf("store a delta of %d + %d bytes", len(k), len(v))
	}
	at := s.memory[s.n%batchEntries*(keySize+valueSize):]
	copy(at, k)
	copy(at[keySize:], v)
	s.n++
	return nil
}

// last returns the delta that was stored last, its key before its value. With a map, the value is that of the map. The
// slice is part of the sink's memory. It is nil if there is none.
func (s *sink) last() ([]byte, error) {
	if s.n == 0 {
		return nil, nil
	}
	delta := s.memory[(s.n-1)%batchEntries*(keySize+valueSize):][:keySize+valueSize]
	if s.m == nil {
		return delta, nil
	}
	clear(delta[keySize:])
	if err := s.m.Lookup(delta[:keySize], delta[keySize:]); err != nil {
		return nil, fmt.Errorf("look up the last delta: %w", err)
	}
	return delta, nil
}

// measure sends deltas for about the given time.
func (r *alternative) measure(ctx context.Context, e *entries, limit time.Duration) (Sample, error) {
	peer, err := startPeer(r.name)
	if err != nil {
		return Sample{}, fmt.Errorf("start peer of %s: %w", r.name, err)
	}
	cost, sent, last, err := r.run(ctx, peer.addr, e, limit)
	got, stopErr := peer.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return Sample{}, fmt.Errorf("send by %s: %w", r.name, err)
	}
	if got.Stored != sent || !bytes.Equal(got.Last, last) {
		return Sample{}, fmt.Errorf("send by %s: %d of %d deltas arrived, or the last one came out wrong", r.name, got.Stored, sent)
	}
	return cost, nil
}

// run measures against a peer. It returns the cost per delta, the number of sent deltas, and the
// last one, its key before its value.
func (r *alternative) run(ctx context.Context, addr string, e *entries, limit time.Duration) (cost Sample, sent int, last []byte, err error) {
	conn, err := r.dial(addr, e)
	if err != nil {
		return cost, 0, nil, err
	}
	defer func() { err = errors.Join(err, conn.close()) }()
	at := 0
	block := min(r.blockDeltas, len(e.keys))
	send := func(until time.Time, atLeast int) error {
		for n := 0; n < atLeast || time.Now().Before(until); n++ {
			first := n * block % (len(e.keys) - block + 1)
			at = first + block - 1
			count, err := conn.send(ctx, first, first+block)
			if err != nil {
				return err
			}
			sent += count
		}
		return nil
	}
	if err := send(time.Time{}, 3); err != nil { // connects, and sends the type descriptions
		return cost, 0, nil, err
	}
	warmUpSent := sent
	if cost, err = measure(1, func() error { return send(time.Now().Add(limit), 1) }); err != nil {
		return cost, 0, nil, err
	}
	last = slices.Concat(e.keys[at][:], e.values[at][:])
	if conn.last != nil {
		last = conn.last()
	}
	n := float64(sent - warmUpSent)
	return Sample{Nanoseconds: cost.Nanoseconds / n, Allocations: cost.Allocations / n}, sent, last, nil
}

// RPCEntry is a delta in net/rpc, encoded by gob.
type RPCEntry struct{ Key, Value []byte }

// RPCSink is the service that net/rpc calls.
type RPCSink struct{ sink *sink }

// Add stores one delta.
func (s *RPCSink) Add(e *RPCEntry, _ *int) error { return s.sink.store(e.Key, e.Value) }

// AddBlock stores a block of deltas.
func (s *RPCSink) AddBlock(block []RPCEntry, _ *int) error {
	for i := range block {
		if err := s.sink.store(block[i].Key, block[i].Value); err != nil {
			return err
		}
	}
	if s.sink.m == nil {
		return nil
	}
	return s.sink.writeMap(len(block))
}

func serveNetRPC(s *sink) (addr string, stop func() error, err error) {
	server := rpc.NewServer()
	if err := server.RegisterName("Sink", &RPCSink{s}); err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	done := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			server.ServeConn(conn)
		}
		done <- err
	}()
	return listener.Addr().String(), func() error { return errors.Join(listener.Close(), <-done) }, nil
}

func dialNetRPC(blocks bool) func(string, *entries) (*alternativeConn, error) {
	return func(addr string, e *entries) (*alternativeConn, error) {
		client, err := rpc.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		c := &alternativeConn{close: client.Close}
		var reply int
		if !blocks {
			c.send = func(_ context.Context, i, _ int) (int, error) {
				return 1, client.Call("Sink.Add", &RPCEntry{e.keys[i][:], e.values[i][:]}, &reply)
			}
			return c, nil
		}
		block := make([]RPCEntry, batchEntries)
		c.send = func(_ context.Context, first, end int) (int, error) {
			for i := range end - first {
				block[i] = RPCEntry{e.keys[first+i][:], e.values[first+i][:]}
			}
			return end - first, client.Call("Sink.AddBlock", block[:end-first], &reply)
		}
		return c, nil
	}
}
