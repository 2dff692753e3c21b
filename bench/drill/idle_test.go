package drill

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// closeWithin is how long the maps of all nodes may keep a session after its end.
const closeWithin = 2 * time.Second

// idling is how long things take where sessions hardly say anything. What the standby knows
// of a session that is about to speak again is as old as pause, and what syncd takes to tell:
// a refresh interval, a scan interval, a scan and the lag. All of it must be less than limit.
type idling struct {
	limit   time.Duration // of both load balancers' collectors
	pause   time.Duration // of a session between two exchanges
	refresh time.Duration // of syncd
	scan    time.Duration // of syncd
}

func idlingBy(limit time.Duration) idling {
	return idling{limit: limit, pause: limit * 11 / 20, refresh: limit / 10, scan: limit / 10}
}

// Sessions that say hardly anything live on both nodes for as long as they like, although
// the standby's collector sees no packet of them; they survive their load balancer; and
// when they end, they are gone everywhere.
func TestStandbyCollector(t *testing.T) {
	program := needSyncd(t)
	sessions, limit := 1000, 10*time.Second
	if testing.Short() {
		sessions, limit = 200, 2*time.Second
	}
	for _, attach := range []string{"kprobe", "fexit"} {
		opts := Options{Sessions: sessions, Syncd: program, Attach: attach}
		t.Run(attach+"/ring", func(t *testing.T) {
			slowly(t, limit, func(times idling) (*trial, error) { return liveIdly(t, opts, times) })
		})
		if testing.Short() {
			continue // what goes without refresh is seen there, for a moment
		}
		t.Run("never refreshed/"+attach+"/ring", func(t *testing.T) {
			slowly(t, limit, func(times idling) (*trial, error) { return neverRefreshed(t, opts, times) })
		})
	}
}

// slowly calls test again with longer times where the machine was too slow for them: a
// session that could not speak in time is idle, and rightly deleted.
func slowly(t *testing.T, limit time.Duration, test func(idling) (*trial, error)) {
	t.Helper()
	for tries := 3; ; {
		times, heart := idlingBy(limit), newHeart()
		tr, err := test(times)
		stood, late := heart.end(), tr.last.MaxPause-times.pause
		if tr.lives(active) {
			tr.mustBeSilent() // however slow it was
		}
		tries--
		slow := stood+late > limit/8 && tries > 0
		if err != nil && !slow {
			tr.tell()
		}
		tr.close()
		t.Logf("the longest pause of a session was %v too long, of a processor %v", late, stood)
		switch {
		case err == nil:
			return
		case !slow:
			t.Fatal(err)
		}
		t.Logf("too slow a machine for an idle timeout of %v: %v", limit, err)
		limit = max(2*limit, min((8*(stood+late)).Round(time.Second), 10*time.Second))
	}
}

func newIdleTrial(t *testing.T, opts Options, times idling, refresh time.Duration) *trial {
	opts.CollectEvery, opts.Hold = times.limit/5, times.limit
	return newTrial(t, opts, func(r *run) {
		r.idle, r.pause = times.limit, times.pause
		r.tune = func(c *settings) {
			c.RefreshInterval, c.ScanInterval, c.ScanBudget = refresh.String(), times.scan.String(), 20
			c.DeadTime = "30s" // a syncd that is stopped for a while is not gone
		}
	})
}

func liveIdly(t *testing.T, opts Options, times idling) (*trial, error) {
	tr := newIdleTrial(t, opts, times, times.refresh)
	if err := tr.open(t.Context()); err != nil {
		return tr, err
	}
	if err := tr.nothingExpires(times); err != nil {
		return tr, err
	}
	if err := tr.withoutRefresh(times); err != nil {
		return tr, err
	}
	tr.mustBeSilent()
	quarter := tr.opts.Sessions / 4
	if err := tr.finish(0, quarter, active, standby); err != nil {
		return tr, err
	}
	if err := tr.surviveIdly(quarter, times); err != nil {
		return tr, err
	}
	if err := tr.finish(quarter, tr.opts.Sessions, standby); err != nil {
		return tr, err
	}
	if err := tr.flow(t.Context(), time.Second); err != nil {
		return tr, err
	}
	if left := tr.sessions(standby); len(left) > 0 {
		return tr, fmt.Errorf("%d sessions have come back", len(left))
	}
	return tr, nil
}

