package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"mapsync/syncd/kmap"
)

// The sizes of a connection-tracking entry as LoxiLB's ct_map has them, in bytes.
const (
	keySize   = 48
	valueSize = 176
)

// The BPF interface wants the size in the type.
type (
	key   = [keySize]byte
	value = [valueSize]byte
)

// fillKey makes the key of entry i: its number, then bytes that are different in
// every entry and easy to make again.
func fillKey(b []byte, i int) {
	binary.LittleEndian.PutUint64(b, uint64(i))
	fill(b[8:], uint64(i))
}

// fillValue makes the value that entry i has in a generation. Each generation
// changes the whole of it.
func fillValue(b []byte, i, generation int) {
	fill(b, uint64(i)<<8|uint64(generation)|1<<63)
}

// fill is SplitMix64, a word at a time.
func fill(b []byte, seed uint64) {
	for ; len(b) >= 8; b = b[8:] {
		seed += 0x9e3779b97f4a7c15
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(b, z^z>>31)
	}
}

// entries are all the keys and values of one generation.
type entries struct {
	keys   []key
	values []value
}

func makeEntries(n, generation int) *entries {
	e := &entries{keys: make([]key, n), values: make([]value, n)}
	for i := range n {
		fillKey(e.keys[i][:], i)
		fillValue(e.values[i][:], i, generation)
	}
	return e
}

// newMap creates a hash map with room for n entries. Room for all, and then some:
// a preallocated hash map keeps free elements in lists of each CPU.
func newMap(name string, n int) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: uint32(n + n/8 + 1024),
	})
	if err != nil {
		return nil, fmt.Errorf("create a hash map of %d entries: %w", n, err)
	}
	return m, nil
}

// verify compares the map with the entries of a generation, byte by byte, and
// fails unless it holds each of the n and nothing else.
func verify(ctx context.Context, m *kmap.Map, n, generation int) error {
	seen := make([]bool, n)
	count := 0
	var k key
	var v value
	err := m.ForEach(ctx, func(gotKey, gotValue []byte) error {
		i := binary.LittleEndian.Uint64(gotKey)
		if i >= uint64(n) {
			return fmt.Errorf("entry %d was never written", i)
		}
		fillKey(k[:], int(i))
		fillValue(v[:], int(i), generation)
		if !bytes.Equal(gotKey, k[:]) || !bytes.Equal(gotValue, v[:]) {
			return fmt.Errorf("entry %d differs from what was written", i)
		}
		if !seen[i] { // an iterator may visit an entry twice
			seen[i] = true
			count++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("verify the second map: %w", err)
	}
	if count != n {
		return fmt.Errorf("verify the second map: it holds %d of %d entries", count, n)
	}
	return nil
}
