package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Traces of refused connections, by listener.
const (
	gossipRefusedTrace = `^mapsync_connections_rejected_total\{.*listener="gossip"|^mapsync_gossip_errors_total`
	grpcRefusedTrace   = `^mapsync_connections_rejected_total\{.*listener="grpc"|^mapsync_tls_refused_total`
	httpRefusedTrace   = `^mapsync_connections_rejected_total\{.*listener="(http|metrics)"`
)

// outsiderAttacks returns the attacks of a host that reaches the ports and has neither key nor
// certificate.
func outsiderAttacks() []attack {
	return []attack{
		{name: "gossip: 60 messages of 20 MiB", by: byOutsider, length: 10 * time.Second, trace: gossipRefusedTrace, run: gossipFlood},
		{name: "gossip: 600 silent connections", by: byOutsider, trace: gossipRefusedTrace, run: idleConnections(gossipPort, 600, nil)},
		{name: "gossip: random bytes by TCP", by: byOutsider, trace: gossipRefusedTrace, run: randomBytes(gossipPort)},
		{name: "gossip: random bytes by UDP", by: byOutsider, trace: gossipRefusedTrace, run: randomDatagrams},
		{name: "grpc: 3,000 silent TCP connections", by: byOutsider, trace: grpcRefusedTrace, run: idleConnections(grpcPort, 3000, nil)},
		{name: "grpc: 3,000 half-open TLS connections", by: byOutsider, trace: grpcRefusedTrace, run: idleConnections(grpcPort, 3000, halfHello)},
		{name: "grpc: one byte a second in 300 handshakes", by: byOutsider, trace: grpcRefusedTrace, run: slowSender(grpcPort, halfHello())},
		{name: "grpc: random bytes", by: byOutsider, trace: grpcRefusedTrace, run: randomBytes(grpcPort)},
		{name: "grpc: TLS without a certificate", by: byOutsider, trace: grpcRefusedTrace, run: noClientCertificate},
		{name: "http: 3,000 silent connections", by: byOutsider, trace: httpRefusedTrace, run: idleConnections(metricsPort, 3000, nil)},
		{name: "http: one byte a second in 300 requests", by: byOutsider, run: slowSender(metricsPort, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\nX: "))},
		{name: "http: 3,000 idle keep-alive connections", by: byOutsider, trace: httpRefusedTrace, run: idleConnections(metricsPort, 3000, request)},
		{name: "http: random bytes and endless headers", by: byOutsider, run: endlessHeaders},
	}
}

// attackers is the number of the first address from which attacks come: see cluster.address.
const attackers = 100

// dial connects to a port of a daemon from an attacker's address.
func (c *cluster) dial(ctx context.Context, n *node, port string, from int) (net.Conn, error) {
	return c.dialWithin(ctx, n, port, from, 2*time.Second)
}

// dialWithin is dial with a time limit.
func (c *cluster) dialWithin(ctx context.Context, n *node, port string, from int, limit time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.address(attackers + from))}}
	return d.DialContext(ctx, "tcp", n.addr+":"+port)
}

// gossipFlood announces and sends messages of 20 MiB that no gossip key encrypted.
func gossipFlood(ctx context.Context, c *cluster) error {
	const size = 20 << 20
	message := make([]byte, 5+size)
	_, _ = rand.Read(message) // never fails
	message[0] = encryptedMessage
	binary.BigEndian.PutUint32(message[1:], size)
	var sending sync.WaitGroup
	for i := range 60 {
		sending.Go(func() {
			conn, err := c.dial(ctx, c.nodes[i%2], gossipPort, i%8)
			if err != nil {
				return // refused, as expected
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(8 * time.Second))
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			if _, err := conn.Write(message); err == nil {
				_, _ = io.Copy(io.Discard, conn) // until the daemon closes the connection
			}
		})
	}
	sending.Wait()
	return nil
}

