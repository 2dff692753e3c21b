package lb

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"mapsync/bench/lb/bpf"
)

// Layout is the layout of the values of the load balancer's connection-tracking map. Each release
// of the load balancer has one layout.
type Layout string

// The layouts. LayoutNext moves counters, widens numbers, adds fields and has another size.
const (
	LayoutV1   Layout = "v1"
	LayoutNext Layout = "next"
)

// Entry has the fields of one direction of a flow that both layouts have, in the wider types.
type Entry struct {
	LastUsed, Created uint64 // CLOCK_MONOTONIC, ns
	Packets, Bytes    uint64
	Nat               bpf.LBCtNat
	TCP               [2]bpf.LBCtTcp
	IdleTimeout       uint64 // seconds
	BackendID         uint32
	VIPID             uint32
	State             uint32
	Direction         uint8
}

func entryOfV1(v *bpf.LBCtValue) Entry {
	return Entry{
		LastUsed: v.LastUsed, Created: v.Created, Packets: v.Packets, Bytes: v.Bytes,
		Nat: v.Nat, TCP: v.Tcp,
		IdleTimeout: uint64(v.IdleTimeout), BackendID: v.BackendId, VIPID: uint32(v.VipId),
		State: uint32(v.State), Direction: v.Direction,
	}
}

func entryOfNext(v *bpf.LBNextCtValue) Entry {
	return Entry{
		LastUsed: v.LastUsed, Created: v.Created, Packets: v.Packets, Bytes: v.Bytes,
		Nat: bpf.LBCtNat(v.Nat), TCP: [2]bpf.LBCtTcp{bpf.LBCtTcp(v.Tcp[0]), bpf.LBCtTcp(v.Tcp[1])},
		IdleTimeout: v.IdleTimeout, BackendID: v.BackendId, VIPID: v.VipId,
		State: v.State, Direction: v.Direction,
	}
}

// release is one release of the load balancer.
type release struct {
	object   func() []byte
	load     func() (*ebpf.CollectionSpec, error)
	findIdle func(m *ebpf.Map, now uint64) ([]bpf.LBCtKey, error)
	forEach  func(m *ebpf.Map, fn func(*bpf.LBCtKey, *Entry)) error
}

// releases differ only in the type of a value.
var releases = map[Layout]release{
	LayoutV1:   releaseOf(bpf.LBObject, bpf.LoadLB, entryOfV1),
	LayoutNext: releaseOf(bpf.LBNextObject, bpf.LoadLBNext, entryOfNext),
}

func releaseOf[V any](object func() []byte, load func() (*ebpf.CollectionSpec, error), entryOf func(*V) Entry) release {
	return release{
		object: object, load: load,
		findIdle: func(m *ebpf.Map, now uint64) ([]bpf.LBCtKey, error) { return findIdle(m, now, entryOf) },
		forEach:  func(m *ebpf.Map, fn func(*bpf.LBCtKey, *Entry)) error { return forEach(m, entryOf, fn) },
	}
}

// Validate returns an error unless l is one of the layouts.
func (l Layout) Validate() error {
	if _, ok := releases[l]; !ok {
		return fmt.Errorf("layout %q: choose %s or %s", l, LayoutV1, LayoutNext)
	}
	return nil
}

// Object returns the load balancer's BPF object file, which has the types of its maps. The caller
// owns the slice. The layout must be valid.
func (l Layout) Object() []byte { return slices.Clone(releases[l].object()) }

// ForEach calls fn for each entry of a connection-tracking map of this layout, which must be valid.
// It reads in batches, from kernel 5.6 on. Such calls can hide a data plane's writes from hooks.
// The arguments of fn are valid until fn returns.
func (l Layout) ForEach(m *ebpf.Map, fn func(*bpf.LBCtKey, *Entry)) error {
	return releases[l].forEach(m, fn)
}

// readBatch is the number of entries that one system call of ForEach reads.
const readBatch = 4096

func forEach[V any](m *ebpf.Map, entryOf func(*V) Entry, fn func(*bpf.LBCtKey, *Entry)) error {
	var (
		cursor ebpf.MapBatchCursor
		keys   = make([]bpf.LBCtKey, readBatch)
		values = make([]V, readBatch)
	)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read connection-tracking map: %w", err)
		}
		for i := range n {
			entry := entryOf(&values[i])
			fn(&keys[i], &entry)
		}
		if err != nil {
			return nil
		}
	}
}

// HasFieldRoles reports whether the kernel's BTF of a connection-tracking map has the field roles
// of the load balancer's source: kernels before 5.16 do not keep decl tags. It needs CAP_SYS_ADMIN.
func HasFieldRoles(m *ebpf.Map) (bool, error) {
	h, err := m.Handle()
	if err != nil {
		return false, fmt.Errorf("open types of map: %w", err)
	}
	defer h.Close() //nolint:errcheck // nothing was written
	spec, err := h.Spec(nil)
	if err != nil {
		return false, fmt.Errorf("read types of map: %w", err)
	}
	var value *btf.Struct
	if err := spec.TypeByName("ct_value", &value); err != nil {
		return false, fmt.Errorf("find type of values: %w", err)
	}
	return len(value.Members[0].Tags) > 0, nil
}
