package daemon_test

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestProfileWithUnions: two nodes with the profile of a load balancer whose values have unions. Each entry arrives with the member that
// its type selects, and is printed by the names of that member. A counter of one member is not sent at once, and the same bytes of
// another member are.
func TestProfileWithUnions(t *testing.T) {
	const count = 300
	at := slices.IndexFunc(dataplane.Maps(), func(m dataplane.Map) bool { return m.Name == "cali_v4_ct4" })
	layout := dataplane.Maps()[at]
	dir := pinDir(t)
	maps, nodes := make([]*ebpf.Map, 2), make([]*node, 2)
	settings, err := config.ReadWithProfile("", layout.Profile)
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		path := filepath.Join(dir, string(rune('a'+i)))
		maps[i] = pinnedAs(t, path, &ebpf.MapSpec{
			Name: "ct", Type: ebpf.Hash, KeySize: uint32(layout.KeySize), ValueSize: uint32(layout.ValueSize), MaxEntries: 1000, Key: layout.Key, Value: layout.Value,
		})
		nodes[i] = newNode(t, i+1, layout.Name+"="+path)
		for _, s := range settings.Fields {
			if strings.HasPrefix(s, layout.Name+":") {
				nodes[i].config.Fields = append(nodes[i].config.Fields, s)
			}
		}
		nodes[i].config.StrictRoles = true
	}
	startPair(t, nodes[0], nodes[1])

	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	entry := func(i int) (key, value []byte) {
		key, value = make([]byte, layout.KeySize), make([]byte, layout.ValueSize)
		binary.LittleEndian.PutUint32(key, uint32(i))
		for j := 24; j < len(value); j++ {
			value[j] = byte(random.Uint32())
		}
		layout.Set(key, value, i)
		binary.LittleEndian.PutUint64(value[8:], uint64(now.Nano())-uint64(i)*1e6)
		if value[16] != 1 { // legs with lo, and without the unused bits
			for _, leg := range []int{24, 48} {
				binary.LittleEndian.PutUint32(value[leg+16:], uint32(i%128))
				binary.LittleEndian.PutUint32(value[leg+20:], 1)
			}
		}
		return key, value
	}
	want := make(map[string]string, count)
	nodes[0].applyEntries(maps[0], count, func(i int) (key, value []byte) {
		key, value = entry(i)
		want[string(key)] = string(value)
		return key, value
	})
	poll.Eventually(t, "the peer has each entry", func() bool { return contents(maps[1], want) })

	var lines []string
	err = nodes[1].client.Entries(t.Context(), layout.Name, daemon.EntryQuery{Where: []string{"type=1"}}, func(e *daemon.Entry) error {
		lines = append(lines, string(e.Value))
		return nil
	})
	if err != nil || len(lines) != count/3 || !strings.Contains(lines[0], `"nat_rev_key":{"protocol":`) || strings.Contains(lines[0], "a_to_b\"") {
		t.Errorf("entries with a key of another one: got %d, error %v, want %d with its names: %.300s", len(lines), err, count/3, strings.Join(lines[:min(len(lines), 1)], ""))
	}
	err = nodes[1].client.Entries(t.Context(), layout.Name, daemon.EntryQuery{Where: []string{"a_to_b_or_nat_rev_key.a_to_b.a_to_b.ifindex=lo"}}, func(*daemon.Entry) error {
		lines = append(lines, "")
		return nil
	})
	if err != nil || len(lines) != count {
		t.Errorf("entries by an interface of a leg: got %d, error %v, want %d", len(lines)-count/3, err, count-count/3)
	}

	// Bytes 24 to 31 count the bytes of a leg, and begin the key of another entry.
	for _, i := range []int{0, 1} {
		key, value := entry(i)
		copy(value, want[string(key)])
		binary.LittleEndian.PutUint32(value[24:], 77)
		nodes[0].applyEntries(maps[0], 1, func(int) (k, v []byte) { return key, value })
		if i == 1 {
			want[string(key)] = string(value)
		}
	}
	poll.Eventually(t, "the peer has the changed key", func() bool { return contents(maps[1], want) })
}

// contents reports whether a map has exactly these entries, except for the time of their last use, which is a time of another clock.
func contents(m *ebpf.Map, want map[string]string) bool {
	entries, n := m.Iterate(), 0
	var k, v []byte
	for entries.Next(&k, &v) {
		w := want[string(k)]
		if w == "" || w[:8]+w[16:] != string(v[:8])+string(v[16:]) {
			return false
		}
		n++
	}
	return entries.Err() == nil && n == len(want)
}
