package daemon_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// layout is a version of a load balancer's types: members by name and size in bytes.
type layout []struct {
	name string
	size int
}

func (l layout) build(name string) *btf.Struct {
	s := &btf.Struct{Name: name}
	for _, m := range l {
		typ := &btf.Int{Name: fmt.Sprintf("__u%d", 8*m.size), Size: uint32(m.size)}
		s.Members = append(s.Members, btf.Member{Name: m.name, Type: typ, Offset: btf.Bits(8 * s.Size)})
		s.Size += uint32(m.size)
	}
	return s
}

// put writes the members of an entry.
func (l layout) bytes(values map[string]uint64) (b []byte) {
	for _, m := range l {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], values[m.name])
		b = append(b, word[:m.size]...)
	}
	return b
}

var (
	keyV1   = layout{{"addr", 4}, {"port", 2}, {"zone", 2}}
	keyV3   = layout{{"addr", 4}, {"port", 4}}
	valueV1 = layout{{"bytes", 4}, {"state", 4}}
	valueV2 = layout{{"flags", 4}, {"state", 4}, {"bytes", 8}}
)

// typed makes a map with BTF, pinned at path in the place of what was there.
func typed(t *testing.T, path string, key, value layout, entries uint32) *ebpf.Map {
	t.Helper()
	k, v := key.build("ct_key"), value.build("ct_value")
	return pinnedAs(t, path, &ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, KeySize: k.Size, ValueSize: v.Size, MaxEntries: entries, Key: k, Value: v,
	})
}

// session is entry i of a typed map: state is what changes of it.
func session(key, value layout, i, state uint64) (k, v []byte) {
	return key.bytes(map[string]uint64{"addr": i, "port": 443, "zone": 1}),
		value.bytes(map[string]uint64{"bytes": 1000 + i, "state": state, "flags": 0})
}

// holdsSessions reports whether a map has just the entries [0, count), in state.
func holdsSessions(m *ebpf.Map, key, value layout, count int, state uint64) bool {
	entries, n := m.Iterate(), 0
	var k, v []byte
	for entries.Next(&k, &v) {
		wantKey, wantValue := session(key, value, uint64(binary.LittleEndian.Uint32(k)), state)
		if string(k) != string(wantKey) || string(v) != string(wantValue) {
			return false
		}
		n++
	}
	return entries.Err() == nil && n == count
}

// writeSessions has n's data plane write entries [from, to).
func (n *node) writeSessions(m *ebpf.Map, key, value layout, from, to, state uint64) {
	n.t.Helper()
	n.feed(m, int(to-from), func(i int) (k, v []byte) { return session(key, value, from+uint64(i), state) })
}

func (n *node) deleteSessions(m *ebpf.Map, key, value layout, from, to uint64) {
	n.t.Helper()
	n.feed(m, int(to-from), func(i int) (k, v []byte) {
		k, _ = session(key, value, from+uint64(i), 0)
		return k, nil
	})
}

// owners lists who owns what since when, in the order of the table.
func (n *node) owners() string {
	n.t.Helper()
	var list strings.Builder
	err := n.client.Entries(n.t.Context(), "ct", daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, _, err := e.Bytes()
		fmt.Fprintf(&list, "%x %s %s\n", key, e.Owner, e.Changed)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return list.String()
}

// The load balancer is upgraded on one node and then on the other: its new maps have
// another layout, and lose nothing. One that does not fit is refused, and the table stays.
func TestLayoutChanges(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := typed(t, path1, keyV1, valueV1, 2000), typed(t, path2, keyV1, valueV1, 2000)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	startPair(t, n1, n2)
	n1.writeSessions(m1, keyV1, valueV1, 0, 500, 3)
	n2.writeSessions(m2, keyV1, valueV1, 500, 1000, 3)
	equal := func(v1, v2 layout, count int, state uint64) func() bool {
		return func() bool {
			return holdsSessions(m1, keyV1, v1, count, state) && holdsSessions(m2, keyV1, v2, count, state)
		}
	}
	eventually(t, "equal", equal(valueV1, valueV1, 1000, 3))
	before := n2.owners()

	m2 = typed(t, path2, keyV1, valueV2, 2000)
	eventually(t, "converted", equal(valueV1, valueV2, 1000, 3))
	eventually(t, "ready again", func() bool { return n2.status().Ready })
	if after := n2.owners(); after != before {
		t.Errorf("owners and versions were\n%.300s\nand are\n%.300s", before, after)
	}
	// Streams go on, both ways and between two layouts.
	n1.writeSessions(m1, keyV1, valueV1, 0, 1100, 4)
	eventually(t, "from the old layout to the new one", equal(valueV1, valueV2, 1100, 4))
	n2.writeSessions(m2, keyV1, valueV2, 0, 1200, 5)
	eventually(t, "from the new layout to the old one", equal(valueV1, valueV2, 1200, 5))
	n2.deleteSessions(m2, keyV1, valueV2, 1100, 1200)
	eventually(t, "deletes too", equal(valueV1, valueV2, 1100, 5))

	// A key that means something else: refused, and nothing that is known is lost.
	refused := typed(t, path2, keyV3, valueV2, 2000)
	eventually(t, "refused with the field named", func() bool {
		s := n2.status().Maps[0]
		return s.State == daemon.MapRefused && strings.Contains(s.Error, "zone")
	})
	if s := n2.status(); s.Ready || s.Maps[0].Live != 1100 {
		t.Errorf("%+v", s)
	}
	n1.writeSessions(m1, keyV1, valueV1, 0, 1100, 6)
	var key, value []byte
	if entries := refused.Iterate(); entries.Next(&key, &value) {
		t.Error("the refused map was written")
	}
	m2 = typed(t, path2, keyV1, valueV2, 3000)
	eventually(t, "one that fits is refilled, with what came meanwhile", equal(valueV1, valueV2, 1100, 6))

	// The other node follows.
	m1 = typed(t, path1, keyV1, valueV2, 2000)
	eventually(t, "converted too", equal(valueV2, valueV2, 1100, 6))
	n1.writeSessions(m1, keyV1, valueV2, 0, 1100, 7)
	eventually(t, "equal at last", equal(valueV2, valueV2, 1100, 7))
	for _, n := range []*node{n1, n2} {
		if s := n.status(); s.Gaps != 0 || s.Maps[0].Live != 1100 {
			t.Errorf("%+v", s)
		}
	}
}

// What does not fit the new layout is left out, counted, and the rest goes on.
func TestEntriesThatDoNotConvert(t *testing.T) {
	dir := pinDir(t)
	path := filepath.Join(dir, "one")
	m := typed(t, path, keyV1, valueV2, 1000)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	eventually(t, "ready", func() bool { return n.status().Ready })
	n.feed(m, 10, func(i int) (k, v []byte) {
		k, _ = session(keyV1, valueV2, uint64(i), 3)
		return k, valueV2.bytes(map[string]uint64{"bytes": uint64(i) << 30, "state": 3})
	})
	eventually(t, "known", func() bool { return n.status().Maps[0].Live == 10 })
	m = typed(t, path, keyV1, valueV1, 1000) // bytes has 32 bits now: 0 to 3 fit
	eventually(t, "what fits is there", func() bool {
		entries, count := m.Iterate(), 0
		var k, v []byte
		for entries.Next(&k, &v) {
			count++
		}
		return count == 4 && n.status().Ready
	})
	if !strings.Contains(n.metrics(), `mapsync_map_unconverted_entries_total{map="ct"} 6`) || !n.log.contains("are left out") {
		t.Error("it does not say that entries were left out")
	}
}
