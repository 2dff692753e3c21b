package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"mapsync/docs/examples/turn/message"
	"mapsync/docs/examples/turn/offload"
	"mapsync/internal/tool"
)

// outcome is the result of a failover of a pair of servers. The numbers count channels if nothing else is
// stated.
type outcome struct {
	channels  int
	survived  int           // whose peer answered through the offload of the second node
	took      time.Duration // from the takeover to the last answer
	refreshed int           // after Refresh of the allocation and ChannelBind
	relayed   int           // whose peer answered through the second server itself
	permitted int           // allocations that received from a peer with a permission only
	restarted int           // kept by a restart of the second server
	exact     int           // with exact counters
	checked   uint64        // packets with checksums that were verified
	wrong     uint64        // of them with a wrong checksum
	moved     int           // datagrams from another relay address than before
	corrupt   uint64        // datagrams
}

// failover runs clients with a pair of servers. The first node fails.
func failover(ctx context.Context, o *options, withSyncd bool) (r outcome, err error) {
	s, err := newScene(ctx, o, withSyncd)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if r.channels, err = s.openChannels(ctx); err != nil {
		return r, fmt.Errorf("%w\n%s", err, s.nodes[0].server.errorLines())
	}
	if withSyncd {
		if err := errors.Join(s.lifetimes(ctx), s.awaitReplicated(ctx)); err != nil {
			return r, fmt.Errorf("%w\n%s", err, s.nodes[1].syncd.errorLines())
		}
	}
	if err := s.fail(0); err != nil {
		return r, err
	}
	limit := answerLimit
	if !withSyncd {
		limit = controlLimit
	}
	if err := s.takeOver(1, !o.noSignal); err != nil {
		return r, err
	}
	if r.survived, r.took, err = s.exchange(ctx, atOnce, limit); err != nil {
		return r, err
	}
	tool.Progress("%d channels continue after the failure of the first node", r.survived)
	if withSyncd {
		err = s.afterTakeover(ctx, &r)
	}
	return r, err
}

// openChannels opens all channels, and sends data on each of them through the first server.
func (s *scene) openChannels(ctx context.Context) (channels int, err error) {
	if err := errors.Join(s.capture(), s.addClients(s.opts.channels)); err != nil {
		return 0, err
	}
	if channels, _, err = s.exchange(ctx, atOnce, answerLimit); err != nil {
		return 0, err
	}
	if channels != s.opts.channels {
		return 0, fmt.Errorf("data through the first server: got %d channels, want %d", channels, s.opts.channels)
	}
	tool.Progress("%d channels of %d clients are open", channels, len(s.clients))
	return channels, s.awaitExact(ctx, s.nodes[0])
}

// controlLimit is the time to wait for answers that do not come.
const controlLimit = 2 * time.Second

// afterTakeover refreshes all allocations and channels at the second server, restarts it, and ends all
// allocations.
func (s *scene) afterTakeover(ctx context.Context, r *outcome) (err error) {
	n := s.nodes[1]
	if r.exact, err = s.exact(n); err != nil {
		return err
	}
	if s.opts.noSignal {
		if err := s.clients[0].shorten(fullLifetime); err != nil {
			return fmt.Errorf("refresh as the first request to the second server: %w", err)
		}
	}
	if err := s.checkRebuilt(ctx, n, r.channels); err != nil {
		return err
	}
	if r.permitted, err = s.permitted(ctx); err != nil {
		return err
	}
	if r.refreshed, err = s.refresh(); err != nil {
		return fmt.Errorf("refresh: %w\n%s", err, n.server.errorLines())
	}
	if r.relayed, err = s.exchangePassed(ctx, n); err != nil {
		return err
	}
	tool.Progress("%d channels are refreshed at the second server", r.refreshed)
	if r.restarted, err = s.restart(ctx, n); err != nil {
		return err
	}
	exact, err := s.exact(n)
	if err != nil {
		return err
	}
	r.exact = min(r.exact, exact)
	return s.finish(ctx, r)
}

// finish ends all allocations, and counts what was wrong during the run.
func (s *scene) finish(ctx context.Context, r *outcome) error {
	if err := s.each(func(c *client) error { return c.shorten(0) }); err != nil {
		return err
	}
	if err := awaitEmpty(ctx, s.nodes[1]); err != nil {
		return err
	}
	for _, c := range s.captures {
		r.checked, r.wrong = r.checked+c.checked.Load(), r.wrong+c.wrong.Load()
	}
	r.moved, r.corrupt = s.peers.movedRelays(), s.corrupt()
	return nil
}

