package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"mapsync/docs/examples/turn/message"
	"mapsync/docs/examples/turn/offload"
)

// scene is a setup with peers, and with clients that have a channel to each peer.
type scene struct {
	*setup
	peers    *peers
	clients  []*client
	answers  chan payload
	captures []*capture
	number   uint32 // of the last payload
	next     uint32 // first channel of the next client; no channel has the number of an earlier one
	load     int    // packets a second beside a measurement
	// passed is the part of each channel's data that a server has relayed without the offload.
	passed map[offload.ClientChannel]offload.Counters
}

const (
	peersOfClient = 10
	openLimit     = time.Minute
	answerLimit   = 10 * time.Second
	atOnce        = 1 << 20 // window for all channels
	relayWindow   = 32      // fits into the socket buffers of a server that relays itself
	parallel      = 32      // clients that exchange requests at the same time
)

// newScene starts a server on the first node and a standby on the second one.
func newScene(ctx context.Context, o *options, withSyncd bool) (_ *scene, err error) {
	s := &scene{answers: make(chan payload, 4*o.channels), passed: make(map[offload.ClientChannel]offload.Counters)}
	if s.setup, err = newSetup(o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.peers, err = newPeers(s.net, peersOfClient); err != nil {
		return nil, err
	}
	for i, n := range s.nodes {
		if err = s.startServer(ctx, n, true, i == 1); err != nil {
			return nil, err
		}
	}
	if withSyncd {
		err = s.startSyncd(ctx)
	}
	return s, err
}

// capture starts the check of checksums.
func (s *scene) capture() error {
	for _, ns := range []int{0, 1} {
		c, err := startCapture([]*place{{ns: s.net.clients}, {ns: s.net.peers}}[ns].ns)
		if err != nil {
			return err
		}
		s.captures = append(s.captures, c)
	}
	return nil
}

// addClients creates clients until they have that number of channels, and opens the channels.
func (s *scene) addClients(channels int) error {
	for i := 0; i < channels; i += peersOfClient {
		if err := s.addClient(s.next, min(peersOfClient, channels-i)); err != nil {
			return err
		}
		s.next += peersOfClient
	}
	return s.each(func(c *client) error { return c.open(openLimit) })
}

func (s *scene) addClient(first uint32, count int) error {
	c := &client{}
	var err error
	for i := range count {
		c.peers = append(c.peers, s.peers.address(i))
	}
	if c, err = newClient(s.net, fmt.Sprintf("user%d", first), first, c.peers, s.answers); err != nil {
		return err
	}
	s.clients = append(s.clients, c)
	return nil
}

// each calls f for each client.
func (s *scene) each(f func(*client) error) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, c := range s.clients {
		g.Go(func() error { return f(c) })
	}
	return g.Wait()
}

// exchange sends data on each channel once, with at most window channels whose answers are missing. It returns
// the number of channels whose peer has answered.
func (s *scene) exchange(ctx context.Context, window int, limit time.Duration) (answered int, took time.Duration, err error) {
	s.number++
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun, sent := time.Now(), 0
	seen := make(map[uint32]bool)
	for _, c := range s.clients {
		for i := range c.peers {
			if sent++; sent > window {
				s.awaitAnswers(ctx, seen, sent-window)
			}
			if err := c.send(i, s.number); err != nil {
				return 0, 0, err
			}
		}
	}
	s.awaitAnswers(ctx, seen, sent)
	return len(seen), time.Since(begun), nil
}

// awaitAnswers adds channels with an answer until there are that many, or ctx ends.
func (s *scene) awaitAnswers(ctx context.Context, seen map[uint32]bool, wanted int) {
	for len(seen) < wanted {
		select {
		case <-ctx.Done():
			return
		case a := <-s.answers:
			if a.number == s.number {
				seen[a.channel] = true
			}
		}
	}
}

// exchangePassed is exchange without the offload on a node: its server relays all data.
func (s *scene) exchangePassed(ctx context.Context, n *node) (answered int, err error) {
	index, err := n.interfaceIndex()
	if err != nil {
		return 0, err
	}
	if err := n.offload.Enable(index, false); err != nil {
		return 0, err
	}
	before := s.onWire()
	answered, _, err = s.exchange(ctx, relayWindow, answerLimit)
	for c, after := range s.onWire() {
		s.passed[c] = add(s.passed[c], sub(after, before[c]))
	}
	return answered, errors.Join(err, n.offload.Enable(index, true))
}

// onWire returns what the clients have sent and received on each channel.
func (s *scene) onWire() map[offload.ClientChannel]offload.Counters {
	all := make(map[offload.ClientChannel]offload.Counters)
	for _, c := range s.clients {
		for i := range c.peers {
			number := firstChannel + uint16(i)
			all[offload.ClientChannel{Client: message.AddrPort(c.socket.LocalAddr()), Number: number}] = c.socket.counters(number)
		}
	}
	return all
}