// idleConnections returns an attack that opens many connections to the first daemon, from several
// addresses. It sends the bytes of first on each and keeps them open.
func idleConnections(port string, count int, first func() []byte) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		var mu sync.Mutex
		var open []net.Conn
		defer func() {
			for _, conn := range open {
				_ = conn.Close()
			}
		}()
		var opening sync.WaitGroup
		for worker := range 16 {
			opening.Go(func() {
				for i := worker; i < count && ctx.Err() == nil; i += 16 {
					conn, err := c.dial(ctx, c.nodes[0], port, i%64)
					if err != nil {
						continue // refused, as expected
					}
					if first != nil {
						_, _ = conn.Write(first()) // the daemon may have closed it already
					}
					mu.Lock()
					open = append(open, conn)
					mu.Unlock()
				}
			})
		}
		opening.Wait()
		<-ctx.Done()
		return nil
	}
}

// halfHello returns the start of a TLS client's first record, which announces more bytes than
// follow.
func halfHello() []byte { return []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 1, 2, 3} }

func request() []byte { return []byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n") }

// slowSender returns an attack that sends one byte per second on many connections.
func slowSender(port string, first []byte) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		conns := make([]net.Conn, 0, 300)
		for i := range 300 {
			if conn, err := c.dial(ctx, c.nodes[i%3], port, i%64); err == nil {
				defer conn.Close()
				_, _ = conn.Write(first)
				conns = append(conns, conn)
			}
		}
		for sleep(ctx, time.Second) {
			for _, conn := range conns {
				_, _ = conn.Write([]byte{'a'}) // the daemon may have closed it, as expected
			}
		}
		return nil
	}
}

// randomBytes returns an attack that sends random bytes on one connection after another.
func randomBytes(port string) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		text := make([]byte, 4096)
		for i := 0; i < 2000 && ctx.Err() == nil; i++ {
			_, _ = rand.Read(text)
			text[0] = byte(i) // covers each message type and each kind of TLS record
			conn, err := c.dial(ctx, c.nodes[i%3], port, i%64)
			if err != nil {
				continue
			}
			_, _ = conn.Write(text[:1+i%len(text)])
			_ = conn.Close()
		}
		return nil
	}
}

// randomDatagrams sends random bytes to the gossip port, in bursts.
func randomDatagrams(ctx context.Context, c *cluster) error {
	var conns []net.Conn
	for _, n := range c.nodes {
		conn, err := net.Dial("udp", n.addr+":"+gossipPort)
		if err != nil {
			return fmt.Errorf("open a UDP socket: %w", err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	text := make([]byte, 1400)
	for sent := 0; sent < 30_000 && ctx.Err() == nil; sent++ {
		_, _ = rand.Read(text)
		if sent%2 == 0 {
			text[0] = byte(sent) // a message type
		}
		_, _ = conns[sent%len(conns)].Write(text[:1+sent%len(text)])
		if sent%50 == 0 && !sleep(ctx, time.Millisecond) {
			break
		}
	}
	return nil
}

// noClientCertificate completes the TLS handshake as far as possible without a client certificate,
// and then sends requests.
func noClientCertificate(ctx context.Context, c *cluster) error {
	for i := 0; i < 1000 && ctx.Err() == nil; i++ {
		raw, err := c.dial(ctx, c.nodes[i%3], grpcPort, i%64)
		if err != nil {
			continue
		}
		conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // no secret is sent
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if conn.HandshakeContext(ctx) == nil {
			_, _ = conn.Write([]byte(http2Preface))
			if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
				_ = conn.Close()
				return errors.New("a client without a certificate got an answer")
			}
		}
		_ = conn.Close()
	}
	return nil
}

// endlessHeaders sends random bytes and endless headers to the metrics port.
func endlessHeaders(ctx context.Context, c *cluster) error {
	if err := randomBytes(metricsPort)(ctx, c); err != nil {
		return err
	}
	line := []byte("X-Header: " + string(make([]byte, 4000)) + "\r\n")
	for i := range line {
		if line[i] == 0 {
			line[i] = 'a'
		}
	}
	for i := range 30 {
		conn, err := c.dial(ctx, c.nodes[i%3], metricsPort, i)
		if err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\n"))
		for sent := 0; err == nil && sent < 4<<20 && ctx.Err() == nil; sent += len(line) {
			_, err = conn.Write(line)
		}
		_ = conn.Close()
	}
	return nil
}
