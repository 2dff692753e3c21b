package docs

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
)

// ctMap is a kernel map of addresses and ports, with the bytes of each.
type ctMap struct {
	*ebpf.Map
	bytes int // size of the field bytes
}

// newMap creates a map. bytes is the size of the value's field.
func newMap(t *testing.T, maxEntries uint32, bytes int) *ctMap {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	word := &btf.Int{Name: "unsigned int", Size: 4}
	number := &btf.Int{Name: "unsigned", Size: uint32(bytes)}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: uint32(bytes), MaxEntries: maxEntries,
		Key: &btf.Struct{Name: "ct_key", Size: 8, Members: []btf.Member{
			{Name: "saddr", Type: word}, {Name: "dport", Type: word, Offset: 32},
		}},
		Value: &btf.Struct{Name: "ct_value", Size: uint32(bytes), Members: []btf.Member{{Name: "bytes", Type: number}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return &ctMap{Map: m, bytes: bytes}
}

// id returns the map's id in the kernel.
func (m *ctMap) id(t *testing.T) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		t.Fatal("id of a map: got none, want one")
	}
	return id
}

// put writes the entry of client n.
func (m *ctMap) put(t *testing.T, n int, bytes uint64) {
	t.Helper()
	key := binary.LittleEndian.AppendUint32(nil, uint32(0x0a000000+n))
	key = binary.LittleEndian.AppendUint32(key, 443)
	if err := m.Put(key, binary.LittleEndian.AppendUint64(nil, bytes)[:m.bytes]); err != nil {
		t.Fatal(err)
	}
}
