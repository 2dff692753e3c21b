package peers

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// sealed returns a stream's message of a holder of the gossip key.
func sealed(t *testing.T, message []byte) []byte {
	t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{messageEncrypted}, uint32(1+encryptionNonce+16+len(message)))
	return slices.Concat(head, seal(t, message, head))
}

// sealedOld returns one of version 0, whose padding is wrong.
func sealedOld(t *testing.T) []byte {
	t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{messageEncrypted}, 1+12+16+16)
	return slices.Concat(head, sealOld(t, head))
}

// exchange begins a state exchange that announces nodes and bytes of an application.
func exchange(nodes, state int32) []byte {
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

// harmful are messages that would end or bloat a node, as plain text.
var harmful = map[string][]byte{
	"compressed":               {messageCompressed, 1, 2, 3},
	"of an application":        {8, 0x81, 0xaa, 'U', 's', 'e', 'r', 'M', 's', 'g', 'L', 'e', 'n', 0xce, 1, 0, 0, 0},
	"a million nodes":          exchange(1<<20, 0),
	"one node too many":        exchange(maxAnnounced+1, 0),
	"fewer than no nodes":      exchange(-1, 0),
	"20 MiB of state":          exchange(1, 20<<20),
	"a state of negative size": exchange(1, -1),
	"of an unknown type":       {99},
	"with a label":             {244, 1, 'x', messagePing},
}

// TestHarmfulStreams: a node rejects them before the library decodes them, whether it has
// accepted or dialled the connection, encrypted or not.
func TestHarmfulStreams(t *testing.T) {
	t.Parallel()
	encrypted := map[string][]byte{"of no bytes": sealed(t, nil), "with a padding of version 0": sealedOld(t)}
	for name, message := range harmful {
		encrypted[name] = sealed(t, message)
	}
	for _, c := range []struct {
		mode     string
		options  []func(*Options)
		messages map[string][]byte
	}{{"plain", nil, harmful}, {"encrypted", []func(*Options){keys(keyOne)}, encrypted}} {
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
			eventually(t, 10*time.Second, c.mode+" "+name+" is rejected", func() bool { return a.Stats().Rejected[RejectEncoding] == rejected })
			_ = conn.Close()
			join := func(o *Options) { o.Join = []string{answering(t, message)} }
			b := start(t, "b", append(c.options, join)...)
			eventually(t, 10*time.Second, c.mode+" "+name+" is rejected in an answer", func() bool { return b.Stats().Rejected[RejectEncoding] > 0 })
		}
		d := start(t, "d", append(c.options, joining(a))...)
		eventually(t, 10*time.Second, "d joins", func() bool { return a.sees(d) && d.sees(a) })
	}
}

// answering listens, and answers each connection by a message, until the test ends.
func answering(t *testing.T, message []byte) (addr string) {
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
				_, _ = io.Copy(io.Discard, conn) // until the other end closes it
				_ = conn.Close()
			}()
		}
	}()
	return lis.Addr().String()
}