// neverRefreshed is what the standby's collector does when syncd tells of nothing but of
// changes that count: it deletes, and all is put back, and nobody hears of it.
func neverRefreshed(t *testing.T, opts Options, times idling) (*trial, error) {
	tr := newIdleTrial(t, opts, times, 0)
	if err := tr.open(t.Context()); err != nil {
		return tr, err
	}
	if err := tr.eventually(5*times.limit, tr.expiring); err != nil {
		return tr, err
	}
	if err := tr.flow(t.Context(), 3*times.limit); err != nil {
		return tr, err
	}
	return tr, tr.untouched()
}

// nothingExpires looks at both maps for ten idle timeouts: not one entry is missing, and
// none was put back.
func (tr *trial) nothingExpires(times idling) error {
	err := tr.eventually(sameWithin, func() error { return tr.whole(0, active, standby) })
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
			if err := tr.complete(i, found, 0); err != nil {
				return err
			}
			for _, h := range found {
				oldest[i] = max(oldest[i], time.Duration(now-min(now, h.lastUsed)))
			}
		}
	}
	for i := range oldest {
		if deleted, back := tr.stats(i).Idle, tr.putBack(i); deleted > 0 || back > 0 {
			return fmt.Errorf("the collector of %s has deleted %d entries of live sessions, %d were put back", tr.net.nodes[i].name, deleted, back)
		}
	}
	tr.t.Logf("within 10 idle timeouts of %v none of %d sessions was idle for longer than %v on the active node, and %v on the standby",
		times.limit, tr.opts.Sessions, oldest[active].Round(time.Millisecond), oldest[standby].Round(time.Millisecond))
	return nil
}

// withoutRefresh stops the active node's syncd: its sessions grow old on the standby, whose
// collector deletes them, and syncd puts them back. The active node hears nothing of that.
func (tr *trial) withoutRefresh(times idling) error {
	owner := tr.daemons[active].process.cmd.Process
	tr.must(owner.Signal(unix.SIGSTOP))
	err := tr.eventually(5*times.limit, tr.expiring)
	if err = errors.Join(err, owner.Signal(unix.SIGCONT)); err != nil {
		return err
	}
	deleted, back := tr.stats(standby).Idle, tr.putBack(standby)
	tr.t.Logf("without refresh the standby's collector deleted %d entries, and syncd put %d back", deleted, back)
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
	return tr.untouched()
}

// expiring returns nil once the standby's collector has deleted as many entries as there
// are, and syncd has put some back.
func (tr *trial) expiring() error {
	if deleted, back := tr.stats(standby).Idle, tr.putBack(standby); deleted < uint64(2*tr.opts.Sessions) || back == 0 {
		return fmt.Errorf("the standby's collector has deleted %d entries, and %d were put back", deleted, back)
	}
	return nil
}

// untouched says what has become of sessions after the standby's collector deleted them there.
func (tr *trial) untouched() error {
	if n := tr.stats(active).Idle; n > 0 {
		return fmt.Errorf("the active node's collector has deleted %d entries", n)
	}
	if n := tr.stats(active).NoEntry; n > 0 {
		return fmt.Errorf("the active node's load balancer did not know the sessions of %d segments", n)
	}
	return tr.eventually(sameWithin, func() error { return tr.whole(0, active, standby) })
}

// surviveIdly kills the active node. The sessions from the given one on survive it, and go
// on at the other node for as long as they like.
func (tr *trial) surviveIdly(from int, times idling) error {
	before := tr.stats(standby).Idle
	if err := tr.failOver(tr.opts.Sessions - from); err != nil {
		return err
	}
	if err := tr.flow(tr.t.Context(), 2*times.limit); err != nil {
		return err
	}
	if n := tr.stats(standby).Idle - before; n > 0 {
		return fmt.Errorf("the survivor's collector has deleted %d entries", n)
	}
	return tr.whole(from, standby)
}

// finish has sessions end, and looks for how long nodes keep them after that: they are
// closed gently, by a FIN on either side, and by resets. The end of a session is the last look at
// which the first node had it; what a load balancer keeps until a closed connection is
// over (both FINs acknowledged) is its own business.
func (tr *trial) finish(from, to int, nodes ...int) error {
	if err := tr.clients.order(order{Close: &closeOrder{From: from, To: to}}); err != nil {
		return err
	}
	var (
		began = time.Now()
		last  = slices.Repeat([]time.Time{began}, tr.opts.Sessions) // look that found it on the first node
		had   = make([]map[int]held, len(nodes))
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
		if worst > closeWithin || time.Since(began) > 10*closeWithin {
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
