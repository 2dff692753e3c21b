package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"mapsync/internal/netns"
	"mapsync/internal/tool"
)

// The addresses of the network. Each address of the receiver's range is a destination.
const (
	link            = "eth0"
	senderAddress   = "10.83.0.1"
	receiverAddress = "10.83.0.2"
	destinations    = "10.83.1."
	port            = 5201
)

// counted contains the destinations that the accountant counts: not those of syncd, which are on loopback.
var counted = netip.MustParsePrefix("10.83.0.0/16")

// network is two network namespaces that are connected by a veth pair. The receiver discards what it receives.
type network struct {
	sender, receiver *netns.NS
	listener         net.Listener
	received         atomic.Uint64 // bytes
}

// newNetwork returns a network with a number of destinations. The caller closes it, also after an error.
func newNetwork(count int) (n *network, err error) {
	n = new(network)
	if n.sender, err = netns.New("sender"); err != nil {
		return n, err
	}
	if n.receiver, err = netns.New("receiver"); err != nil {
		return n, err
	}
	if err := netns.Veth(n.sender, link, n.receiver, link); err != nil {
		return n, err
	}
	err = errors.Join(n.sender.Addr(link, senderAddress+"/24"), n.receiver.Addr(link, receiverAddress+"/24"),
		n.sender.Up(link), n.receiver.Up(link),
		n.sender.TxChecksum(link, false), n.receiver.TxChecksum(link, false), // and no packets above the MTU, as on a network
		n.sender.Route(destinations+"0/24", receiverAddress))
	for i := range count {
		err = errors.Join(err, n.receiver.Addr("lo", destination(i).Addr().String()+"/32"))
	}
	if err != nil {
		return n, err
	}
	err = n.receiver.Do(func() (err error) {
		n.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	if err != nil {
		return n, fmt.Errorf("start the receiver: %w", err)
	}
	go n.accept()
	return n, nil
}

// destination returns destination number i, from 0.
func destination(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprint(destinations, i+1)), port)
}

// accept receives until the listener is closed.
func (n *network) accept() {
	for {
		c, err := n.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close() //nolint:errcheck // nothing was written
			_, _ = io.Copy(receivedBytes{n}, struct{ io.Reader }{c})
		}()
	}
}

// receivedBytes counts what is written to it.
type receivedBytes struct{ *network }

func (r receivedBytes) Write(p []byte) (int, error) {
	r.received.Add(uint64(len(p)))
	return len(p), nil
}

// dial connects the sender to a destination.
func (n *network) dial(to netip.AddrPort) (c net.Conn, err error) {
	err = n.sender.Do(func() error {
		c, err = net.DialTimeout("tcp4", to.String(), 10*time.Second)
		return err
	})
	return c, err
}

// send sends a number of bytes to a destination, in writes of the given size. It returns the number of bytes that the
// kernel has taken.
func (n *network) send(to netip.AddrPort, bytes, size int) (sent uint64, err error) {
	c, err := n.dial(to)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	buffer := make([]byte, size)
	for sent < uint64(bytes) {
		k, err := c.Write(buffer[:min(size, bytes-int(sent))])
		sent += uint64(k)
		if err != nil {
			return sent, fmt.Errorf("send to %s: %w", to, err)
		}
	}
	return sent, nil
}

// warmUp is the time before a measurement, in which TCP finds its window.
const warmUp = 300 * time.Millisecond

// throughput sends without pause on one connection, in writes of the given size, and returns the received Mbit/s.
func (n *network) throughput(ctx context.Context, size int, window time.Duration) (rate float64, err error) {
	c, err := n.dial(netip.AddrPortFrom(netip.MustParseAddr(receiverAddress), port))
	if err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() {
		buffer := make([]byte, size)
		for {
			if _, err := c.Write(buffer); err != nil {
				done <- err
				return
			}
		}
	}()
	defer func() {
		err = errors.Join(err, c.Close())
		if ended := <-done; !errors.Is(ended, net.ErrClosed) {
			err = errors.Join(err, fmt.Errorf("send: %w", ended))
		}
	}()
	if err := tool.Pause(ctx, warmUp); err != nil {
		return 0, err
	}
	before, began := n.received.Load(), time.Now()
	if err := tool.Pause(ctx, window); err != nil {
		return 0, err
	}
	return float64(n.received.Load()-before) * 8 / 1e6 / time.Since(began).Seconds(), nil
}

// close removes the network.
func (n *network) close() error {
	var errs []error
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	for _, ns := range []*netns.NS{n.sender, n.receiver} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}
