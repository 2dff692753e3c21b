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
	"sync"
	"time"
)

const (
	// leaveTime bounds the farewell.
	leaveTime = 2 * time.Second
	// firstRetry and lastRetry bound the pauses between attempts to reach a
	// first node, which double.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 5 * time.Second
	// joinsAtOnce bounds the addresses contacted at the same time.
	joinsAtOnce = 8
	// firstRejoin is the pause between attempts to reach nodes that were lost within
	// recentLoss, while others are there.
	firstRejoin = time.Second
	recentLoss  = time.Minute
	// maxLost bounds the lost nodes that are remembered, and lostTime for how
	// long; a partition that lasts longer heals by the Join addresses alone.
	maxLost  = 64
	lostTime = 24 * time.Hour
)

// lostNode is where a member was last seen.
type lostNode struct {
	addr string
	at   time.Time
}

// remember keeps a lost member's address, and forgets the oldest when there are
// too many. The caller holds c.mu.
func (c *Cluster) remember(m Member, now time.Time) {
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

// Run joins the other nodes, trying again until one is reached, and from then on
// tries to reach those that are lost. It returns after ctx ends, having said
// farewell within 2 s, or after Close. A failure to join is not an error of Run:
// it is logged, counted, and told by JoinError. Run can be called once.
func (c *Cluster) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("run gossip: it already runs, or did")
	}
	stopHangUp := context.AfterFunc(ctx, c.hangUp)
	defer stopHangUp()
	var pace pace
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
		c.maintain(ctx, &pace)
		timer.Reset(c.tick())
	}
}

// Refresh has a member asked who it is, at the next look at what is to do: whoever met it found
// that it is not who gossip still takes it for. Gossip of two nodes that restart together may
// miss one another for seconds. It may be called at any time.
func (c *Cluster) Refresh(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := c.members[node]; ok {
		c.mistaken[m.GossipAddr] = struct{}{}
	}
}

func (c *Cluster) refresh(ctx context.Context) {
	c.mu.Lock()
	targets := make([]target, 0, len(c.mistaken))
	for addr := range c.mistaken {
		targets = append(targets, target{addr: addr})
	}
	clear(c.mistaken)
	c.mu.Unlock()
	if err := c.join(ctx, targets); err != nil {
		c.log.Debug("members were not asked who they are", "error", err) // or are about to be gone
	}
}

// tick is the pause between two looks at what is to do.
func (c *Cluster) tick() time.Duration { return max(c.opts.DeadTime/8, firstRetry/2) }

// leave says farewell and stops.
func (c *Cluster) leave() error {
	c.stopMu.Lock()
	defer c.stopMu.Unlock()
	select {
	case <-c.closed:
		return nil
	default:
	}
	err := c.list.Leave(leaveTime)
	if err != nil {
		err = fmt.Errorf("leave gossip: %w", err)
	}
	return errors.Join(err, c.shutdown())
}

// pace decides when the next attempt to join is due.
type pace struct {
	due   time.Time
	retry time.Duration
	alone bool
}

// put sets the next attempt. A node that has others tries for the lost ones now
// and then; one that is alone tries at once and then after pauses that double. A
// random part keeps nodes that were started together from trying in step.
func (p *pace) put(now time.Time, rejoin time.Duration) {
	if !p.alone {
		p.retry, p.due = 0, now.Add(rejoin)
		return
	}
	p.retry = min(max(2*p.retry, firstRetry), lastRetry)
	p.due = now.Add(p.retry - rand.N(p.retry/4))
}

// isAlone reports whether there is no other node although there should be.
func (c *Cluster) isAlone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.members) == 0 && len(c.opts.Join)+len(c.lost) > 0
}

// maintain joins what should be joined now.
func (c *Cluster) maintain(ctx context.Context, p *pace) {
	contested := c.isContested()
	if alone := c.isAlone(); alone != p.alone {
		*p = pace{alone: alone}
	}
	if time.Now().Before(p.due) && !contested {
		return
	}
	err := c.join(ctx, c.targets(ctx, contested))
	p.alone = c.isAlone()
	p.put(time.Now(), c.rejoinPause())
	if !p.alone || err == nil || ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.joinErr = err
	c.mu.Unlock()
	if c.gate.allow("join") {
		c.log.Warn("no other node can be reached", "error", err, "retry_in", p.retry)
	}
}

// rejoinPause is the time between attempts to reach lost nodes while others are there:
// short at first, since most partitions are, and a node that restarts is soon back.
func (c *Cluster) rejoinPause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lost {
		if time.Since(l.at) < recentLoss {
			return firstRejoin
		}
	}
	return 2*c.opts.DeadTime + 2*time.Second
}

// target is an address to join, and the error if it could not be found out.
type target struct {
	addr string
	err  error
}

// targets lists where to join: the Join addresses and lost nodes that are not
// members, or also the members if this node has to introduce itself anew.
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

// resolve turns a Join address into the IP:ports it stands for.
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

// join contacts the targets and returns an error for each that failed.
func (c *Cluster) join(ctx context.Context, targets []target) error {
	errs := make([]error, len(targets))
	slots := make(chan struct{}, joinsAtOnce)
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
	if trouble, ok := classifyKeyTrouble(err.Error(), len(c.opts.GossipKeys) > 0); ok {
		c.reportKeyTrouble(trouble, addr)
		return fmt.Errorf("join %s: %w: %s", addr, keyErrors[trouble], keyRemedies[trouble])
	}
	return fmt.Errorf("join %s: %w", addr, rootCause(err))
}

// rootCause strips what memberlist wraps around the error of one address, which
// only repeats the address over several lines.
func rootCause(err error) error {
	var many interface{ WrappedErrors() []error }
	if errors.As(err, &many) {
		if all := many.WrappedErrors(); len(all) == 1 {
			err = all[0]
		}
	}
	return err
}
