package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"time"
)

// rival is a way to carry deltas to a peer that is compared with ours. All of them
// end in a sink, which costs them nothing like a kernel map would.
type rival struct {
	name  string
	block int // deltas a call
	open  func(s *sink, e *entries) (*rivalConn, error)
}

// rivalConn is a rival at work.
type rivalConn struct {
	// send carries the deltas from first to end in one call and waits for the answer.
	send  func(ctx context.Context, first, end int) error
	close func() error
}

var rivals = []rival{
	{name: "net/rpc, one call each", block: 1, open: openNetRPC(false)},
	{name: "net/rpc, blocks of 8192", block: batchEntries, open: openNetRPC(true)},
	{name: "gRPC unary, typed", block: 1, open: openTyped},
	{name: "gRPC unary, Any with JSON", block: 1, open: openAnyJSON},
}

// sink is where all rivals end: it copies each delta into memory that is there.
type sink struct {
	memory [batchEntries * (keySize + valueSize)]byte
	n      int
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

// holds tells whether the delta stored last is entry i.
func (s *sink) holds(e *entries, i int) bool {
	at := s.memory[(s.n-1)%batchEntries*(keySize+valueSize):]
	return key(at) == e.keys[i] && value(at[keySize:]) == e.values[i]
}

// race sends deltas for about the given time.
func (r *rival) race(ctx context.Context, e *entries, limit time.Duration) (Sample, error) {
	s := new(sink)
	conn, err := r.open(s, e)
	if err != nil {
		return Sample{}, fmt.Errorf("open %s: %w", r.name, err)
	}
	block := min(r.block, len(e.keys))
	var last int
	run := func(until time.Time, atLeast int) error {
		for n := 0; n < atLeast || time.Now().Before(until); n++ {
			first := n * block % (len(e.keys) - block + 1)
			last = first + block - 1
			if err := conn.send(ctx, first, first+block); err != nil {
				return err
			}
		}
		return nil
	}
	err = run(time.Time{}, 3) // connect, and have types described
	warm := s.n
	var cost Sample
	if err == nil {
		cost, err = measure(1, func() error { return run(time.Now().Add(limit), 1) })
	}
	if err := errors.Join(err, conn.close()); err != nil {
		return Sample{}, fmt.Errorf("send by %s: %w", r.name, err)
	}
	if !s.holds(e, last) {
		return Sample{}, fmt.Errorf("send by %s: the last delta came out wrong", r.name)
	}
	n := float64(s.n - warm)
	return Sample{Nanoseconds: cost.Nanoseconds / n, Allocations: cost.Allocations / n}, nil
}

// RPCEntry is a delta as net/rpc carries it, by gob.
type RPCEntry struct{ Key, Value []byte }

// RPCSink is the service that net/rpc calls.
type RPCSink struct{ sink *sink }

// Add stores one delta.
func (s *RPCSink) Add(e *RPCEntry, _ *int) error { return s.sink.store(e.Key, e.Value) }

// AddBlock stores many.
func (s *RPCSink) AddBlock(block []RPCEntry, _ *int) error {
	for i := range block {
		if err := s.sink.store(block[i].Key, block[i].Value); err != nil {
			return err
		}
	}
	return nil
}

func openNetRPC(blocks bool) func(*sink, *entries) (*rivalConn, error) {
	return func(s *sink, e *entries) (*rivalConn, error) {
		server := rpc.NewServer()
		if err := server.RegisterName("Sink", &RPCSink{s}); err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		done := make(chan error, 1)
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				server.ServeConn(conn)
			}
			done <- err
		}()
		client, err := rpc.Dial("tcp", listener.Addr().String())
		if err != nil {
			return nil, errors.Join(err, listener.Close(), <-done)
		}
		c := &rivalConn{close: func() error { return errors.Join(client.Close(), <-done, listener.Close()) }}
		var reply int
		if !blocks {
			c.send = func(_ context.Context, i, _ int) error {
				return client.Call("Sink.Add", &RPCEntry{e.keys[i][:], e.values[i][:]}, &reply)
			}
			return c, nil
		}
		block := make([]RPCEntry, batchEntries)
		c.send = func(_ context.Context, first, end int) error {
			for i := range end - first {
				block[i] = RPCEntry{e.keys[first+i][:], e.values[first+i][:]}
			}
			return client.Call("Sink.AddBlock", block[:end-first], &reply)
		}
		return c, nil
	}
}
