package main

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"slices"

	"github.com/cilium/ebpf"
)

// receivedRoom is the number of entries for which the map of the receiver has room. The sender reads its map again and
// again, so that the receiver gets at most its entries.
const receivedRoom = 4 << 20

// serveNetRPCMap is serveNetRPC with a kernel map that receives each block by a bpf(2) batch.
func serveNetRPCMap(s *sink) (addr string, stop func() error, err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "received", Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: receivedRoom,
		Flags: 1, // BPF_F_NO_PREALLOC
	})
	if err != nil {
		return "", nil, fmt.Errorf("create the map of the receiver: %w", err)
	}
	s.m = m
	addr, end, err := serveNetRPC(s)
	if err != nil {
		return "", nil, errors.Join(err, m.Close())
	}
	return addr, func() error { return errors.Join(end(), m.Close()) }, nil
}

// writeMap writes the last n deltas of the sink into the map, in one batch.
func (s *sink) writeMap(n int) error {
	keys, values := make([]key, n), make([]value, n)
	for i := range n {
		at := s.memory[(s.n-n+i)%batchEntries*(keySize+valueSize):]
		copy(keys[i][:], at)
		copy(values[i][:], at[keySize:])
	}
	if _, err := s.m.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("write a block: %w", err)
	}
	return nil
}

// mapReader reads a kernel map by bpf(2) batches, again and again.
type mapReader struct {
	m      *ebpf.Map
	cursor *ebpf.MapBatchCursor
	keys   [batchEntries]key
	values [batchEntries]value
	last   int // index of the last entry that was read
}

// next reads up to n entries.
func (r *mapReader) next(n int) (count int, err error) {
	for count == 0 {
		count, err = r.m.BatchLookup(r.cursor, r.keys[:n], r.values[:n], nil)
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist): // the end of the map
			r.cursor = new(ebpf.MapBatchCursor)
		case err != nil:
			return 0, fmt.Errorf("read a block: %w", err)
		}
	}
	r.last = count - 1
	return count, nil
}

// dialNetRPCMap is dialNetRPC with blocks that are read from a kernel map.
func dialNetRPCMap(addr string, e *entries) (*alternativeConn, error) {
	m, err := newMap("sent", len(e.keys))
	if err != nil {
		return nil, err
	}
	if err := batchUpdate(m, e); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	client, err := rpc.Dial("tcp", addr)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	r := &mapReader{m: m, cursor: new(ebpf.MapBatchCursor)}
	block := make([]RPCEntry, batchEntries)
	for i := range block {
		block[i] = RPCEntry{r.keys[i][:], r.values[i][:]}
	}
	var reply int
	return &alternativeConn{
		close: func() error { return errors.Join(client.Close(), m.Close()) },
		last:  func() []byte { return slices.Concat(r.keys[r.last][:], r.values[r.last][:]) },
		send: func(_ context.Context, first, end int) (int, error) {
			n, err := r.next(end - first)
			if err != nil {
				return 0, err
			}
			return n, client.Call("Sink.AddBlock", block[:n], &reply)
		},
	}, nil
}
