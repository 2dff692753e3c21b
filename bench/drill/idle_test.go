package drill

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// closeLimit is the longest time that the maps of all nodes may keep a session after its end.
const closeLimit = 2 * time.Second

// idleTimes are the times of a test with sessions that rarely exchange data. The standby's time
// stamp of a session is older than the session's last packet. Its age is at most pause, a refresh
// interval, a scan interval, the duration of a scan and the lag. Their sum must be less than limit.
type idleTimes struct {
	limit   time.Duration // idle timeout of both load balancers' collectors
	pause   time.Duration // of a session between two exchanges
	refresh time.Duration // refresh interval of syncd
	scan    time.Duration // scan interval of syncd
}

func idleTimesOf(limit time.Duration) idleTimes {
	return idleTimes{limit: limit, pause: limit * 11 / 20, refresh: limit / 10, scan: limit / 10}
}

// TestStandbyCollector checks that sessions that rarely exchange data stay in the maps of both
// nodes without a time limit, although the standby receives no packet of them. The sessions survive
// the death of their load balancer. After their end they are deleted on all nodes.
func TestStandbyCollector(t *testing.T) {
	program := needSyncd(t)
	sessions, limit := 1000, 10*time.Second
	if testing.Short() {
		sessions, limit = 200, 2*time.Second
	}
	for _, attach := range []string{"kprobe", "fexit"} {
		opts := Options{Sessions: sessions, Syncd: program, Attach: attach}
		t.Run(attach+"/ring", func(t *testing.T) {
			retrySlower(t, limit, func(times idleTimes) (*trial, error) { return testIdleSessions(t, opts, times) })
		})
		if testing.Short() {
			continue // the test above covers a short time without refresh
		}
		t.Run("without refresh/"+attach+"/ring", func(t *testing.T) {
			retrySlower(t, limit, func(times idleTimes) (*trial, error) { return testWithoutRefresh(t, opts, times) })
		})
	}
}

// retrySlower repeats test with longer times if the machine was too slow: a session that could not
// send in time is idle, and its delete is correct.
func retrySlower(t *testing.T, limit time.Duration, test func(idleTimes) (*trial, error)) {
	t.Helper()
	for tries := 3; ; {
		times, monitor := idleTimesOf(limit), newStallMonitor()
		tr, err := test(times)
		longest, late := monitor.finish(), tr.last.MaxPause-times.pause
		if tr.isRunning(active) {
			tr.mustNotReplicate() // independent of the machine's speed
		}
		tries--
		slow := longest+late > limit/8 && tries > 0
		if err != nil && !slow {
			tr.logState()
		}
		tr.close()
		t.Logf("longest delays: session %v beyond its pause, processor %v", late, longest)
		switch {
		case err == nil:
			return
		case !slow:
			t.Fatal(err)
		}
		t.Logf("machine too slow for an idle timeout of %v: %v", limit, err)
		limit = max(2*limit, min((8*(longest+late)).Round(time.Second), 10*time.Second))
	}
}

func newIdleTrial(t *testing.T, opts Options, times idleTimes, refresh time.Duration) *trial {
	opts.CollectEvery, opts.Hold = times.limit/5, times.limit
	return newTrial(t, opts, func(r *run) {
		r.idle, r.pause = times.limit, times.pause
		r.adjust = func(c *settings) {
			c.RefreshInterval, c.ScanInterval, c.ScanBudget = refresh.String(), times.scan.String(), 20
			c.DeadTime = "30s" // a syncd that is stopped for a while must not count as dead
		}
	})
}

func testIdleSessions(t *testing.T, opts Options, times idleTimes) (*trial, error) {
	tr := newIdleTrial(t, opts, times, times.refresh)
	if err := tr.open(t.Context()); err != nil {
		return tr, err
	}
	if err := tr.checkNothingExpires(times); err != nil {
		return tr, err
	}
	if err := tr.checkStoppedOwner(times); err != nil {
		return tr, err
	}
	tr.mustNotReplicate()
	quarter := tr.opts.Sessions / 4
	if err := tr.checkClosed(0, quarter, active, standby); err != nil {
		return tr, err
	}
	if err := tr.checkIdleFailover(quarter, times); err != nil {
		return tr, err
	}
	if err := tr.checkClosed(quarter, tr.opts.Sessions, standby); err != nil {
		return tr, err
	}
	if err := tr.flow(t.Context(), time.Second); err != nil {
		return tr, err
	}
	if left := tr.sessions(standby); len(left) > 0 {
		return tr, fmt.Errorf("%d closed sessions are in the map again", len(left))
	}
	return tr, nil
}

// testWithoutRefresh checks the standby's collector while syncd sends no refreshes. The collector
// deletes entries and syncd restores all of them. The peer receives none of these deletes.
func testWithoutRefresh(t *testing.T, opts Options, times idleTimes) (*trial, error) {
	tr := newIdleTrial(t, opts, times, 0)
	if err := tr.open(t.Context()); err != nil {
		return tr, err
	}
	if err := tr.eventually(5*times.limit, tr.checkExpiring); err != nil {
		return tr, err
	}
	if err := tr.flow(t.Context(), 3*times.limit); err != nil {
		return tr, err
	}
	return tr, tr.checkUnaffected()
}

