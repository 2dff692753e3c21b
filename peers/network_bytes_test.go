package peers

import (
	"io"
	"net"
	"testing"
	"time"

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
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			if n := <-received; n != size {
				t.Fatalf("received: got %d bytes, want %d", n, size)
			}
			sent := client.Bytes()
			poll.Eventually(t, "both sides count the same", func() bool {
				got := server.Bytes()
				return near(got.Received, sent.Sent) && near(got.Sent, sent.Received)
			}, func() any { return server.Bytes() }, func() any { return sent })
			// The segments of loopback have 64 KiB and more headers than that of one.
			if sent.Sent < size+40*16 || sent.Sent > size+size/50 {
				t.Errorf("sent: got %d, want %d and headers", sent.Sent, size)
			}
			if err := conn.Close(); err == nil || client.Bytes() != sent {
				t.Errorf("second Close: got error %v, %+v, want an error and the same bytes", err, client.Bytes())
			}
		})
	}
}

// TestMeterOfResetConnections: an MPTCP client resets its connection.
func TestMeterOfResetConnections(t *testing.T) {
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server Meter
	listener := server.Listener(inner)
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	var dialer net.Dialer
	dialer.SetMultipathTCP(true)
	conn, err := dialer.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the bytes count", func() bool { return server.Bytes().Received > 100 })
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	before := server.Bytes()
	poll.Stays(t, 100*time.Millisecond, "the bytes do not jump", func() bool {
		now := server.Bytes()
		return now.Sent >= before.Sent && now.Received >= before.Received && now.Received < 10_000 && now.Sent < 10_000
	}, func() any { return server.Bytes() })
	if conn := <-accepted; conn != nil {
		_ = conn.Close()
	}
	if got := server.Bytes(); got.Received > 10_000 || got.Sent > 10_000 {
		t.Errorf("bytes after Close: got %+v, want less than 10,000", got)
	}
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
