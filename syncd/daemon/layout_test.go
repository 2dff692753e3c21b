package daemon_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// layout is one version of a load balancer's types: members with name and size in bytes.
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

// bytes returns the bytes of an entry with these members.
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

// typed creates a map with BTF and pins it at path, in place of an earlier map.
func typed(t *testing.T, path string, key, value layout, entries uint32) *ebpf.Map {
	t.Helper()
	k, v := key.build("ct_key"), value.build("ct_value")
	return pinnedAs(t, path, &ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, KeySize: k.Size, ValueSize: v.Size, MaxEntries: entries, Key: k, Value: v,
	})
}

// session returns entry i of a typed map. state is the member that changes.
func session(key, value layout, i, state uint64) (k, v []byte) {
	return key.bytes(map[string]uint64{"addr": i, "port": 443, "zone": 1}),
		value.bytes(map[string]uint64{"bytes": 1000 + i, "state": state, "flags": 0})
}

// holdsSessions reports whether a map has exactly the entries [0, count), all in state.
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

// writeSessions makes n's data plane write the entries [from, to).
func (n *node) writeSessions(m *ebpf.Map, key, value layout, from, to, state uint64) {
	n.t.Helper()
	n.applyEntries(m, int(to-from), func(i int) (k, v []byte) { return session(key, value, from+uint64(i), state) })
}

func (n *node) deleteSessions(m *ebpf.Map, key, value layout, from, to uint64) {
	n.t.Helper()
	n.applyEntries(m, int(to-from), func(i int) (k, v []byte) {
		k, _ = session(key, value, from+uint64(i), 0)
		return k, nil
	})
}

// owners lists the key, owner and time of change of each record, in the order of the table.
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

// The load balancer is upgraded on one node and then on the other. Its new maps have another
// layout, and no entry is lost. A map that does not fit is refused, and the table stays.
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
	poll.Eventually(t, "both maps hold all entries", equal(valueV1, valueV1, 1000, 3))
	before := n2.owners()

	m2 = typed(t, path2, keyV1, valueV2, 2000)
	poll.Eventually(t, "the new map holds the converted entries", equal(valueV1, valueV2, 1000, 3))
	poll.Eventually(t, "the node is ready again", func() bool { return n2.status().Ready })
	if after := n2.owners(); after != before {
		t.Errorf("owners and versions after the conversion: want\n%.300s\ngot\n%.300s", before, after)
	}
	// Streams continue in both directions between the two layouts.
	n1.writeSessions(m1, keyV1, valueV1, 0, 1100, 4)
	poll.Eventually(t, "changes reach the new layout from the old one", equal(valueV1, valueV2, 1100, 4))
	n2.writeSessions(m2, keyV1, valueV2, 0, 1200, 5)
	poll.Eventually(t, "changes reach the old layout from the new one", equal(valueV1, valueV2, 1200, 5))
	n2.deleteSessions(m2, keyV1, valueV2, 1100, 1200)
	poll.Eventually(t, "deletes reach the other layout", equal(valueV1, valueV2, 1100, 5))

	// A map whose key has other fields is refused, and no record is lost.
	refused := typed(t, path2, keyV3, valueV2, 2000)
	poll.Eventually(t, "the map is refused and the error names the field", func() bool {
		s := n2.status().Maps[0]
		return s.State == daemon.MapRefused && strings.Contains(s.Error, "zone")
	})
	if s := n2.status(); s.Ready || s.Maps[0].Live != 1100 {
		t.Errorf("status with a refused map: got %+v, want not ready with 1100 live records", s)
	}
	n1.writeSessions(m1, keyV1, valueV1, 0, 1100, 6)
	var key, value []byte
	if entries := refused.Iterate(); entries.Next(&key, &value) {
		t.Error("refused map: got entries, want none")
	}
	m2 = typed(t, path2, keyV1, valueV2, 3000)
	poll.Eventually(t, "a map that fits is refilled, including changes made meanwhile", equal(valueV1, valueV2, 1100, 6))

	// The other node is upgraded.
	m1 = typed(t, path1, keyV1, valueV2, 2000)
	poll.Eventually(t, "the other new map holds the converted entries", equal(valueV2, valueV2, 1100, 6))
	n1.writeSessions(m1, keyV1, valueV2, 0, 1100, 7)
	poll.Eventually(t, "both maps hold all entries in the new layout", equal(valueV2, valueV2, 1100, 7))
	for _, n := range []*node{n1, n2} {
		if s := n.status(); s.Gaps != 0 || s.Maps[0].Live != 1100 {
			t.Errorf("status: got %+v, want no gaps and 1100 live records", s)
		}
	}
}

// Entries that do not fit the new layout are dropped and counted. The other entries remain.
func TestEntriesThatDoNotConvert(t *testing.T) {
	dir := pinDir(t)
	path := filepath.Join(dir, "one")
	m := typed(t, path, keyV1, valueV2, 1000)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.applyEntries(m, 10, func(i int) (k, v []byte) {
		k, _ = session(keyV1, valueV2, uint64(i), 3)
		return k, valueV2.bytes(map[string]uint64{"bytes": uint64(i) << 30, "state": 3})
	})
	poll.Eventually(t, "the table has all records", func() bool { return n.status().Maps[0].Live == 10 })
	m = typed(t, path, keyV1, valueV1, 1000) // bytes has 32 bits now, so that entries 0 to 3 fit
	poll.Eventually(t, "the entries that fit are in the map", func() bool {
		entries, count := m.Iterate(), 0
		var k, v []byte
		for entries.Next(&k, &v) {
			count++
		}
		return count == 4 && n.status().Ready
	})
	if !strings.Contains(n.metrics(), `mapsync_map_unconverted_entries_total{map="ct"} 6`) || !n.log.contains("entries dropped") {
		t.Error("metric and log: want 6 dropped entries")
	}
}
