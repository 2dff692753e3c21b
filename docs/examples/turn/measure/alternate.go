package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sync/errgroup"

	"mapsync/internal/tool"
)

// measurement is what one server does with one channel.
type measurement struct {
	delay  time.Duration // median of round trips from the client to the peer and back
	loaded time.Duration // the same, while the client sends other data at the load
	rate   float64       // packets a second that the peer receives from a client that sends as fast as it can
	cpu    time.Duration // processor time of the server for a million packets at the load
}

const (
	batchSize  = 64
	dataLength = 200 // bytes
	lostAfter  = 200 * time.Millisecond
	echoPeer   = 0
	sinkPeer   = 1
)

// alternate measures the server without and with the offload in turns. Each turn restarts the server, which
// rebuilds the channels.
func alternate(ctx context.Context, o *options) (relayed, offloaded []measurement, err error) {
	s, err := newScene(ctx, o, false)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.addClients(sinkPeer + 1); err != nil {
		return nil, nil, err
	}
	// From here on, this program reads both sockets itself.
	now := time.Now()
	if err := errors.Join(s.clients[0].socket.SetReadDeadline(now), s.peers.sockets[sinkPeer].SetReadDeadline(now)); err != nil {
		return nil, nil, err
	}
	for range o.rounds {
		for _, on := range []bool{false, true} {
			if err := s.nodes[0].server.end(syscall.SIGTERM); err != nil {
				return nil, nil, err
			}
			if err := s.startServer(ctx, s.nodes[0], on, false); err != nil {
				return nil, nil, err
			}
			m, err := s.measure(ctx, on)
			if err != nil {
				return nil, nil, err
			}
			tool.Progress("offload=%-5t delay=%s loaded=%s rate=%.0f/s cpu=%s", on, m.delay, m.loaded, m.rate, m.cpu)
			if on {
				offloaded = append(offloaded, m)
			} else {
				relayed = append(relayed, m)
			}
		}
	}
	return relayed, offloaded, nil
}

// measure measures the running server. The load is the rate of the server without the offload, as measured last.
func (s *scene) measure(ctx context.Context, on bool) (m measurement, err error) {
	if m.delay, err = s.delay(ctx, s.opts.window); err != nil {
		return m, err
	}
	received, took, err := s.send(ctx, s.opts.window, 0)
	if err != nil {
		return m, err
	}
	if m.rate = float64(received) / took.Seconds(); !on {
		s.load = max(1, int(m.rate))
	}
	if m.loaded, err = s.loadedDelay(ctx, s.opts.window); err != nil {
		return m, err
	}
	before, err := s.nodes[0].server.cpu()
	if err != nil {
		return m, err
	}
	if received, _, err = s.send(ctx, s.opts.window, s.load); err != nil {
		return m, err
	}
	after, err := s.nodes[0].server.cpu()
	if err == nil && received == 0 {
		err = errors.New("measure processor time: the peer has received nothing")
	}
	m.cpu = time.Duration(float64(after-before) * 1e6 / float64(max(1, received)))
	return m, err
}

// loadedDelay is delay beside other data.
func (s *scene) loadedDelay(ctx context.Context, window time.Duration) (delay time.Duration, err error) {
	var g errgroup.Group
	g.Go(func() error {
		_, _, err := s.send(ctx, window, s.load)
		return err
	})
	delay, err = s.delay(ctx, window)
	return delay, errors.Join(err, g.Wait())
}

// delay returns the median of the round trips within a time. A server that other data occupies loses some packets.
func (s *scene) delay(ctx context.Context, window time.Duration) (time.Duration, error) {
	c, to := s.clients[0].socket.UDPConn, net.UDPAddrFromAddrPort(service)
	var all []time.Duration
	b := make([]byte, 2048)
	for end := time.Now().Add(window); time.Now().Before(end) && ctx.Err() == nil; {
		s.number++
		begun := time.Now()
		if _, err := c.WriteTo(channelFrame(firstChannel+echoPeer, payload{number: s.number}.bytes()), to); err != nil {
			return 0, err
		}
		switch err := awaitAnswer(c, s.number, b); {
		case err == nil:
			all = append(all, time.Since(begun))
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		}
	}
	if len(all) == 0 {
		return 0, errors.Join(ctx.Err(), errors.New("measure delay: the peer has not answered"))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// awaitAnswer reads until the answer to a payload arrives.
func awaitAnswer(c *net.UDPConn, number uint32, b []byte) error {
	if err := c.SetReadDeadline(time.Now().Add(lostAfter)); err != nil {
		return err
	}
	for {
		n, err := c.Read(b)
		if err != nil {
			return fmt.Errorf("wait for an answer: %w", err)
		}
		if _, length, ok := channelData(b[:n]); ok && 4+length <= n {
			if p, err := readPayload(b[4 : 4+length]); err == nil && p.number == number {
				return nil
			}
		}
	}
}

func channelFrame(number uint16, data []byte) []byte {
	frame := []byte{byte(number >> 8), byte(number), byte(len(data) >> 8), byte(len(data))}
	frame = append(frame, data...)
	for len(frame)%4 != 0 {
		frame = append(frame, 0)
	}
	return frame
}

// send sends data for a time, at that rate in packets a second, or as fast as possible. It returns the number of
// packets that the peer has received.
func (s *scene) send(ctx context.Context, window time.Duration, rate int) (received int, took time.Duration, err error) {
	sink := s.peers.sockets[sinkPeer]
	counted := make(chan int, 1)
	if err := sink.SetReadDeadline(time.Time{}); err != nil {
		return 0, 0, err
	}
	go func() { counted <- countPackets(sink) }()
	begun := time.Now()
	err = s.sendBatches(ctx, begun.Add(window), rate)
	took = time.Since(begun)
	const rest = 100 * time.Millisecond // for packets on their way
	err = errors.Join(err, sink.SetReadDeadline(time.Now().Add(rest)))
	return <-counted, took, err
}

func (s *scene) sendBatches(ctx context.Context, end time.Time, rate int) error {
	c := ipv4.NewPacketConn(s.clients[0].socket.UDPConn)
	frame := channelFrame(firstChannel+sinkPeer, make([]byte, dataLength))
	batch := make([]ipv4.Message, batchSize)
	for i := range batch {
		batch[i] = ipv4.Message{Buffers: [][]byte{frame}, Addr: net.UDPAddrFromAddrPort(service)}
	}
	begun, sent := time.Now(), 0
	for now := begun; now.Before(end) && ctx.Err() == nil; now = time.Now() {
		n := batchSize
		if rate > 0 {
			if n = min(n, int(now.Sub(begun).Seconds()*float64(rate))-sent); n == 0 {
				time.Sleep(time.Millisecond)
				continue
			}
		}
		if _, err := c.WriteBatch(batch[:n], 0); err != nil {
			return fmt.Errorf("send data: %w", err)
		}
		sent += n
	}
	return ctx.Err()
}

// countPackets returns the number of packets that arrive until the deadline of the socket.
func countPackets(socket *net.UDPConn) (n int) {
	c := ipv4.NewPacketConn(socket)
	batch := make([]ipv4.Message, batchSize)
	for i := range batch {
		batch[i].Buffers = [][]byte{make([]byte, 2048)}
	}
	for {
		got, err := c.ReadBatch(batch, 0)
		if errors.Is(err, os.ErrDeadlineExceeded) || err != nil {
			return n
		}
		n += got
	}
}
