package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/printable"
)

const (
	// leaveTimeout bounds the time for the leave message.
	leaveTimeout = 2 * time.Second
	// firstRetry and lastRetry bound the pauses between attempts to reach a first node. The pauses
	// double.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 5 * time.Second
	// maxConcurrentJoins bounds the addresses contacted at the same time.
	maxConcurrentJoins = 8
	// firstRejoin is the pause between attempts to reach nodes lost within recentLoss, while other
	// nodes are reachable.
	firstRejoin = time.Second
	recentLoss  = time.Minute
	// maxLost bounds the number of lost nodes that are stored, and lostTime the time for which they
	// are stored. After a longer partition, a node rejoins only through the Join addresses.
	maxLost  = 64
	lostTime = 24 * time.Hour
)

// lostNode is the last address of a lost member.
type lostNode struct {
	addr string
	at   time.Time
}

// rememberLost stores a lost member's address. It removes the oldest entry when there are too many.
// The caller holds c.mu.
func (c *Cluster) rememberLost(m Member, now time.Time) {
	c.lost[m.Name] = lostNode{addr: m.GossipAddr, at: now}
	oldest, oldestAt := "", now
	for name, l := range c.lost {
		if now.Sub(l.at) > lostTime {
			delete(c.lost, name)
		} else if l.at.Before(oldestAt) {
			oldest, oldestAt = name, l.at
		}
	}
	if len(c.lost) > maxLost {
		delete(c.lost, oldest)
	}
}

// Run joins the other nodes and retries until it reaches one. It then tries to reach lost nodes. After
// ctx ends, Run sends a leave message and returns within 2 s. It also returns after Close. A failure
// to join is not an error of Run: it is logged, counted, and returned by JoinError. Run can be called
// only once.
func (c *Cluster) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("run gossip: already running or stopped")
	}
	stopHangUp := context.AfterFunc(ctx, c.cancelDials)
	defer stopHangUp()
	var pace joinBackoff
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return c.leave()
		case <-c.closed:
			return nil
		case <-timer.C:
		}
		c.checkConflicts()
		c.refresh(ctx)
		c.joinIfDue(ctx, &pace)
		timer.Reset(c.tick())
	}
}

// Refresh schedules a state exchange with a member whose gossip state is outdated. The exchange takes
// place at the next tick. A caller uses Refresh after it has found that the member's gossip state is
// outdated. Gossip of two nodes that restart together may miss each other's messages for seconds.
// Refresh may be called at any time.
func (c *Cluster) Refresh(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := c.members[node]; ok {
		c.refreshAddrs[m.GossipAddr] = struct{}{}
	}
}

func (c *Cluster) refresh(ctx context.Context) {
	c.mu.Lock()
	targets := make([]target, 0, len(c.refreshAddrs))
	for addr := range c.refreshAddrs {
		targets = append(targets, target{addr: addr})
	}
	clear(c.refreshAddrs)
	c.mu.Unlock()
	if err := c.join(ctx, targets); err != nil {
		c.log.Debug("failed to refresh members", "error", err) // the members may also be about to leave
	}
}

// tick is the pause between two checks for pending work.
func (c *Cluster) tick() time.Duration { return max(c.opts.DeadTime/8, firstRetry/2) }

// leave sends a leave message and stops memberlist.
func (c *Cluster) leave() error {
	c.stopMu.Lock()
	defer c.stopMu.Unlock()
	select {
	case <-c.closed:
		return nil
	default:
	}
	// memberlist returns no other error than a timeout. Nodes that stop at the same moment may find no
	// node to send the message to.
	if err := c.list.Leave(leaveTimeout); err != nil {
		c.log.Warn("failed to send leave message, peers detect the stop after dead-time", "error", err)
	}
	return c.shutdown()
}

// joinBackoff schedules the next attempt to join.
type joinBackoff struct {
	due   time.Time
	retry time.Duration
	alone bool
}

// schedule sets the time of the next attempt. A node that has peers retries lost nodes at the interval
// rejoin. An isolated node retries at once and then after doubling pauses. A random part prevents
// nodes that were started together from retrying at the same time.
func (p *joinBackoff) schedule(now time.Time, rejoin time.Duration) {
	if !p.alone {
		p.retry, p.due = 0, now.Add(rejoin)
		return
	}
	p.retry = min(max(2*p.retry, firstRetry), lastRetry)
	p.due = now.Add(p.retry - rand.N(p.retry/4))
}

// isAlone reports whether this node has no peers although it should have some.
func (c *Cluster) isAlone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members) == 0 && len(c.opts.Join)+len(c.lost) > 0
}

