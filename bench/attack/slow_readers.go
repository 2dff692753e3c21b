package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"mapsync/internal/testcert"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// slowReaderAttacks returns the attacks of clients that read and send as slowly as they can.
func slowReaderAttacks() []attack {
	return []attack{
		{name: "slow readers: metrics, one address", by: byOutsider, run: whileInUse(slowScrapes(1))},
		{name: "slow readers: metrics, 64 addresses", by: byOutsider, run: whileInUse(slowScrapes(64))},
		{name: "slow readers: streams, one byte a second", by: byOutsider, trace: grpcRefusedTrace, run: whileInUse(slowSender(grpcPort, nil))},
		{name: "slow readers: control socket", by: byOperator, run: whileInUse(slowOperators)},
		{name: "slow readers: a member never reads", by: byMember, run: whileInUse(memberThatNeverReads)},
	}
}

// whileInUse returns an attack during which clients scrape the daemons, and a load balancer changes entries that have to replicate.
func whileInUse(attack func(context.Context, *cluster) error) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var using sync.WaitGroup
		var scraped, replicated error
		using.Go(func() { scraped = c.scrapeAlong(ctx) })
		using.Go(func() { replicated = c.changeAlong(ctx) })
		err := attack(ctx, c)
		cancel()
		using.Wait()
		return errors.Join(err, scraped, replicated)
	}
}

// maxFailedScrapes is the largest share of scrapes that may fail, in percent. On a busy machine, a short attack has few scrapes: one of
// each client may fail.
const maxFailedScrapes = 5

// scrapeAlong scrapes the daemons in turn, every 50 ms, until the context ends: with a connection for each request, as curl does, and
// with one that stays open, as Prometheus does. It repeats no request.
func (c *cluster) scrapeAlong(ctx context.Context) error {
	var errs []error
	kept := &http.Client{Timeout: answerLimit, Transport: &http.Transport{}}
	defer kept.CloseIdleConnections()
	counts := map[string]*scrapeCount{"new connections": {client: c.nodes[0].http}, "open connections": {client: kept}}
	for i := 0; sleep(ctx, 50*time.Millisecond); i++ {
		for _, count := range counts {
			for _, path := range []string{"/metrics", "/readyz"} {
				count.scrape(c.nodes[i%len(c.nodes)], path)
			}
		}
	}
	for kind, count := range counts {
		c.note(fmt.Sprintf("scrapes by %s: %d of %d", kind, count.succeeded, count.made))
		if failed := count.made - count.succeeded; failed > max(1, count.made*maxFailedScrapes/100) {
			errs = append(errs, fmt.Errorf("scrapes by %s: %d of %d succeeded, the last error: %w", kind, count.succeeded, count.made, count.last))
		}
	}
	return errors.Join(errs...)
}

// scrapeCount counts the scrapes of a client.
type scrapeCount struct {
	client          *http.Client
	made, succeeded int
	last            error
}

func (s *scrapeCount) scrape(n *node, path string) {
	s.made++
	response, err := s.client.Get("http://" + n.addr + ":" + metricsPort + path)
	if err != nil {
		s.last = err
		return
	}
	defer response.Body.Close()
	if _, err = io.Copy(io.Discard, response.Body); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of %s: %s", path, n.name, response.Status)
	}
	if err != nil {
		s.last = err
		return
	}
	s.succeeded++
}

// alongKeys replaces a load balancer's number in the keys of changeAlong.
const alongKeys = 93

// replicationLimit is the longest time until a change has reached all maps during an attack. A scan finds it.
const replicationLimit = answerLimit

// changeAlong changes an entry of the first daemon's map again and again, and waits each time until all maps have it. It deletes the
// entry at its end.
func (c *cluster) changeAlong(ctx context.Context) (err error) {
	key, slowest, changes := entryKey(alongKeys, 0), time.Duration(0), 0
	var value [valueSize]byte
	for ; sleep(ctx, 100*time.Millisecond); changes++ {
		value[0]++
		begun := time.Now()
		if err := c.nodes[0].update(key, value); err != nil {
			return err
		}
		err := eventually(context.WithoutCancel(ctx), replicationLimit, func() error { return c.allHave(key, &value) })
		if err != nil {
			return fmt.Errorf("a change during the attack: %w", err)
		}
		slowest = max(slowest, time.Since(begun))
	}
	c.note(fmt.Sprintf("%d changes replicated, the slowest in %s", changes, slowest.Round(time.Millisecond)))
	if changes == 0 {
		return nil
	}
	return errors.Join(c.nodes[0].m.Delete(key), eventually(context.WithoutCancel(ctx), recovery, func() error { return c.allHave(key, nil) }))
}