// exact returns the number of channels whose counters on a node equal the data that the clients have sent and
// received, without the data that a server has relayed. The node has counters of no other channel.
func (s *scene) exact(n *node) (channels int, err error) {
	counters, err := n.offload.Counters()
	if err != nil {
		return 0, err
	}
	wire := s.onWire()
	for c, w := range wire {
		if got, ok := counters[c]; ok && got == sub(w, s.passed[c]) {
			channels++
		}
	}
	if len(counters) != len(wire) {
		return channels, fmt.Errorf("counters of %s: got %d channels, want %d", n.name, len(counters), len(wire))
	}
	return channels, nil
}

// awaitExact waits until the counters of all channels on a node are exact.
func (s *scene) awaitExact(ctx context.Context, n *node) error {
	var channels int
	err := await(ctx, "the counters of "+n.name+" are exact", func() (bool, error) {
		var err error
		channels, err = s.exact(n)
		return err == nil && channels == len(s.onWire()), nil
	})
	if err != nil {
		_, reason := s.exact(n)
		return errors.Join(fmt.Errorf("%w: %d of %d channels", err, channels, len(s.onWire())), reason)
	}
	return nil
}

// awaitReplicated waits until the maps of the second node equal those of the first one.
func (s *scene) awaitReplicated(ctx context.Context) error {
	if err := s.awaitExact(ctx, s.nodes[1]); err != nil {
		return err
	}
	return await(ctx, "the maps of both nodes agree", func() (bool, error) {
		a, err := entries(s.nodes[0])
		b, errB := entries(s.nodes[1])
		if err != nil || errB != nil || !maps.Equal(a, b) {
			return false, nil
		}
		first, err := ends(s.nodes[0])
		second, errS := ends(s.nodes[1])
		return maps.EqualFunc(first, second, func(a, b time.Time) bool {
			return a.Sub(b).Abs() < time.Second // the conversion between two clocks rounds
		}), errors.Join(err, errS)
	})
}

// ends returns when the allocations, permissions and channels of a node end.
func ends(n *node) (map[any]time.Time, error) {
	allocations, err := n.offload.Allocations()
	permissions, errP := n.offload.Permissions()
	channels, errC := n.offload.Channels()
	all := make(map[any]time.Time)
	for _, a := range allocations {
		all[a.Client] = a.Expires
	}
	for _, p := range permissions {
		all[offload.Permission{Client: p.Client, Peer: p.Peer}] = p.Expires
	}
	for _, c := range channels {
		all[c.ClientChannel] = c.Expires
	}
	return all, errors.Join(err, errP, errC)
}

// entries returns the number of entries in each map of a node.
func entries(n *node) (map[string]int, error) {
	allocations, err := n.offload.Allocations()
	permissions, errP := n.offload.Permissions()
	channels, errC := n.offload.Channels()
	counters, errS := n.offload.Counters()
	peers, errD := n.offload.Downstream()
	return map[string]int{
		"allocations": len(allocations), "permissions": len(permissions), "upstream": len(channels),
		"downstream": peers, "counters": len(counters),
	}, errors.Join(err, errP, errC, errS, errD)
}

// awaitEmpty waits until the maps of a node have no entry.
func awaitEmpty(ctx context.Context, n *node) error {
	var left map[string]int
	err := await(ctx, "the maps of "+n.name+" are empty", func() (bool, error) {
		var err error
		left, err = entries(n)
		return err == nil && sum(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w: left: %v", err, left)
	}
	return nil
}

func sum(m map[string]int) (total int) {
	for _, n := range m {
		total += n
	}
	return total
}

func add(a, b offload.Counters) offload.Counters {
	return offload.Counters{
		UpPackets: a.UpPackets + b.UpPackets, UpBytes: a.UpBytes + b.UpBytes,
		DownPackets: a.DownPackets + b.DownPackets, DownBytes: a.DownBytes + b.DownBytes,
	}
}

func sub(a, b offload.Counters) offload.Counters {
	return offload.Counters{
		UpPackets: a.UpPackets - b.UpPackets, UpBytes: a.UpBytes - b.UpBytes,
		DownPackets: a.DownPackets - b.DownPackets, DownBytes: a.DownBytes - b.DownBytes,
	}
}

// corrupt returns the number of datagrams with wrong data, at clients and peers.
func (s *scene) corrupt() uint64 {
	n := s.peers.corrupt.Load()
	for _, c := range s.clients {
		n += c.corrupt.Load()
	}
	return n
}

func (s *scene) close() error {
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.close())
	}
	for _, c := range s.captures {
		errs = append(errs, c.close())
	}
	if s.peers != nil {
		errs = append(errs, s.peers.close())
	}
	return errors.Join(append(errs, s.setup.close())...)
}
