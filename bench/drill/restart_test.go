package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/bench/lb"
	syncd "mapsync/syncd/daemon"
)

// noticedWithin is how long syncd may take to see that a map has gone, or another come.
const noticedWithin = 20 * time.Second

// A load balancer is restarted, with a new and empty map, again and again, while sessions
// exchange data and syncd runs on. What it does not know it drops, so sessions stall until
// syncd has refilled the map, and go on at the same node. At last that node dies, and its peer
// has them all.
func TestBalancerRestart(t *testing.T) {
	program := needSyncd(t)
	sessions := 1000
	cases := []struct {
		attach string
		byName bool
	}{{"kprobe", false}, {"fexit", true}, {"kprobe", true}, {"fexit", false}}
	if testing.Short() {
		sessions, cases = 200, cases[:2]
	}
	for _, c := range cases {
		by := "pin"
		if c.byName {
			by = "name"
		}
		t.Run(fmt.Sprintf("by %s/%s/ring", by, c.attach), func(t *testing.T) {
			opts := Options{Sessions: sessions, Syncd: program, Attach: c.attach, Hold: time.Second}
			var told []*settings
			tr := &restarts{newTrial(t, opts, func(r *run) {
				r.byName, r.mute = c.byName, true
				r.tune = func(c *settings) { told = append(told, c) }
			})}
			tr.must(tr.open(t.Context()))
			tr.must(tr.eventually(sameWithin, func() error { return tr.whole(0, active, standby) }))
			if c.byName {
				tr.rest("killed", tr.killed)
				tr.rest("another beside it, then killed", tr.besideByName)
				tr.rest("killed, and no other for long", tr.missed)
			} else {
				tr.rest("killed", tr.killed)
				tr.rest("pin removed, and no other for long", tr.missed)
				tr.rest("another held back until syncd is ready", tr.heldBack)
				tr.alone(told[standby])
			}
			tr.must(tr.failOver(sessions))
		})
	}
}

// restarts is a trial in which the active load balancer is restarted.
type restarts struct{ *trial }

// rest restarts the load balancer as do does it, and expects every session to go on at the same
// node, and all maps to hold it again.
func (tr *restarts) rest(how string, do func() error, nodes ...int) {
	tr.t.Helper()
	if len(nodes) == 0 {
		nodes = []int{active, standby}
	}
	out, cut := &Outcome{Sessions: tr.opts.Sessions}, &cutOrder{Killed: monotonic()}
	before := tr.maps[active]
	tr.must(do())
	cut.Dead = monotonic()
	tr.must(tr.judge.order(order{Cut: cut}))
	tr.must(tr.verdict(tr.t.Context(), out))
	if out.Survived != out.Sessions {
		tr.t.Fatalf("%s: not every session went on: %+v", how, out)
	}
	if tr.maps[active] == before {
		tr.t.Fatalf("%s: the load balancer has its old map", how)
	}
	tr.must(tr.eventually(sameWithin, func() error { return tr.whole(0, nodes...) }))
	stats := tr.stats(active)
	if stats.New > 0 {
		tr.t.Errorf("%s: the load balancer has made %d flows of segments in the middle of sessions", how, stats.New)
	}
	tr.t.Logf("%s: all %d sessions went on at the same node after %d ms at most; %d segments were dropped before it knew them again",
		how, out.Survived, out.MaxStallMS, stats.NoEntry)
}

// killed is the hard way: the load balancer dies, and the next one balances at once, with an
// empty map.
func (tr *restarts) killed() error {
	return errors.Join(tr.balancers[active].kill(), tr.startBalancer(active, true, false))
}

// missed has no load balancer until syncd has noticed. No map is there then: that by name
// is not, since nobody but syncd held it.
func (tr *restarts) missed() error {
	err := tr.balancers[active].kill()
	if !tr.byName {
		err = errors.Join(err, os.Remove(filepath.Join(tr.pins[active], lb.MapName)))
	}
	if err == nil {
		err = tr.await1(func(s *syncd.Status) bool { return !s.Ready && s.Maps[0].State == syncd.MapWaiting })
	}
	return errors.Join(err, tr.startBalancer(active, true, false))
}

// heldBack is the gentle way: the next load balancer has its map, and begins when syncd says
// that the node is ready.
func (tr *restarts) heldBack() error {
	old := tr.balancers[active]
	if err := tr.startBalancer(active, true, true); err != nil {
		return errors.Join(err, old.kill())
	}
	client := syncd.NewClient(tr.daemons[active].socket)
	for deadline := time.Now().Add(noticedWithin); ; time.Sleep(20 * time.Millisecond) {
		r, err := client.Ready(tr.t.Context())
		if err == nil && r.Ready {
			break
		}
		if time.Now().After(deadline) {
			return errors.Join(err, fmt.Errorf("not ready after %v: %v", noticedWithin, r.Missing), old.kill())
		}
	}
	// What is ready now is the new map, before any packet has met it.
	return errors.Join(tr.whole(0, active), old.kill(), tr.attach())
}

func (tr *restarts) attach() error {
	p := tr.balancers[active]
	if err := p.order(order{Attach: true}); err != nil {
		return err
	}
	_, err := p.ready()
	return err
}

// besideByName has two maps of one name: as long as the old load balancer lives, its map is meant.
func (tr *restarts) besideByName() error {
	old, id := tr.balancers[active], tr.maps[active]
	err := tr.startBalancer(active, true, true)
	if err == nil {
		err = tr.flow(tr.t.Context(), time.Second)
	}
	if err == nil {
		err = tr.await1(func(s *syncd.Status) bool { return s.Ready && s.Maps[0].ID == id })
	}
	return errors.Join(err, old.kill(), tr.attach())
}

// await1 waits until the active node's syncd is as wanted.
func (tr *restarts) await1(wanted func(*syncd.Status) bool) error {
	client := syncd.NewClient(tr.daemons[active].socket)
	ctx, cancel := context.WithTimeout(tr.t.Context(), noticedWithin)
	defer cancel()
	for {
		s, err := client.Status(ctx)
		if err == nil && wanted(&s) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not within %v: %+v: %w", noticedWithin, s.Maps, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// alone restarts the load balancer while its peer's syncd is away: the node's own table is
// all that there is.
func (tr *restarts) alone(peer *settings) {
	tr.t.Helper()
	gone := tr.daemons[standby]
	tr.daemons[standby] = nil
	tr.must(gone.process.kill())
	tr.must(tr.await1(func(s *syncd.Status) bool { return len(s.Peers) == 0 }))
	tr.rest("killed, without a peer", tr.killed, active)
	tr.must(tr.startDaemon(standby, peer))
	tr.must(tr.awaitReady(tr.t.Context()))
	tr.must(tr.eventually(sameWithin, func() error { return tr.whole(0, active, standby) }))
}