// allHave returns an error unless all maps have an entry with a value; nil: no entry.
func (c *cluster) allHave(key [keySize]byte, value *[valueSize]byte) error {
	for _, n := range c.nodes {
		var got [valueSize]byte
		err := n.m.Lookup(key, &got)
		if value == nil && err == nil || value != nil && (err != nil || got != *value) {
			return fmt.Errorf("map of %s: got %x, error %s, want %x", n.name, got, fmt.Sprint(err), value)
		}
	}
	return nil
}

// slowConn is a connection whose client sends first and then one byte of rest a second, and reads one byte a second if reads is set.
type slowConn struct {
	net.Conn
	rest  []byte
	reads bool
}

// trickle sends and reads the bytes of connections until the context ends. It opens a connection again that the daemon has ended.
func trickle(ctx context.Context, conns []*slowConn, open func(i int) *slowConn) {
	defer func() {
		for _, s := range conns {
			if s != nil {
				_ = s.Close()
			}
		}
	}()
	for ok := true; ok; ok = sleep(ctx, time.Second) {
		for i, s := range conns {
			if s == nil || !s.step() {
				if s != nil {
					_ = s.Close()
				}
				conns[i] = open(i)
			}
		}
	}
}

// step sends and reads a byte. It returns false once the connection has ended.
func (s *slowConn) step() bool {
	if len(s.rest) > 0 {
		if _, err := s.Write(s.rest[:1]); err != nil {
			return false
		}
		s.rest = s.rest[1:]
	}
	if !s.reads {
		return true
	}
	_ = s.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := s.Read(make([]byte, 1))
	timeout, ok := errors.AsType[net.Error](err)
	return err == nil || ok && timeout.Timeout()
}

// slowRequests are the ways of a slow client: many requests at once, of which it reads no answer; one whose answer it reads by
// bytes; and one that it sends by bytes.
func slowRequests(conn net.Conn, i int, path string) *slowConn {
	if c, ok := conn.(interface{ SetReadBuffer(bytes int) error }); ok {
		_ = c.SetReadBuffer(1) // the kernel takes its minimum
	}
	text := "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"
	s := &slowConn{Conn: conn, reads: i%3 == 1}
	switch i % 3 {
	case 0:
		text = strings.Repeat(text, 100)
	case 2:
		s.rest, text = []byte(text), ""
	}
	_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = conn.Write([]byte(text)) // the daemon may not read all of it
	_ = conn.SetWriteDeadline(time.Time{})
	return s
}

// slowScrapes returns an attack with 300 slow clients of the metrics port, from a number of addresses.
func slowScrapes(addresses int) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		trickle(ctx, make([]*slowConn, 300), func(i int) *slowConn {
			conn, err := c.dial(ctx, c.nodes[i%3], metricsPort, i%addresses)
			if err != nil {
				return nil // refused, as expected
			}
			return slowRequests(conn, i, []string{"/metrics", "/readyz"}[i/3%2])
		})
		return nil
	}
}

// slowOperators is an attack with 300 slow clients of the control sockets.
func slowOperators(ctx context.Context, c *cluster) error {
	trickle(ctx, make([]*slowConn, 300), func(i int) *slowConn {
		conn, err := net.DialTimeout("unix", c.nodes[i%3].socket(), time.Second)
		if err != nil {
			return nil
		}
		return slowRequests(conn, i/3, []string{"/status", "/dump/" + mapName, "/watch/" + mapName, "/diff/" + mapName}[i/9%4])
	})
	return nil
}

// memberThatNeverReads makes mallory a member that subscribes to all daemons, on several streams of its certificate, and reads nothing.
func memberThatNeverReads(ctx context.Context, c *cluster) error {
	self := versionAt(0)
	e, err := c.joinAsMallory(ctx, self, nil, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	conf, err := c.tlsConfig(mallory, testcert.Options{File: mallory + "-client"})
	if err != nil {
		return err
	}
	sleep(ctx, time.Second)
	opened := 0
	for i := range 24 {
		s, err := c.subscribe(ctx, c.nodes[i%3], conf, mallory, self)
		if err != nil {
			continue // refused, as expected
		}
		defer s.close()
		s.subscribeMap(replicaSubscription(1))
		for range 1000 { // each has an answer
			_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{Sent: 1}}})
		}
		opened++
	}
	<-ctx.Done()
	if opened == 0 {
		return errNoSubscriber
	}
	return nil
}
