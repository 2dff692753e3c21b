package daemon_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"

	"github.com/cilium/ebpf"
	"github.com/hashicorp/memberlist"
	"google.golang.org/protobuf/encoding/protowire"
)

// memberMeta encodes the meta data of a node like package peers.
func memberMeta(incarnation uint64, service string) []byte {
	b := protowire.AppendTag([]byte{1}, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, incarnation)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), service)
}

// metaDelegate is a memberlist delegate with fixed meta data.
type metaDelegate []byte

func (i metaDelegate) NodeMeta(int) []byte             { return i }
func (i metaDelegate) NotifyMsg([]byte)                {}
func (i metaDelegate) GetBroadcasts(int, int) [][]byte { return nil }
func (i metaDelegate) LocalState(bool) []byte          { return nil }
func (i metaDelegate) MergeRemoteState([]byte, bool)   {}

// startIntruder starts a gossip member with the gossip key and without a certificate. It joins
// nodes.
func startIntruder(t *testing.T, name string, key []byte, service string, nodes ...*node) {
	t.Helper()
	conf := memberlist.DefaultLocalConfig()
	conf.Name, conf.SecretKey, conf.EnableCompression = name, key, false
	conf.Delegate = metaDelegate(memberMeta(uint64(time.Now().UnixNano()), service))
	conf.BindAddr, conf.BindPort, conf.AdvertiseAddr, conf.AdvertisePort = loopback(66), 0, loopback(66), 0
	conf.Logger = log.New(io.Discard, "", 0)
	list, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = list.Shutdown() })
	for _, n := range nodes {
		if _, err := list.Join([]string{n.config.GossipListen}); err != nil {
			t.Fatal(err)
		}
	}
}

// The types of memberlist messages.
const (
	msgAlive = 4
	msgDead  = 5
)

// field is one field of a message.
type field struct {
	name  string
	value any
}

// encodeMessage encodes a memberlist message.
func encodeMessage(kind byte, fields ...field) []byte {
	b := []byte{kind, 0x80 | byte(len(fields))}
	raw := func(s []byte) { b = append(append(b, 0xda, byte(len(s)>>8), byte(len(s))), s...) }
	for _, f := range fields {
		raw([]byte(f.name))
		switch v := f.value.(type) {
		case uint32:
			b = binary.BigEndian.AppendUint32(append(b, 0xce), v)
		case uint16:
			b = binary.BigEndian.AppendUint16(append(b, 0xcd), v)
		case string:
			raw([]byte(v))
		case []byte:
			raw(v)
		}
	}
	return b
}