// checkRebuilt checks that a server has rebuilt all allocations and channels. Unless a client's request has
// started the rebuild, no client has sent a request to this server yet.
func (s *scene) checkRebuilt(ctx context.Context, n *node, channels int) error {
	line, err := n.server.awaitLog(ctx, "msg=rebuilt")
	if err != nil {
		return err
	}
	tool.Progress("second server: %s", line)
	want := fmt.Sprintf(" allocations=%d permissions=%d channels=%d failures=0 ", len(s.clients), 2*len(s.clients), channels)
	if !strings.Contains(line, want) {
		return fmt.Errorf("rebuild by the second server: got %q, want %q\n%s", line, want, n.server.errorLines())
	}
	return nil
}

// refresh refreshes all allocations and channels. It returns the number of refreshed channels.
func (s *scene) refresh() (channels int, err error) {
	counts := make(chan int, len(s.clients))
	err = s.each(func(c *client) error {
		n, err := c.refresh()
		counts <- n
		return err
	})
	close(counts)
	for n := range counts {
		channels += n
	}
	return channels, err
}

// permitted sends data from the permitted peer to each relay address. It returns the number of clients that have received
// it.
func (s *scene) permitted(ctx context.Context) (clients int, err error) {
	received := make([]uint64, len(s.clients))
	for i, c := range s.clients {
		received[i] = c.permitted.Load()
		if _, err := s.peers.permitted.WriteTo(payload{channel: c.first, answer: true}.bytes(), c.relay.LocalAddr()); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	err = await(ctx, "the clients receive from a peer without a channel", func() (bool, error) {
		clients = 0
		for i, c := range s.clients {
			if c.permitted.Load() > received[i] {
				clients++
			}
		}
		return clients == len(s.clients), nil
	})
	return clients, errors.Join(ctx.Err(), err)
}

// restart restarts the server of a node. It returns the number of channels with data while it was stopped,
// after a refresh, and through the new server itself.
func (s *scene) restart(ctx context.Context, n *node) (channels int, err error) {
	if err := n.server.end(syscall.SIGTERM); err != nil {
		return 0, err
	}
	stopped, _, err := s.exchange(ctx, atOnce, answerLimit)
	if err != nil {
		return 0, err
	}
	if err := s.startServer(ctx, n, true, false); err != nil {
		return 0, err
	}
	refreshed, err := s.refresh()
	if err != nil {
		return 0, fmt.Errorf("refresh after the restart: %w\n%s", err, n.server.errorLines())
	}
	passed, err := s.exchangePassed(ctx, n)
	return min(stopped, refreshed, passed), err
}

// lifetimes checks that the entries and counters of an allocation end with it on both nodes: with a client that
// ends its allocation, and with one whose allocation is not refreshed.
func (s *scene) lifetimes(ctx context.Context) error {
	all := s.clients
	defer func() { s.clients = all }()
	for _, lifetime := range []time.Duration{0, shortLifetime} {
		s.clients = nil
		if err := s.addClients(1); err != nil {
			return err
		}
		c := s.clients[0]
		for _, n := range s.nodes {
			if err := awaitEntries(ctx, n, c, true); err != nil {
				return err
			}
		}
		if err := c.shorten(lifetime); err != nil {
			return err
		}
		for _, n := range s.nodes {
			if err := awaitEntries(ctx, n, c, false); err != nil {
				return err
			}
		}
		if err := c.close(); err != nil {
			return err
		}
	}
	return nil
}

const shortLifetime = 2 * time.Second

// awaitEntries waits until all maps of a node have entries of a client, or none.
func awaitEntries(ctx context.Context, n *node, c *client, present bool) error {
	from := message.AddrPort(c.socket.LocalAddr())
	what := fmt.Sprintf("entries of a client on %s: %t", n.name, present)
	return await(ctx, what, func() (bool, error) {
		allocations, err := n.offload.Allocations()
		permissions, errP := n.offload.Permissions()
		channels, errC := n.offload.Channels()
		counters, errS := n.offload.Counters()
		_, counted := counters[offload.ClientChannel{Client: from, Number: firstChannel}]
		return errors.Join(err, errP, errC, errS) == nil &&
			slices.ContainsFunc(allocations, func(a offload.Allocation) bool { return a.Client == from }) == present &&
			slices.ContainsFunc(permissions, func(p offload.Permission) bool { return p.Client == from }) == present &&
			slices.ContainsFunc(channels, func(c offload.Channel) bool { return c.Client == from }) == present &&
			counted == present, nil
	})
}

// deadlines checks that entries end on a node that no client uses, after their server has failed.
func deadlines(ctx context.Context, o *options) (err error) {
	s, err := newScene(ctx, o, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.addClients(peersOfClient); err != nil {
		return err
	}
	const lifetime = 5 * time.Second
	if err := s.each(func(c *client) error { return c.shorten(lifetime) }); err != nil {
		return err
	}
	if err := s.awaitReplicated(ctx); err != nil {
		return err
	}
	if err := s.fail(0); err != nil {
		return err
	}
	return awaitEmpty(ctx, s.nodes[1])
}
