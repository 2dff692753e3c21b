package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/memberlist"

	"mapsync/internal/poll"
	"mapsync/printable"
)

// deafTransport is a transport without a network: memberlist receives what the fuzzer passes, and its own messages are lost.
type deafTransport struct{ *transport }

func (deafTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.IPv4(127, 0, 0, 1), 7946, nil
}

func (deafTransport) WriteTo([]byte, string) (time.Time, error) { return time.Now(), nil }

func (deafTransport) WriteToAddress([]byte, memberlist.Address) (time.Time, error) {
	return time.Now(), nil
}

func (deafTransport) DialTimeout(string, time.Duration) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

func (deafTransport) DialAddressTimeout(memberlist.Address, time.Duration) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

func (deafTransport) Shutdown() error { return nil }

// deafNode is a node with memberlist, the filters and the limits, without a network.
type deafNode struct {
	*Cluster
	transport *transport
}

func newDeafNode(f *testing.F, keys ...[]byte) *deafNode {
	f.Helper()
	c := newCluster(Options{
		NodeName: "a", Incarnation: 1, BindAddr: "127.0.0.1:7946", ServiceAddr: "127.0.0.1:7947", GossipKeys: keys,
	}.withDefaults(), func() {})
	conf, err := c.memberlistConfig()
	if err != nil {
		f.Fatal(err)
	}
	c.limiter = NewLimiter(gossipLimits(conf.TCPTimeout), c.log)
	n := &deafNode{c, &transport{
		ctx: context.Background(), limiter: c.limiter, keyring: conf.Keyring,
		encrypted: func(net.Addr) {}, streams: make(chan net.Conn), packets: make(chan *memberlist.Packet),
	}}
	conf.Transport = deafTransport{n.transport}
	conf.ProbeInterval, conf.GossipInterval, conf.PushPullInterval = 0, 0, 0 // it sends nothing by itself
	conf.AdvertiseAddr, conf.AdvertisePort = "127.0.0.1", 7946
	if c.list, err = memberlist.Create(conf); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.list.Shutdown() })
	return n
}

// fuzzedFrom is the sender of the packets.
var fuzzedFrom = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 7946}

// receive passes a packet to memberlist if the filter accepts it. It returns once memberlist has decoded it.
func (n *deafNode) receive(packet []byte) (accepted bool) {
	for _, p := range [][]byte{packet, nil} { // memberlist takes the second one after the first
		p := &memberlist.Packet{Buf: slices.Clone(p), From: fuzzedFrom, Timestamp: time.Now()}
		if len(packet) > 0 && p.Buf != nil && !n.transport.acceptsPacket(p) {
			return false
		}
		n.transport.packets <- p
	}
	return true
}

// checkMembers checks the members that arbitrary gossip has made.
func (n *deafNode) checkMembers(t *testing.T) {
	t.Helper()
	members := n.Members()
	if len(members) > maxNames {
		t.Fatalf("members: got %d, want at most %d", len(members), maxNames)
	}
	for _, m := range members {
		if CheckNodeName(m.Name) != nil || checkDialable(m.ServiceAddr) != nil || m.Incarnation == 0 || !printable.Is(m.GossipAddr) {
			t.Fatalf("member: got %+v, want a valid name, addresses and an incarnation", m)
		}
	}
}

// decompresses reports whether memberlist would decompress a part of a packet.
func decompresses(message []byte) bool {
	if len(message) >= streamHead && message[0] == messageChecksum {
		message = message[streamHead:]
	}
	if len(message) == 0 || message[0] == messageCompressed {
		return len(message) > 0
	}
	if message[0] != messageCompound || len(message) < 2 {
		return false
	}
	lengths, parts := message[2:], message[2:]
	if len(lengths) < 2*int(message[1]) {
		return false
	}
	parts = parts[2*int(message[1]):]
	for range message[1] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(parts) {
			return false
		}
		if decompresses(parts[:n]) {
			return true
		}
		lengths, parts = lengths[2:], parts[n:]
	}
	return false
}

// aliveMessage is a message of memberlist about a live node.
func aliveMessage(f *testing.F, name string) []byte {
	f.Helper()
	message := []byte{4, 0x86} // alive, 6 fields
	text := func(s string) {
		message = append(binary.BigEndian.AppendUint16(append(message, 0xda), uint16(len(s))), s...)
	}
	field := func(name, value string) { text(name); text(value) }
	text("Incarnation")
	message = append(message, 7)
	field("Node", name)
	field("Addr", "\x7f\x00\x00\x02")
	text("Port")
	message = append(message, 0xcd, 0x1f, 0x0a)
	field("Meta", string(meta{incarnation: 7, serviceAddr: "127.0.0.2:7947"}.encode()))
	field("Vsn", "\x01\x05\x02\x00\x00\x00")
	return message
}