// forge sends an encrypted message to the gossip listeners of nodes.
func forge(t *testing.T, key, message []byte, nodes ...*node) {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, gcm.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		t.Fatal(err)
	}
	sealed := append(append([]byte{1}, nonce...), gcm.Seal(nil, nonce, message, nil)...)
	for _, n := range nodes {
		conn, err := net.Dial("udp", n.config.GossipListen)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(sealed); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

// securePair starts two nodes with certificates and a gossip key, and waits until both are ready.
func securePair(t *testing.T) (n1, n2 *node, m1, m2 *ebpf.Map, key []byte) {
	t.Helper()
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n1, n2, m1, m2 = twoNodes(t, 1000)
	n1.secure(ca, testcert.Options{}, 7)
	n2.secure(ca, testcert.Options{}, 7)
	startPair(t, n1, n2)
	return n1, n2, m1, m2, bytes.Repeat([]byte{7}, 32)
}

// connected reports whether n replicates with a live peer of this name in both directions.
func (n *node) connected(peer string) bool {
	n.t.Helper()
	for _, p := range n.status().Peers {
		if p.Node == peer && p.Receiving && p.Sending {
			return true
		}
	}
	return false
}

// Forged gossip by a holder of the gossip key cannot remove, restart or move a node that has a
// stream. It cannot add a node that counts as a peer.
func TestForgedGossipDoesNotChangePeers(t *testing.T) {
	n1, n2, m1, m2, key := securePair(t)
	before := n1.status().Peers[0]
	gossip := netip.MustParseAddrPort(loopback(66) + ":7999")
	vsn := []byte{1, 5, 2, 0, 0, 0}
	alive := func(node string, incarnation uint32, own uint64, service string) []byte {
		return encodeMessage(msgAlive, field{"Incarnation", incarnation}, field{"Node", node}, field{"Addr", gossip.Addr().AsSlice()},
			field{"Port", gossip.Port()}, field{"Meta", memberMeta(own, service)}, field{"Vsn", vsn})
	}
	dead := encodeMessage(msgDead, field{"Incarnation", uint32(math.MaxUint32)}, field{"Node", "n2"}, field{"From", "n9"})
	forge(t, key, alive("n2", 1000, before.Incarnation, gossip.String()), n1)
	forge(t, key, alive("n2", 1001, before.Incarnation+1e9, gossip.String()), n1)
	forge(t, key, dead, n1, n2)
	forge(t, key, alive("n2", math.MaxUint32, before.Incarnation+2e9, gossip.String()), n1)
	for i := range 50 {
		forge(t, key, alive(fmt.Sprintf("ghost%d", i), 1, uint64(time.Now().UnixNano()), gossip.String()), n1, n2)
	}
	// With versions that no other node supports, gossip would stop exchanging membership.
	vsn = []byte{1, 5, 5, 2, 5, 4}
	forge(t, key, alive("ghost99", 1, uint64(time.Now().UnixNano()), gossip.String()), n1, n2)
	poll.Eventually(t, "gossip of n1 reports the forged death", func() bool { return n1.log.contains("peer left or died") })
	s := n1.status()
	poll.Stays(t, 6*time.Second, "n1 is ready, and its only peer n2 is unchanged", func() bool {
		if s = n1.status(); len(s.Peers) != 1 || !s.Ready {
			return false
		}
		p := s.Peers[0]
		return p.Node == "n2" && p.Incarnation == before.Incarnation && p.Address == before.Address && p.Receiving
	}, func() any { return fmt.Sprintf("got ready %v, peers %+v", s.Ready, s.Peers) })
	n1.write(m1, 0, 300, 7)
	poll.Eventually(t, "new records still arrive", func() bool { return holds(t, m2, 300, 7) })
	// Gossip refuses the name for a while. A restarted node announces itself again.
	n2.stop()
	poll.Eventually(t, "n2 has left", func() bool { return len(n1.status().Peers) == 0 })
	n2.start()
	poll.Eventually(t, "n2 has returned", func() bool { return n1.connected("n2") && n2.connected("n1") && n2.status().Ready })
}

// Gossip members that never answer do not keep a starting node from becoming ready.
func TestSilentMembersDoNotBlockReadiness(t *testing.T) {
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.secure(ca, testcert.Options{}, 7)
	n2.secure(ca, testcert.Options{}, 7)
	n1.config.SyncTimeout, n2.config.SyncTimeout = time.Minute, time.Minute
	n1.start()
	// One port accepts connections and never answers. No process listens on the other one.
	silent, err := net.Listen("tcp", loopback(66)+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	startIntruder(t, "ghost1", bytes.Repeat([]byte{7}, 32), silent.Addr().String(), n1)
	startIntruder(t, "ghost2", bytes.Repeat([]byte{7}, 32), loopback(66)+":9", n1)
	poll.Eventually(t, "gossip has the two silent members", func() bool { return n1.sample("mapsync_gossip_members", "") == "2" })
	n2.start()
	poll.Eventually(t, "both nodes are ready", func() bool { return n1.status().Ready && n2.status().Ready && n2.connected("n1") })
	if s := n2.status(); len(s.Peers) != 1 {
		t.Errorf("peers: got %+v, want n1 only", s.Peers)
	}
	n1.write(m1, 0, 300, 7)
	poll.Eventually(t, "records arrive", func() bool { return holds(t, m2, 300, 7) })
}
