package main

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/cilium/ebpf"

	lbbpf "mapsync/bench/lb/bpf"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
)

// The sizes of a connection-tracking entry in LoxiLB's ct_map, in bytes.
const (
	keySize   = 48
	valueSize = 176
)

// The BPF interface needs the size in the type.
type (
	key   = [keySize]byte
	value = [valueSize]byte
)

// firstClient is the address of entry 0. The address of entry i is firstClient + i.
const firstClient = 10 << 24

// fillKey sets b to the key of entry i: a client's connection to one service.
func fillKey(b []byte, i int) {
	k := (*lbbpf.LBCtKey)(unsafe.Pointer((*key)(b)))
	*k = lbbpf.LBCtKey{
		Saddr: [4]uint32{bits.ReverseBytes32(firstClient + uint32(i))},
		Daddr: [4]uint32{bits.ReverseBytes32(0xc0000201)},
		Sport: bits.ReverseBytes16(1024 + uint16(mix(uint64(i))%60000)), Dport: bits.ReverseBytes16(443),
		Proto: 6, Family: 2,
	}
}

// numberOf returns the number i of the entry with this key.
func numberOf(b []byte) int {
	k := (*lbbpf.LBCtKey)(unsafe.Pointer((*key)(b)))
	return int(bits.ReverseBytes32(k.Saddr[0]) - firstClient)
}

// fillValue sets b to the value of entry i in a generation: an established connection after some
// traffic.
func fillValue(b []byte, i, generation int) {
	v := (*lbbpf.LBCtValue)(unsafe.Pointer((*value)(b)))
	seed := mix(uint64(i)<<8 | uint64(generation))
	*v = lbbpf.LBCtValue{
		Created: 3_600_000_000_000 + uint64(i)*1000, LastUsed: 3_600_000_000_000 + uint64(i)*1000 + seed%60_000_000_000,
		Packets: 3 + seed>>8%1000, Bytes: 200 + seed>>16%1_000_000,
		IdleTimeout: 1800 + uint32(generation), BackendId: 1 + uint32(i)%16,
		State: 3, Direction: uint8(i & 1), VipId: 1,
	}
	v.Nat.Daddr[0] = bits.ReverseBytes32(0x0ac80001 + uint32(i)%16)
	v.Nat.Dport, v.Nat.Flags = bits.ReverseBytes16(8080), 2
	for d := range v.Tcp {
		v.Tcp[d].Seq, v.Tcp[d].Ack = uint32(mix(seed+uint64(d))), uint32(mix(seed-uint64(d)))
		v.Tcp[d].Window, v.Tcp[d].Flags = 64240, 1
	}
}

// mix is one step of SplitMix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// ctSchema returns the schema of an entry, from the load balancer's object file.
func ctSchema() (*schema.Schema, error) {
	spec, err := lbbpf.LoadLB()
	if err != nil {
		return nil, fmt.Errorf("read the load balancer's types: %w", err)
	}
	m := spec.Maps["ct_map"]
	return schema.FromTypes(mapName, m.Key, m.Value)
}

// entries are keys and values. keys[i] belongs to values[i].
type entries struct {
	keys   []key
	values []value
}

// makeEntries returns n entries of generation 0.
func makeEntries(n int) *entries {
	e := &entries{keys: make([]key, n), values: make([]value, n)}
	for i := range n {
		fillKey(e.keys[i][:], i)
		fillValue(e.values[i][:], i, 0)
	}
	return e
}

// newMap creates a hash map with room for n entries. It adds spare elements, because a preallocated
// hash map keeps free elements in per-CPU lists.
func newMap(name string, n int) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: uint32(n + n/8 + 1024),
	})
	if err != nil {
		return nil, fmt.Errorf("create a hash map of %d entries: %w", n, err)
	}
	return m, nil
}

// newTypedMap creates the load balancer's own connection-tracking map, with BTF, with room for n
// entries.
func newTypedMap(name string, n int) (*ebpf.Map, error) {
	spec, err := lbbpf.LoadLB()
	if err != nil {
		return nil, fmt.Errorf("read the load balancer's types: %w", err)
	}
	m := spec.Maps["ct_map"].Copy()
	m.Name, m.MaxEntries, m.Pinning = name, uint32(n+n/8+1024), ebpf.PinNone
	created, err := ebpf.NewMap(m)
	if err != nil {
		return nil, fmt.Errorf("create a typed map of %d entries: %w", n, err)
	}
	return created, nil
}

// verify compares the map with the n entries of a generation, byte by byte. It fails unless the map
// holds exactly these entries.
func verify(ctx context.Context, m *kmap.Map, n, generation int) error {
	return verifyBut(ctx, m, n, generation, func(_, _ *value) {})
}

// verifyBut is like verify, but calls allow with the read and the expected value before it compares
// them. allow may change the expected value.
func verifyBut(ctx context.Context, m *kmap.Map, n, generation int, allow func(got, want *value)) error {
	seen := make([]bool, n)
	count := 0
	var k key
	var v value
	err := m.ForEach(ctx, func(gotKey, gotValue []byte) error {
		i := numberOf(gotKey)
		if i < 0 || i >= n {
			return fmt.Errorf("entry %d was never written", i)
		}
		fillKey(k[:], i)
		fillValue(v[:], i, generation)
		allow((*value)(gotValue), &v)
		if !bytes.Equal(gotKey, k[:]) || !sameValue((*value)(gotValue), &v) {
			return fmt.Errorf("entry %d differs from what was written: got %x, want %x", i, gotValue, v)
		}
		if !seen[i] { // an iterator may visit an entry twice
			seen[i] = true
			count++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("verify a map: %w", err)
	}
	if count != n {
		return fmt.Errorf("verify a map: it holds %d of %d entries", count, n)
	}
	return nil
}

// sameValue compares a replicated value with the written one. Time stamps may differ by the error of the measured offset
// between the nodes' clocks, up to half of a round trip, which takes long on a busy machine.
func sameValue(got, want *value) bool {
	g, w := *(*lbbpf.LBCtValue)(unsafe.Pointer(got)), *(*lbbpf.LBCtValue)(unsafe.Pointer(want))
	const tolerance = 50_000_000 // ns
	off := max(g.LastUsed-w.LastUsed+tolerance, g.Created-w.Created+tolerance)
	g.LastUsed, g.Created = w.LastUsed, w.Created
	return g == w && off <= 2*tolerance
}