// FuzzGossipPackets passes packets to a node, as they are and encrypted with its gossip key.
func FuzzGossipPackets(f *testing.F) {
	plain, secret := newDeafNode(f), newDeafNode(f, []byte(keyOne))
	alive := aliveMessage(f, "b")
	plain.receive(alive)
	poll.Eventually(f, "the node of an alive message is a member", func() bool { return len(plain.Members()) == 1 })
	compound := append([]byte{messageCompound, 2, 0, byte(len(alive)), 0, 2}, append(alive, messageCompressed, 1)...)
	for _, seed := range [][]byte{
		alive, aliveMessage(f, "é\x1b]0;"), compound,
		{messageCompressed, 1, 2},
		append([]byte{messageChecksum, 1, 2, 3, 4}, alive...),
		{messageEncrypted, 0, 0, 0, 1},
		{244, 1, 'x', messagePing},
		{8, 0x81, 0xaa},
		{1, 0x80},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) > 1<<14 {
			return
		}
		accepted := plain.receive(packet)
		if accepted && decompresses(packet) {
			t.Fatalf("packet %x: got it accepted, want compressed messages refused", packet)
		}
		secret.receive(packet)
		sealed := seal(t, packet, nil)
		if got := secret.receive(sealed); got != accepted && len(packet) > 0 {
			t.Fatalf("packet %x: got encrypted packet accepted %t, want %t", packet, got, accepted)
		}
		plain.checkMembers(t)
		secret.checkMembers(t)
	})
}

// FuzzGossipStreams passes streams to a node, as they are and encrypted with its gossip key.
func FuzzGossipStreams(f *testing.F) {
	plain, secret := newDeafNode(f), newDeafNode(f, []byte(keyOne))
	for _, message := range malformedMessages {
		f.Add(message)
	}
	f.Add(pushPull(1, 0))
	f.Add(append([]byte{messageError, 0x81, 0xa5}, "Error\xa1x"...))
	f.Fuzz(func(t *testing.T, message []byte) {
		if len(message) > 1<<14 {
			return
		}
		plain.converse(t, message)
		secret.converse(t, message)
		head := binary.BigEndian.AppendUint32([]byte{messageEncrypted}, uint32(1+encryptionNonce+16+len(message)))
		secret.converse(t, slices.Concat(head, seal(t, message, head)))
		plain.checkMembers(t)
		secret.checkMembers(t)
	})
}

// scriptedConn is a connection on which the other side has sent a message, and closed its half.
type scriptedConn struct {
	net.Conn
	message *bytes.Reader
	closed  chan struct{}
	once    sync.Once
}

func (c *scriptedConn) Read(p []byte) (int, error)  { return c.message.Read(p) }
func (c *scriptedConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *scriptedConn) Close() error                { c.once.Do(func() { close(c.closed) }); return nil }
func (c *scriptedConn) RemoteAddr() net.Addr        { return fuzzedFrom }
func (c *scriptedConn) SetDeadline(time.Time) error { return nil }

// converse passes a stream to memberlist and waits until memberlist has closed it. The filter must forward all bytes of what it
// accepts, however the bytes arrive, and none of what it refuses.
func (n *deafNode) converse(t *testing.T, message []byte) {
	t.Helper()
	var forwarded [2]string
	for i, from := range []io.Reader{bytes.NewReader(message), iotest.OneByteReader(bytes.NewReader(message))} {
		filter := streamFilter{from: from, keyring: n.keyring, reject: func(error) {}}
		got, err := io.ReadAll(&filter)
		if len(got) > 0 && (err != nil || !bytes.Equal(got, message)) {
			t.Fatalf("stream %x: got %x forwarded, error %v, want all or nothing", message, got, err)
		}
		forwarded[i] = string(got)
	}
	if forwarded[0] != forwarded[1] {
		t.Fatalf("stream %x: got %x forwarded, and %x if it arrives byte by byte, want the same", message, forwarded[0], forwarded[1])
	}
	conn := &scriptedConn{message: bytes.NewReader(message), closed: make(chan struct{})}
	limited := n.limiter.add(conn)
	n.transport.streams <- n.transport.filterConn(limited, limited, false)
	<-conn.closed
}
