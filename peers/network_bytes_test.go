package peers

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
)

// TestMeterCountsSegments transfers bytes over a connection that both sides count.
func TestMeterCountsSegments(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			inner, err := net.Listen("tcp", address)
			if err != nil {
				t.Skip("this host lacks the address family: ", err)
			}
			var server, client Meter
			listener := server.Listener(inner)
			defer listener.Close()
			received := make(chan int64, 1)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					received <- -1
					return
				}
				n, _ := io.Copy(io.Discard, conn)
				received <- n
				_ = conn.Close()
			}()
			conn, err := client.Dial(t.Context(), inner.Addr().String(), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			const size = 1 << 20
			if _, err := conn.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			poll.Eventually(t, "an open connection counts", func() bool { return server.Bytes().Received > size })
			// The receiver counts the bytes of a repeated segment once.
			var info *unix.TCPInfo
			poll.Eventually(t, "all bytes are acknowledged", func() bool {
				info = tcpInfo(t, conn)
				return info.Unacked == 0 && info.Notsent_bytes == 0
			})
			repeated := info.Bytes_retrans
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			if n := <-received; n != size {
				t.Fatalf("received: got %d bytes, want %d", n, size)
			}
			sent := client.Bytes()
			poll.Eventually(t, "both sides count the same", func() bool {
				got := server.Bytes()
				return near(got.Received+repeated, sent.Sent) && near(got.Sent, sent.Received)
			}, func() any { return server.Bytes() }, func() any { return sent })
			// The segments of loopback have 64 KiB and more headers than that of one.
			if sent.Sent < size+40*16 || sent.Sent > size+repeated+size/50 {
				t.Errorf("sent: got %d, want %d, headers, and %d bytes repeated", sent.Sent, size, repeated)
			}
			if err := conn.Close(); err == nil || client.Bytes() != sent {
				t.Errorf("second Close: got error %v, %+v, want an error and the same bytes", err, client.Bytes())
			}
		})
	}
}

// TestMeterOfResetConnections: an MPTCP client resets its connection.
func TestMeterOfResetConnections(t *testing.T) {
	for name, listen := range map[string]func() (net.Listener, error){
		"TCP":   func() (net.Listener, error) { return Listen("127.0.0.1:0") },
		"MPTCP": func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
	} {
		t.Run(name, func(t *testing.T) {
			inner, err := listen()
			if err != nil {
				t.Fatal(err)
			}
			var server Meter
			var dialer net.Dialer
			dialer.SetMultipathTCP(true)
			client, accepted := connect(t, server.Listener(inner), dialer.Dial)
			if multipath, err := accepted.(*meteredConn).MultipathTCP(); name == "TCP" && (multipath || err != nil) {
				t.Errorf("connection: got MPTCP %t, error %v, want none", multipath, err)
			}
			if _, err := client.Write(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			poll.Eventually(t, "the bytes count", func() bool { return server.Bytes().Received > 100 })
			if err := client.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
			if err := client.Close(); err != nil {
				t.Fatal(err)
			}
			before := server.Bytes()
			few := func() bool {
				now := server.Bytes()
				return now.Sent >= before.Sent && now.Received >= before.Received && now.Received < 10_000 && now.Sent < 10_000
			}
			poll.Stays(t, 100*time.Millisecond, "the bytes do not jump", few, func() any { return server.Bytes() })
			if err := accepted.Close(); err != nil {
				t.Fatal(err)
			}
			if !few() {
				t.Errorf("bytes after Close: got %+v, want less than 10,000", server.Bytes())
			}
		})
	}
}

// TestMeterCountsUnsentBytes closes a connection whose peer does not read yet.
func TestMeterCountsUnsentBytes(t *testing.T) {
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var meter Meter
	client, accepted := connect(t, inner, func(_, addr string) (net.Conn, error) { return meter.Dial(t.Context(), addr, 10*time.Second) })
	defer accepted.Close()
	data := make([]byte, 64<<20) // more than the buffers of both sides
	if err := client.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	sent, err := client.Write(data)
	if err == nil {
		t.Fatal("write to a peer that does not read: got nil, want an error")
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if got := meter.Bytes().Sent; got < uint64(sent) || got > uint64(sent)+uint64(sent)/10 {
		t.Errorf("sent: got %d, want %d and headers", got, sent)
	}
}

// connect returns both sides of a connection.
func connect(t *testing.T, l net.Listener, dial func(network, addr string) (net.Conn, error)) (client, accepted net.Conn) {
	t.Helper()
	t.Cleanup(func() { _ = l.Close() })
	side := make(chan net.Conn, 1)
	go func() {
		conn, _ := l.Accept()
		side <- conn
	}()
	client, err := dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if accepted = <-side; accepted == nil {
		t.Fatal("accept: got no connection, want one")
	}
	return client, accepted
}

// tcpInfo returns the kernel's counters of a connection of Dial.
func tcpInfo(t *testing.T, conn net.Conn) (info *unix.TCPInfo) {
	t.Helper()
	var failed error
	err := conn.(*meteredConn).raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return info
}

// near reports whether two numbers of bytes differ by the headers of the segments that end a connection.
func near(a, b uint64) bool { return max(a, b)-min(a, b) < 500 }

func TestMeterCountsDatagrams(t *testing.T) {
	var m Meter
	m.datagram(true, "192.0.2.1:7946", 100)
	m.datagram(true, "[2001:db8::1]:7946", 100)
	m.datagram(false, "[::ffff:192.0.2.1]:7946", 10)
	if got, want := m.Bytes(), (NetworkBytes{Sent: 100 + 28 + 100 + 48, Received: 10 + 28}); got != want {
		t.Errorf("bytes: got %+v, want %+v", got, want)
	}
}
