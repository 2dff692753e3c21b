package drill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/bench/lb"
	"mapsync/internal/poll"
	syncd "mapsync/syncd/daemon"
)

// noticeLimit is the longest time that syncd may take to detect that a map was removed or replaced.
const noticeLimit = 20 * time.Second

// TestBalancerRestart repeatedly restarts a load balancer, with a new and empty map, while sessions
// exchange data and syncd continues to run. The load balancer's kernel drops packets of unknown
// sessions. Therefore sessions stall until syncd has refilled the map, and then continue on the
// same node. Finally this node fails, and all sessions survive on its peer.
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
			var configs []*settings
			tr := &restarts{newTrial(t, opts, func(r *run) {
				r.byName, r.dropUnknown = c.byName, true
				r.adjust = func(c *settings) { configs = append(configs, c) }
			})}
			tr.must(tr.open(t.Context()))
			tr.must(tr.eventually(convergeLimit, func() error { return tr.checkMaps(0, active, standby) }))
			if c.byName {
				tr.restart("killed", tr.restartKilled)
				tr.restart("second balancer starts first", tr.restartWithEqualName)
				tr.restart("killed, next balancer starts late", tr.restartLate)
			} else {
				tr.restart("killed", tr.restartKilled)
				tr.restart("pin removed, next balancer starts late", tr.restartLate)
				tr.restart("next balancer attaches after syncd is ready", tr.restartAttachedLater)
				tr.restartWithoutPeer(configs[standby])
			}
			tr.must(tr.failOver(sessions))
		})
	}
}

// restarts is a trial in which the active load balancer is restarted.
type restarts struct{ *trial }

// restart restarts the load balancer by calling do. It expects every session to continue on the
// same node, and all maps to hold all sessions again.
func (tr *restarts) restart(how string, do func() error, nodes ...int) {
	tr.t.Helper()
	if len(nodes) == 0 {
		nodes = []int{active, standby}
	}
	out, cut := &Outcome{Sessions: tr.opts.Sessions}, &cutCommand{Killed: monotonic()}
	before := tr.maps[active]
	tr.must(do())
	cut.Dead = monotonic()
	tr.must(tr.decider.send(command{Cut: cut}))
	tr.must(tr.awaitDecision(tr.t.Context(), out))
	if out.Survived != out.Sessions {
		tr.t.Fatalf("restart (%s): got %+v, want all sessions to survive", how, out)
	}
	if tr.maps[active] == before {
		tr.t.Fatalf("restart (%s): the load balancer has its old map, want a new one", how)
	}
	tr.must(tr.eventually(convergeLimit, func() error { return tr.checkMaps(0, nodes...) }))
	stats := tr.stats(active)
	if stats.New > 0 {
		tr.t.Errorf("restart (%s): the load balancer created %d flows from segments in the middle of sessions, want 0", how, stats.New)
	}
	tr.t.Logf("%s: all %d sessions continued at the same node after %d ms at most; %d segments were dropped before the map was refilled",
		how, out.Survived, out.MaxStallMS, stats.NoEntry)
}

// restartKilled kills the load balancer. The next one attaches at once, with an empty map.
func (tr *restarts) restartKilled() error {
	return errors.Join(tr.balancers[active].kill(), tr.startBalancer(active, true, false))
}

// restartLate starts no load balancer until syncd has detected the end of the old one. Then no map
// exists. A map that is followed by name ends, too, because only syncd still held it.
func (tr *restarts) restartLate() error {
	err := tr.balancers[active].kill()
	if !tr.byName {
		err = errors.Join(err, os.Remove(filepath.Join(tr.pins[active], lb.MapName)))
	}
	if err == nil {
		tr.awaitActive("syncd waits for a map", func(s *syncd.Status) bool { return !s.Ready && s.Maps[0].State == syncd.MapWaiting })
	}
	return errors.Join(err, tr.startBalancer(active, true, false))
}

// restartAttachedLater starts the next load balancer with its map. It attaches after syncd has
// reported ready.
func (tr *restarts) restartAttachedLater() error {
	old := tr.balancers[active]
	defer func() { _ = old.kill() }() // awaitActive may end the test
	if err := tr.startBalancer(active, true, true); err != nil {
		return err
	}
	tr.awaitActive("syncd is ready", func(s *syncd.Status) bool { return s.Ready })
	// The new map is ready now, before the first packet.
	return errors.Join(tr.checkMaps(0, active), old.kill(), tr.attach())
}

func (tr *restarts) attach() error {
	p := tr.balancers[active]
	if err := p.send(command{Attach: true}); err != nil {
		return err
	}
	_, err := p.ready()
	return err
}

// restartWithEqualName runs two load balancers whose maps have one name. While the old load
// balancer runs, syncd must follow its map.
func (tr *restarts) restartWithEqualName() error {
	old, id := tr.balancers[active], tr.maps[active]
	defer func() { _ = old.kill() }() // awaitActive may end the test
	err := tr.startBalancer(active, true, true)
	if err == nil {
		err = tr.flow(tr.t.Context(), time.Second)
	}
	if err == nil {
		tr.awaitActive("syncd follows the old map", func(s *syncd.Status) bool { return s.Ready && s.Maps[0].ID == id })
	}
	return errors.Join(err, old.kill(), tr.attach())
}

// awaitActive waits until the active node's syncd has a wanted status, which what describes.
func (tr *restarts) awaitActive(what string, wanted func(*syncd.Status) bool) {
	tr.t.Helper()
	client := syncd.NewClient(tr.daemons[active].socket)
	poll.Succeeds(tr.t, noticeLimit, what, func() error {
		s, err := client.Status(tr.t.Context())
		if err == nil && !wanted(&s) {
			err = fmt.Errorf("ready: %t %q, maps: %+v", s.Ready, s.NotReady, s.Maps)
		}
		return err
	})
}

// restartWithoutPeer restarts the load balancer while its peer's syncd is stopped. The node refills
// the map from its own table.
func (tr *restarts) restartWithoutPeer(peer *settings) {
	tr.t.Helper()
	gone := tr.daemons[standby]
	tr.daemons[standby] = nil
	tr.must(gone.process.kill())
	tr.awaitActive("the peer has left", func(s *syncd.Status) bool { return len(s.Peers) == 0 })
	tr.restart("killed, without a peer", tr.restartKilled, active)
	tr.must(tr.startDaemon(standby, peer))
	tr.must(tr.awaitReady(tr.t.Context()))
	tr.must(tr.eventually(convergeLimit, func() error { return tr.checkMaps(0, active, standby) }))
}
