package peers

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// sealStream returns a stream message encrypted with the gossip key.
func sealStream(t *testing.T, message []byte) []byte {
	t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{messageEncrypted}, uint32(1+encryptionNonce+16+len(message)))
	return slices.Concat(head, seal(t, message, head))
}

// sealStreamVersion0 returns a stream message of encryption version 0 with invalid padding.
func sealStreamVersion0(t *testing.T) []byte {
	t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{messageEncrypted}, 1+12+16+16)
	return slices.Concat(head, sealVersion0(t, head))
}

// pushPull returns the start of a state exchange that announces nodes and bytes of user state.
func pushPull(nodes, state int32) []byte {
	b := []byte{messagePushPull, 0x83}
	for _, f := range []struct {
		name  string
		value int32
	}{{"Nodes", nodes}, {"UserStateLen", state}} {
		b = append(append(b, 0xa0|byte(len(f.name))), f.name...)
		b = binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(f.value))
	}
	return append(append(b, 0xa4), "Join\xc3"...)
}

// malformedMessages are plain-text messages that would crash a node or exhaust its memory.
var malformedMessages = map[string][]byte{
	"compressed":          {messageCompressed, 1, 2, 3},
	"application message": {8, 0x81, 0xaa, 'U', 's', 'e', 'r', 'M', 's', 'g', 'L', 'e', 'n', 0xce, 1, 0, 0, 0},
	"a million nodes":     pushPull(1<<20, 0),
	"one node too many":   pushPull(maxAnnounced+1, 0),
	"negative node count": pushPull(-1, 0),
	"20 MiB of state":     pushPull(1, 20<<20),
	"negative state size": pushPull(1, -1),
	"unknown type":        {99},
	"with an empty label": {labelHead, 0, messagePing},
}

// TestMalformedGossipStreamsAreRejected verifies that a node rejects malformed messages before
// memberlist decodes them. It covers accepted and dialled connections, with and without encryption.
func TestMalformedGossipStreamsAreRejected(t *testing.T) {
	t.Parallel()
	encrypted := map[string][]byte{"of no bytes": sealStream(t, nil), "with a padding of version 0": sealStreamVersion0(t)}
	for name, message := range malformedMessages {
		encrypted[name] = sealStream(t, message)
	}
	for _, c := range []struct {
		mode     string
		options  []func(*Options)
		messages map[string][]byte
	}{{"plain", nil, malformedMessages}, {"encrypted", []func(*Options){keys(keyOne)}, encrypted}} {
		a := start(t, "a", c.options...)
		rejected := uint64(0)
		for name, message := range c.messages {
			conn, err := net.Dial("tcp", a.GossipAddr())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(message); err != nil {
				t.Fatal(err)
			}
			rejected++
			poll.Within(t, 10*time.Second, c.mode+" "+name+" is rejected", func() bool { return a.Stats().Rejected[RejectEncoding] == rejected })
			_ = conn.Close()
			join := func(o *Options) { o.Join = []string{serveMessage(t, message)} }
			b := start(t, "b", append(c.options, join)...)
			poll.Within(t, 10*time.Second, c.mode+" "+name+" is rejected in a response", func() bool { return b.Stats().Rejected[RejectEncoding] > 0 })
		}
		d := start(t, "d", append(c.options, joining(a))...)
		poll.Within(t, 10*time.Second, "d joins", func() bool { return a.sees(d) && d.sees(a) })
	}
}

// serveMessage listens and sends message on each connection until the test ends.
func serveMessage(t *testing.T, message []byte) (addr string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(message)
			go func() {
				_, _ = io.Copy(io.Discard, conn) // until the client closes it
				_ = conn.Close()
			}()
		}
	}()
	return lis.Addr().String()
}