// joinIfDue joins the targets if an attempt is due.
func (c *Cluster) joinIfDue(ctx context.Context, p *joinBackoff) {
	contested := c.hasOwnNameConflict()
	if alone := c.isAlone(); alone != p.alone {
		*p = joinBackoff{alone: alone}
	}
	if time.Now().Before(p.due) && !contested {
		return
	}
	// The first attempt contacts the nodes that gossip knows, too: they have all members.
	err := c.join(ctx, c.targets(ctx, contested || !c.hasJoined()))
	c.closeJoined()
	p.alone = c.isAlone()
	p.schedule(time.Now(), c.rejoinInterval())
	if !p.alone || err == nil || ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.joinErr = err
	c.mu.Unlock()
	if c.logLimit.allow("join") {
		c.log.Warn("failed to reach any other node, retrying", "error", err, "retry_in", p.retry,
			"hint", "correct join, and open the port of gossip-listen for TCP and UDP; behind NAT: set gossip-advertise")
	}
}

// hasJoined reports whether Joined has ended.
func (c *Cluster) hasJoined() bool {
	select {
	case <-c.joined:
		return true
	default:
		return false
	}
}

// rejoinInterval returns the pause between attempts to reach lost nodes while others are reachable.
// The pause is short at first, because most partitions are short and a restarting node returns soon.
func (c *Cluster) rejoinInterval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lost {
		if time.Since(l.at) < recentLoss {
			return firstRejoin
		}
	}
	return 2*c.opts.DeadTime + 2*time.Second
}

// target is an address to join, or the error of its resolution.
type target struct {
	addr string
	err  error
}

// targets returns the addresses to join: the Join addresses and lost nodes that are not members. If
// all is set, they include the members, because this node must announce itself again.
func (c *Cluster) targets(ctx context.Context, all bool) []target {
	var targets []target
	for _, addr := range c.opts.Join {
		targets = append(targets, c.resolve(ctx, addr)...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	live := make([]string, 0, len(c.members))
	for _, m := range c.members {
		live = append(live, m.GossipAddr)
	}
	for _, l := range c.lost {
		targets = append(targets, target{addr: l.addr})
	}
	if all {
		for _, addr := range live {
			targets = append(targets, target{addr: addr})
		}
	}
	slices.SortFunc(targets, func(a, b target) int { return cmp.Compare(a.addr, b.addr) })
	targets = slices.CompactFunc(targets, func(a, b target) bool { return a.err == nil && b.err == nil && a.addr == b.addr })
	return slices.DeleteFunc(targets, func(t target) bool {
		return t.addr == c.self.String() || !all && slices.Contains(live, t.addr)
	})
}

// resolve resolves a Join address into its IP:ports.
func (c *Cluster) resolve(ctx context.Context, addr string) []target {
	host, port, err := splitPort(addr)
	if err != nil {
		return []target{{addr: addr, err: err}}
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return []target{{addr: addr, err: fmt.Errorf("join %s: %w", addr, err)}}
	}
	targets := make([]target, 0, len(ips))
	for _, ip := range ips {
		targets = append(targets, target{addr: netip.AddrPortFrom(ip.Unmap(), port).String()})
	}
	return targets
}

// join contacts the targets and returns one error for each failed target.
func (c *Cluster) join(ctx context.Context, targets []target) error {
	errs := make([]error, len(targets))
	slots := make(chan struct{}, maxConcurrentJoins)
	var wg sync.WaitGroup
	for i, t := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if errs[i] = t.err; t.err == nil && ctx.Err() == nil {
				errs[i] = c.joinOne(t.addr)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// joinOne exchanges the membership with the node at addr.
func (c *Cluster) joinOne(addr string) error {
	c.counters.joinAttempts.Add(1)
	_, err := c.list.Join([]string{addr})
	if err == nil {
		return nil
	}
	c.counters.joinFailures.Add(1)
	if mismatch, ok := classifyKeyMismatch(err.Error()); ok {
		c.reportKeyMismatch(mismatch, addr)
		return fmt.Errorf("join %s: %w: %s", addr, keyErrors[mismatch], keyHints[mismatch])
	}
	// The other side chooses the text of some errors.
	cause := strings.TrimPrefix(rootCause(err).Error(), "failed to join "+addr+": ")
	return fmt.Errorf("join %s: %s", addr, printable.Truncated(cause, maxCause))
}

// rootCause returns the cause of memberlist's error for one address. memberlist's wrapping only
// repeats the address over several lines.
func rootCause(err error) error {
	var many interface{ WrappedErrors() []error }
	if errors.As(err, &many) {
		if all := many.WrappedErrors(); len(all) == 1 {
			err = all[0]
		}
	}
	return err
}
