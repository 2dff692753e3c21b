package daemon_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/netns"
	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// The maps of these tests have the index of an interface in the key or in the value.
var (
	portKey   = layout{{"id", 4}, {"port", 4}}
	portValue = layout{{"state", 4}, {"oif", 4}}
)

const (
	uplink      = "uplink" // interface of the sessions from lostSession on
	lostSession = 5
	allSessions = 10
)

// portNode is a node in its own network namespace, with one map for each place of the index.
type portNode struct {
	*childNode
	index uint32 // of uplink
	maps  map[string]*ebpf.Map
}

// newPortNodes returns two nodes whose namespaces are connected. Both have the interface uplink, with other indexes.
func newPortNodes(t *testing.T) (nodes [2]*portNode) {
	t.Helper()
	dir := pinDir(t)
	for i := range nodes {
		ns, err := netns.New(fmt.Sprint("node", i+1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ns.Close() })
		n := &portNode{index: uint32(70 + i), maps: map[string]*ebpf.Map{}}
		pins := []string{filepath.Join(dir, fmt.Sprint("key", i)), filepath.Join(dir, fmt.Sprint("value", i))}
		n.maps["key"], n.maps["value"] = typed(t, pins[0], portKey, portValue, 100), typed(t, pins[1], portKey, portValue, 100)
		n.childNode = &childNode{node: newNode(t, i+1, "key="+pins[0], "value="+pins[1]), ns: ns}
		c, address := &n.config, fmt.Sprint("10.9.0.", i+1)
		c.Insecure, c.Fields = true, []string{"key:key.port=ifindex", "value:oif=ifindex"}
		c.GossipListen, c.GRPCListen, c.MetricsListen = address+":7946", address+":7947", address+":9746"
		c.Join = []string{"10.9.0.1:7946", "10.9.0.2:7946"}
		c.ScanInterval, c.MaxScanInterval = 100*time.Millisecond, 100*time.Millisecond
		n.addUplink()
		nodes[i] = n
	}
	if err := netns.Join(nodes[0].ns, "eth0", "10.9.0.1/24", nodes[1].ns, "eth0", "10.9.0.2/24"); err != nil {
		t.Fatal(err)
	}
	nodes[0].start()
	nodes[1].start()
	poll.Eventually(t, "both nodes are connected", func() bool {
		for _, n := range nodes {
			if status, err := n.client.Status(t.Context()); err != nil || !status.Ready || len(status.Peers) != 1 {
				return false
			}
		}
		return true
	})
	return nodes
}

func (n *portNode) addUplink() {
	n.t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: uplink, Index: int(n.index)}, PeerName: "far"}
	if err := n.ns.Handle().LinkAdd(link); err != nil {
		n.t.Fatal(err)
	}
}

func (n *portNode) removeUplink() {
	n.t.Helper()
	link, err := n.ns.Link(uplink)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.ns.Handle().LinkDel(link); err != nil {
		n.t.Fatal(err)
	}
}

// session returns session i of a map of the node.
func (n *portNode) session(place string, i, state uint64) (key, value []byte) {
	port := uint64(1)
	if i >= lostSession {
		port = uint64(n.index)
	}
	if place == "key" {
		return portKey.bytes(map[string]uint64{"id": i, "port": port}), portValue.bytes(map[string]uint64{"state": state})
	}
	return portKey.bytes(map[string]uint64{"id": i}), portValue.bytes(map[string]uint64{"state": state, "oif": port})
}

// write writes all sessions of both maps by bpf(2).
func (n *portNode) write(state uint64) {
	n.t.Helper()
	for place, m := range n.maps {
		for i := range uint64(allSessions) {
			if err := m.Put(n.session(place, i, state)); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}

// held returns how many sessions [from, to) of both maps have a state. 0: any state.
func (n *portNode) held(from, to, state uint64) (count int) {
	for place, m := range n.maps {
		for i := from; i < to; i++ {
			key, want := n.session(place, i, state)
			value, err := m.LookupBytes(key)
			if err == nil && value != nil && (state == 0 || string(value) == string(want)) {
				count++
			}
		}
	}
	return count
}

// filtered returns the numbers of sessions that the node does not send, and that it does not accept.
func (n *portNode) filtered() (unsent, refused int) {
	for _, m := range n.status().Maps {
		unsent += m.Unsent
	}
	for _, p := range n.status().Peers {
		for _, m := range p.Maps {
			refused += m.Refused
		}
	}
	return unsent, refused
}

// TestMissingInterfaceKeepsEntries: an interface is removed and created again, on the receiver and then on the sender. Its
// sessions change meanwhile. All sessions are in the kernel maps of both nodes at each moment, also after a full sync without
// the interface, and the changes arrive once it is there again.
func TestMissingInterfaceKeepsEntries(t *testing.T) {
	nodes := newPortNodes(t)
	sender, receiver := nodes[0], nodes[1]
	sender.write(1)
	poll.Eventually(t, "the receiver has the sessions", func() bool { return receiver.held(0, allSessions, 1) == 2*allSessions })
	within := func(what string, ok func() bool) {
		t.Helper()
		poll.Eventually(t, what, func() bool {
			if n, m := sender.held(0, allSessions, 0), receiver.held(0, allSessions, 0); n != 2*allSessions || m != 2*allSessions {
				t.Fatalf("%s: sessions in both maps: got %d on the sender and %d on the receiver, want %d", what, n, m, 2*allSessions)
			}
			return ok()
		})
	}
	for i, n := range []*portNode{receiver, sender} {
		state := uint64(i + 2)
		n.removeUplink()
		sender.write(state)
		within("the sessions of the interface are filtered", func() bool {
			unsent, _ := sender.filtered()
			_, refused := receiver.filtered()
			return []int{refused, unsent}[i] == 2*(allSessions-lostSession)
		})
		for place := range n.maps {
			resync(t, receiver.node, place)
		}
		within("the other changes arrive", func() bool { return receiver.held(0, lostSession, state) == 2*lostSession })
		if got := receiver.held(lostSession, allSessions, state); got != 0 {
			t.Errorf("sessions without an interface: got %d changes, want 0", got)
		}
		n.addUplink()
		within("all changes arrive", func() bool { return receiver.held(0, allSessions, state) == 2*allSessions })
	}
}

// resync requests a full sync of a map, and waits until the node holds all records that the peers can send and it can hold.
func resync(t *testing.T, n *node, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), poll.Lengthened(poll.Limit))
	defer cancel()
	if err := n.client.Resync(ctx, name, func(*daemon.Resync) {}); err != nil {
		t.Fatalf("full sync of map %s: got error %v, want none", name, err)
	}
}
