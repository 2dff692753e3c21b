package daemon_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
)

var (
	linkKey     = layout{{"addr", 4}, {"ifindex", 4}}
	linkValueV1 = layout{{"oif", 4}, {"state", 4}}
	linkValueV2 = layout{{"flags", 4}, {"oif", 4}, {"state", 8}}
)

// newLink adds an interface. Index 0: the kernel chooses one.
func newLink(t *testing.T, index int) netlink.Link {
	t.Helper()
	name := fmt.Sprintf("ms%d", os.Getpid())
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}, PeerName: name + "p"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
	got, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// probe is a session that shows that a node misses the interface: it is changed until the node cannot send it.
const probe = 1000

// holdsPorts reports whether a map has exactly the sessions [0, count) of an interface, besides the probe.
func holdsPorts(m *ebpf.Map, value layout, count, index int) bool {
	entries, n := m.Iterate(), 0
	var k, v []byte
	for entries.Next(&k, &v) {
		if binary.LittleEndian.Uint32(k) == probe {
			continue
		}
		_, want := portSession(value, uint64(binary.LittleEndian.Uint32(k)), index)
		if binary.LittleEndian.Uint32(k[4:]) != uint32(index) || string(v) != string(want) {
			return false
		}
		n++
	}
	return entries.Err() == nil && n == count
}

// portSession returns session i of an interface, which is in the key and in the value.
func portSession(value layout, i uint64, index int) (k, v []byte) {
	return linkKey.bytes(map[string]uint64{"addr": i, "ifindex": uint64(index)}),
		value.bytes(map[string]uint64{"oif": uint64(index), "state": 3})
}

// TestLayoutChangesWithoutInterface: a load balancer replaces its map by one of another layout while the interface of its sessions
// does not exist. All sessions stay on both nodes, at each reading, also once the interface is back.
func TestLayoutChangesWithoutInterface(t *testing.T) {
	const count = 50
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := typed(t, path1, linkKey, linkValueV1, 1000), typed(t, path2, linkKey, linkValueV1, 1000)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	for _, n := range []*node{n1, n2} {
		n.config.Fields = []string{"ct:key.ifindex=ifindex", "ct:oif=ifindex"}
	}
	link := newLink(t, 0)
	index := link.Attrs().Index
	startPair(t, n1, n2)
	n1.applyEntries(m1, count, func(i int) (k, v []byte) { return portSession(linkValueV1, uint64(i), index) })
	poll.Eventually(t, "both maps hold all sessions", func() bool {
		return holdsPorts(m1, linkValueV1, count, index) && holdsPorts(m2, linkValueV1, count, index)
	})

	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	state := uint64(100)
	poll.Eventually(t, "the node misses the interface", func() bool {
		state++
		n1.applyEntries(m1, 1, func(int) (k, v []byte) {
			k, _ = portSession(linkValueV1, probe, index)
			return k, linkValueV1.bytes(map[string]uint64{"oif": uint64(index), "state": state})
		})
		return n1.status().Maps[0].Unsent > 0
	})
	n1.shows("unsent-entries", problem.Warning, "1 entries cannot be sent to any peer")
	n2.shows("peer-unsent-entries", problem.Warning, "1 entries cannot be sent by the peer")
	m1 = typed(t, path1, linkKey, linkValueV2, 1000)
	held := func(m *ebpf.Map, value layout) {
		t.Helper()
		if !holdsPorts(m, value, count, index) {
			t.Fatalf("sessions: got %d, or others, want the same %d", countEntries(t, m), count)
		}
	}
	poll.Eventually(t, "the new map holds all sessions", func() bool {
		held(m2, linkValueV1)
		return holdsPorts(m1, linkValueV2, count, index)
	})
	stay := func(d time.Duration, what string) {
		t.Helper()
		poll.Stays(t, d, what, func() bool { held(m1, linkValueV2); held(m2, linkValueV1); return true })
	}
	stay(3*time.Second, "all sessions stay without the interface")
	newLink(t, index)
	stay(6*time.Second, "all sessions stay with the interface")
	poll.Eventually(t, "both nodes agree, also about the probe", func() bool {
		held(m1, linkValueV2)
		held(m2, linkValueV1)
		return n1.status().Ready && n2.status().Ready && countEntries(t, m1) == count+1 && countEntries(t, m2) == count+1
	})
	n1.ends("unsent-entries")
	n2.ends("peer-unsent-entries")
}