// checkNothingExpires checks both maps for ten idle timeouts: each entry is present, and none had
// to be restored.
func (tr *trial) checkNothingExpires(times idleTimes) error {
	err := tr.eventually(convergeLimit, func() error { return tr.checkMaps(0, active, standby) })
	if err != nil {
		return err
	}
	var oldest [2]time.Duration
	for end := time.Now().Add(10 * times.limit); time.Now().Before(end); {
		if err := tr.flow(tr.t.Context(), times.limit/4); err != nil {
			return err
		}
		for i := range oldest {
			found, now := tr.sessions(i), uint64(monotonic())
			if err := tr.checkSessions(i, found, 0); err != nil {
				return err
			}
			for _, h := range found {
				oldest[i] = max(oldest[i], time.Duration(now-min(now, h.lastUsed)))
			}
		}
	}
	for i := range oldest {
		if deleted, back := tr.stats(i).Idle, tr.restoredCount(i); deleted > 0 || back > 0 {
			return fmt.Errorf("the collector of %s has deleted %d entries of live sessions, %d were put back", tr.net.nodes[i].name, deleted, back)
		}
	}
	tr.t.Logf("within 10 idle timeouts of %v, %d sessions were idle for at most %v on the active node and %v on the standby",
		times.limit, tr.opts.Sessions, oldest[active].Round(time.Millisecond), oldest[standby].Round(time.Millisecond))
	return nil
}

// checkStoppedOwner stops the active node's syncd. Its sessions age on the standby, whose collector
// deletes them, and syncd restores them. The active node does not receive these deletes.
func (tr *trial) checkStoppedOwner(times idleTimes) error {
	owner := tr.daemons[active].process.cmd.Process
	tr.must(owner.Signal(unix.SIGSTOP))
	err := tr.eventually(5*times.limit, tr.checkExpiring)
	if err = errors.Join(err, owner.Signal(unix.SIGCONT)); err != nil {
		return err
	}
	deleted, back := tr.stats(standby).Idle, tr.restoredCount(standby)
	tr.t.Logf("without refresh the standby's collector deleted %d entries, and syncd restored %d", deleted, back)
	if err := tr.flow(tr.t.Context(), times.limit); err != nil {
		return err
	}
	deleted = tr.stats(standby).Idle
	if err := tr.flow(tr.t.Context(), times.limit); err != nil {
		return err
	}
	if n := tr.stats(standby).Idle - deleted; n > 0 {
		return fmt.Errorf("with refresh again the standby's collector deleted %d entries", n)
	}
	return tr.checkUnaffected()
}

// checkExpiring returns nil after the standby's collector has deleted as many entries as exist, and
// syncd has restored some.
func (tr *trial) checkExpiring() error {
	if deleted, back := tr.stats(standby).Idle, tr.restoredCount(standby); deleted < uint64(2*tr.opts.Sessions) || back == 0 {
		return fmt.Errorf("the standby's collector has deleted %d entries, and %d were put back", deleted, back)
	}
	return nil
}

// checkUnaffected returns an error if deletes of the standby's collector affected the active node.
func (tr *trial) checkUnaffected() error {
	if n := tr.stats(active).Idle; n > 0 {
		return fmt.Errorf("the active node's collector has deleted %d entries", n)
	}
	if n := tr.stats(active).NoEntry; n > 0 {
		return fmt.Errorf("the active node's load balancer had no entry for %d segments", n)
	}
	return tr.eventually(convergeLimit, func() error { return tr.checkMaps(0, active, standby) })
}

// checkIdleFailover kills the active node. The sessions from the given number on survive, and
// continue on the other node without a time limit.
func (tr *trial) checkIdleFailover(from int, times idleTimes) error {
	before := tr.stats(standby).Idle
	if err := tr.failOver(tr.opts.Sessions - from); err != nil {
		return err
	}
	if err := tr.flow(tr.t.Context(), 2*times.limit); err != nil {
		return err
	}
	if n := tr.stats(standby).Idle - before; n > 0 {
		return fmt.Errorf("the collector of the remaining node has deleted %d entries", n)
	}
	return tr.checkMaps(from, standby)
}

// checkClosed makes sessions end and measures how long the nodes keep them after that. Clients
// close them by a FIN on either side, or by a reset. The end of a session is the last check in
// which the first node had it. A load balancer may keep a closed connection until both FINs are
// acknowledged.
func (tr *trial) checkClosed(from, to int, nodes ...int) error {
	if err := tr.clients.send(command{Close: &closeCommand{From: from, To: to}}); err != nil {
		return err
	}
	var (
		began = time.Now()
		last  = slices.Repeat([]time.Time{began}, tr.opts.Sessions) // last check that found it on the first node
		had   = make([]map[int]mapSession, len(nodes))
		worst time.Duration
	)
	for open := to - from; open > 0; {
		open = 0
		for n, i := range nodes {
			looked := time.Now()
			found := tr.sessions(i)
			for id := from; id < to; id++ {
				_, there := found[id]
				if there && n == 0 {
					last[id] = looked
				}
				if there {
					open++
				}
				if _, was := had[n][id]; there || was {
					worst = max(worst, time.Since(last[id]))
				}
			}
			had[n] = found
		}
		if worst > closeLimit || time.Since(began) > 10*closeLimit {
			return fmt.Errorf("sessions were closed %v ago, and one was in a map %v after its end", time.Since(began), worst)
		}
		if err := tr.flow(tr.t.Context(), 20*time.Millisecond); err != nil {
			return err
		}
	}
	tr.t.Logf("%d sessions were gone from %d maps %v after their end at most, all of them %v after the clients began to close them",
		to-from, len(nodes), worst.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return nil
}
