package daemon_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
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

// layoutOf returns a map of a data plane.
func layoutOf(t *testing.T, list []dataplane.Map, name string) dataplane.Map {
	t.Helper()
	i := slices.IndexFunc(list, func(m dataplane.Map) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("map %s: got none, want one", name)
	}
	return list[i]
}

// TestProfileWithReferences: two nodes with the profile of Cilium, which number backends and services differently. A session for a service
// has its backend, and another session its address, in the same bytes.
func TestProfileWithReferences(t *testing.T) {
	const count = 200
	p, err := config.ReadProfile("cilium-l4lb")
	if err != nil {
		t.Fatal(err)
	}
	dir := pinDir(t)
	ct := layoutOf(t, dataplane.Maps(), "cilium_ct4_global")
	var nodes [2]*node
	var sessions [2]*ebpf.Map
	text := p.Text()
	for i := range nodes {
		folder := filepath.Join(dir, fmt.Sprint("node", i))
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, m := range append(slices.DeleteFunc(dataplane.Maps(), func(m dataplane.Map) bool { return m.Profile != p.Name }), dataplane.Referenced()...) {
			raw := pinnedAs(t, filepath.Join(folder, m.Name), &ebpf.MapSpec{
				Type: m.Type, KeySize: uint32(m.KeySize), ValueSize: uint32(m.ValueSize), MaxEntries: 1000, Key: m.Key, Value: m.Value,
			})
			switch m.Name {
			case ct.Name:
				sessions[i] = raw
			case "cilium_lb4_backends_v3", "cilium_lb4_reverse_nat": // 10.0.0.k:80 has the id k+1 on the first node, and 101+k on the second
				for k := range byte(10) {
					key, value := make([]byte, m.KeySize), make([]byte, m.ValueSize)
					key[0] = k + 1 + 100*byte(i)
					copy(value, []byte{10, 0, 0, k, 0, 80})
					if err := raw.Put(key, value); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		file := filepath.Join(t.TempDir(), "cilium.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "/sys/fs/bpf/tc/globals", folder)), 0o600); err != nil {
			t.Fatal(err)
		}
		settings, err := config.ReadWithProfile("", file)
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = newNode(t, i+1, settings.Maps...)
		c := &nodes[i].config
		c.Fields, c.Referenced, c.OptionalMaps, c.EntrySizes, c.StrictRoles = settings.Fields, settings.Referenced, settings.OptionalMaps, settings.EntrySizes, true
	}
	startPair(t, nodes[0], nodes[1])

	// entry returns a session of a node: every second one is for a service. They differ in their source port.
	entry := func(node, i int) (key, value []byte) {
		key, value = make([]byte, ct.KeySize), make([]byte, ct.ValueSize)
		binary.BigEndian.PutUint16(key[10:], uint16(1000+i))
		key[12] = 6
		if value[44] = 2; i%2 == 0 { // the identity of the world
			key[13] = 4
			value[8] = byte(i%10+1) + 100*byte(node)
			value[38] = value[8]
			return key, value
		}
		copy(value[12:], []byte{192, 0, 2, byte(i)})
		binary.BigEndian.PutUint16(value[40:], 8080)
		return key, value
	}
	nodes[0].applyEntries(sessions[0], count, func(i int) (key, value []byte) { return entry(0, i) })
	want := make(map[string]string, count)
	for i := range count {
		key, value := entry(1, i)
		want[string(key)] = string(value)
	}
	poll.Eventually(t, "the peer has each session with its own ids", func() bool {
		entries, n := sessions[1].Iterate(), 0
		var k, v []byte
		for ; entries.Next(&k, &v); n++ {
			if want[string(k)] != string(v) {
				return false
			}
		}
		return entries.Err() == nil && n == count
	})
	for where, part := range map[string]string{
		"sport=1004": `"backend_id":"address=10.0.0.4,port=80,proto=0"`,
		"sport=1005": `"nat_port":8080`,
		"sport=1006": `"rev_nat_index":"address=10.0.0.6,port=80"`,
	} {
		line := ""
		err := nodes[1].client.Entries(t.Context(), ct.Name, daemon.EntryQuery{Where: []string{where}}, func(e *daemon.Entry) error { line += string(e.Value); return nil })
		if err != nil || !strings.Contains(line, part) {
			t.Errorf("dump of %s: got %s, error %v, want %s", where, line, err, part)
		}
	}
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
