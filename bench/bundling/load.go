package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/docs/examples/bundling/trace"
)

// The sizes of messages in bytes.
const (
	requestBytes  = 64
	responseBytes = 128
)

// The first byte of a request: after the last one, the service closes the connection.
const (
	nextRequest = 0
	lastRequest = 1
)

// request asks for load on the service at To. A short connection has one round trip.
type request struct {
	To         string  `json:"to"`
	From       string  `json:"from"` // first client address; the next ones follow it
	Sources    int     `json:"sources"`
	Rate       float64 `json:"rate"` // connections or round trips a second
	Seconds    float64 `json:"seconds"`
	Persistent bool    `json:"persistent"` // round trips of connections that stay
}

// ends are what the sockets of one end have done.
type ends = trace.Counters

// sum and difference return a + b and a - b.
func sum(a, b ends) ends {
	return ends{Connections: a.Connections + b.Connections, Messages: a.Messages + b.Messages, Sent: a.Sent + b.Sent, Received: a.Received + b.Received}
}

func difference(a, b ends) ends {
	return ends{Connections: a.Connections - b.Connections, Messages: a.Messages - b.Messages, Sent: a.Sent - b.Sent, Received: a.Received - b.Received}
}

func notAbove(a, b ends) bool {
	return a.Connections <= b.Connections && a.Messages <= b.Messages && a.Sent <= b.Sent && a.Received <= b.Received
}

// result is what a load has done.
type result struct {
	Clients ends    `json:"clients"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// runLoad serves at an address, and answers each line of its input: a request with a result, and "server" with what the
// service has done, after the kernel has ended all connections.
func runLoad(address string) error {
	s, err := listen(address)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode("listening"); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var answer any
		if lines.Text() == "server" {
			if err := awaitEnds(); err != nil {
				return err
			}
			answer = s.total()
		} else {
			var r request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				return err
			}
			answer = r.run()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

// Clients are goroutines with blocking sockets: the runtime's poller would cost more than the load.
const (
	shortClients      = 12
	persistentClients = 16
)

// run makes the load.
func (r *request) run() (res result) {
	clients := shortClients
	if r.Persistent {
		clients = persistentClients
	}
	began := time.Now()
	var mu sync.Mutex
	var errs error
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			c := client{request: r, number: i, clients: clients, began: began}
			err := c.run()
			mu.Lock()
			defer mu.Unlock()
			res.Clients = sum(res.Clients, c.done)
			errs = errors.Join(errs, err)
		})
	}
	running.Wait()
	res.Seconds = time.Since(began).Seconds()
	if errs != nil {
		res.Error = errs.Error()
	}
	return res
}

// client makes every n-th connection or round trip.
type client struct {
	*request
	number, clients int
	began           time.Time
	done            ends
}

func (c *client) run() (err error) {
	fd := -1
	if c.Persistent {
		if fd, err = c.connect(c.number); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				err = awaitClose(fd)
			}
			err = errors.Join(err, unix.Close(fd))
		}()
	}
	for i := c.number; ; i += c.clients {
		due := c.began.Add(time.Duration(float64(i) / c.Rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		if time.Since(c.began).Seconds() > c.Seconds {
			return nil
		}
		if c.Persistent {
			if err := c.roundTrip(fd, nextRequest); err != nil {
				return err
			}
			continue
		}
		if err := c.short(i); err != nil {
			return err
		}
	}
}

// awaitClose ends the client's half of a connection and waits until the service has closed its own: the tracer has counted both
// sockets then.
func awaitClose(fd int) error {
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return fmt.Errorf("end the connection: %w", err)
	}
	_, err := readAll(fd, make([]byte, 1))
	return err
}

// short makes a connection with one round trip. The service closes it first, so that no port of the client stays in use.
func (c *client) short(number int) error {
	fd, err := c.connect(number)
	if err != nil {
		return err
	}
	err = c.roundTrip(fd, lastRequest)
	if err == nil {
		_, err = readAll(fd, make([]byte, 1))
	}
	return errors.Join(err, unix.Close(fd))
}

func (c *client) roundTrip(fd int, kind byte) error {
	message := [responseBytes]byte{kind}
	if _, err := unix.Write(fd, message[:requestBytes]); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	c.done.Messages++
	c.done.Sent += requestBytes
	n, err := readAll(fd, message[:])
	c.done.Received += uint64(n)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}

// ipBindAddressNoPort lets the kernel choose the port when it has both addresses.
const ipBindAddressNoPort = 24

func (c *client) connect(number int) (fd int, err error) {
	from, to := netip.MustParseAddr(c.From).As4(), netip.MustParseAddrPort(c.To)
	number %= c.Sources
	from[2], from[3] = from[2]+byte(number/250), from[3]+byte(number%250)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IP, ipBindAddressNoPort, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: from}),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1),
		retryInterrupted(func() error {
			return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		}),
	)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("connect: %w", err), unix.Close(fd))
	}
	c.done.Connections++
	return fd, nil
}

// retryInterrupted repeats a call that a signal of the Go runtime has interrupted. A second connect returns EISCONN if the
// first one has succeeded.
func retryInterrupted(call func() error) error {
	for first := true; ; first = false {
		err := call()
		if !first && errors.Is(err, unix.EISCONN) {
			return nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EALREADY) {
			return err
		}
	}
}

// readAll reads until b is full. It returns the number of bytes, and no error at the end of the connection.
func readAll(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m == 0 {
			return n, err
		}
		n += m
	}
	return n, nil
}
