package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Readiness is what decides whether traffic may come to this node. A map becomes
// ready once: when every live peer has told all that it knows, the digests agree over the
// streams that are up, and the kernel map holds what was known at that moment. It stays
// ready until its kernel map goes, is replaced or is refused. Lag takes nothing back: a
// peer that is slow, or a network that parts, would otherwise take all nodes out of
// service at once.
type Readiness struct {
	// Node is the node's name.
	Node string `json:"node"`
	// Ready says that traffic may come.
	Ready bool `json:"ready"`
	// Missing is what it lacks otherwise, for people.
	Missing []string `json:"missing"`
	// Unproven is what is missing although the node says that it is ready, because
	// sync-timeout has passed and on-ready-timeout is open.
	Unproven []string `json:"unproven,omitempty"`
	// Clocks are nodes whose clocks are too far apart from this one's, with the remedy. They
	// do not replicate with this node.
	Clocks []string `json:"clocks,omitempty"`
	// Drained says that an operator has taken the node out of service.
	Drained bool `json:"drained,omitempty"`
}

// verdict is how far a map is from being ready.
type verdict uint8

const (
	notReady verdict = iota
	unproven         // ready only because nobody wants to wait any longer
	proven
)

// Ready returns whether this node holds, in its kernel maps, what its peers hold, and
// what is missing: each reason once, with the maps that it concerns.
func (d *Daemon) Ready() Readiness {
	r := d.mapsReady()
	if since, drained := d.drain.begun(); drained {
		r.Ready, r.Drained = false, true
		r.Missing = append(r.Missing, fmt.Sprintf("drained since %s (`syncd drain --undo` returns)", since.Format(time.DateTime)))
	}
	return r
}

// mapsReady is Ready of a node that is not drained.
func (d *Daemon) mapsReady() Readiness {
	r := Readiness{Node: d.self.Node, Ready: true}
	var missing, luck reasons
	var peers *obstacles // asked for only when it matters
	for _, m := range d.replicas() {
		v, reason := m.readiness()
		if admitted := m.admitted(v); v == proven || !admitted {
			continue
		}
		if reason == "" {
			if peers == nil {
				peers = d.obstacles()
			}
			reason = orElse(peers.text(m.name), "the last check is under way")
		}
		if v == unproven {
			luck.add(m.name, reason)
			continue
		}
		r.Ready = false
		missing.add(m.name, reason)
	}
	for _, c := range d.clockProblems() {
		r.Clocks = append(r.Clocks, c.text())
	}
	r.Missing, r.Unproven = append([]string{}, missing.texts()...), luck.texts()
	return r
}

// maxNamed bounds the maps that are named with one reason.
const maxNamed = 5

// reasons are what maps lack, each reason once, in the order in which they came.
type reasons []struct {
	text string
	maps []string
}

func (r *reasons) add(name, text string) {
	for i := range *r {
		if (*r)[i].text == text {
			(*r)[i].maps = append((*r)[i].maps, name)
			return
		}
	}
	*r = append(*r, struct {
		text string
		maps []string
	}{text, []string{name}})
}

func (r reasons) texts() (list []string) {
	for _, each := range r {
		list = append(list, MapNames(each.maps)+": "+each.text)
	}
	return list
}

// MapNames returns the names of maps for people, the first five of many.
func MapNames(maps []string) string {
	names := strings.Join(maps[:min(len(maps), maxNamed)], ", ")
	if more := len(maps) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more maps", more)
	}
	return names
}

// ReadyNow is Ready for whoever decides by it alone: it looks first whether each map
// is still the one that is meant, and not only as often as maps are looked for. A load
// balancer that has made a new map asks it, and is not told that the old one is ready.
func (d *Daemon) ReadyNow() Readiness {
	var missing reasons
	for _, m := range d.replicas() {
		if m.counts() && m.overtaken() {
			missing.add(m.name, "the map has been replaced or has gone, which syncd is about to detect")
		}
	}
	r := d.Ready() // after that: what has been taken up meanwhile is judged as it is
	r.Ready, r.Missing = r.Ready && len(missing) == 0, append(r.Missing, missing.texts()...)
	return r
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (d *Daemon) logReadiness(r *Readiness) {
	switch {
	case !r.Ready:
		d.log.Warn("not ready any more", "missing", strings.Join(r.Missing, "; "))
	case len(r.Unproven) > 0:
		d.log.Warn("ready WITHOUT proof: sync-timeout has passed and on-ready-timeout is open", "missing", strings.Join(r.Unproven, "; "))
	default:
		d.log.Info("ready", "up_seconds", time.Since(d.started).Seconds())
	}
}

// judge looks at the maps that are not ready yet. What is asked of peers must hold
// before a table is looked at: what it holds then is all that they told.
func (d *Daemon) judge() {
	var open []*replica
	for _, m := range d.replicas() {
		if m.undecided() {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return
	}
	peers := d.obstacles()
	for _, m := range open {
		m.judge(peers.of(m.name) == "", peers.text(m.name) == "")
	}
}

// servePeers answers peers once each map that is on this host was read and offered: a
// peer that is told that there is no such map does not wait for it.
func (d *Daemon) servePeers(ctx context.Context) error {
	for _, m := range d.replicas() {
		select {
		case <-m.looked:
		case <-ctx.Done():
			return d.listener.Close()
		}
	}
	err := d.grpc.Serve(d.listener)
	if errors.Is(err, grpc.ErrServerStopped) {
		err = nil // stopped before it began
	}
	return err
}

// publish tells the health service whether the node is ready, and returns that.
func (d *Daemon) publish() Readiness {
	d.healthMu.Lock()
	defer d.healthMu.Unlock()
	r := d.Ready() // under the lock: who drains the node has the last word
	if r.Ready == d.serving {
		return r
	}
	d.serving = r.Ready
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if r.Ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range healthServices {
		d.health.SetServingStatus(service, status)
	}
	return r
}

// healthServices are the names that the health service answers to; the empty one
// stands for the whole server.
var healthServices = []string{"", mapsyncv1.ReplicationService_ServiceDesc.ServiceName}

func newHealth() *health.Server {
	h := health.NewServer()
	for _, service := range healthServices {
		h.SetServingStatus(service, healthv1.HealthCheckResponse_NOT_SERVING)
	}
	return h
}

// readiness returns how far the map is, and what it lacks that is its own business; that
// is empty when it waits for peers alone.
func (m *replica) readiness() (verdict, string) {
	excused := m.excused()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return notReady, m.err.Error()
	case m.state != MapReplicating && m.state != MapSyncing:
		return notReady, string(m.state)
	case m.verdict == proven:
		return proven, ""
	}
	switch s := m.table.Stats(); {
	case s.Failed > 0 && !excused:
		return m.verdict, fmt.Sprintf("%d entries do not go into the kernel map", s.Failed)
	case m.goal != nil:
		if n := m.awaits(excused); n > 0 {
			return m.verdict, fmt.Sprintf("received entries are being written to the kernel map, %d to go", n)
		}
	}
	return m.verdict, ""
}

// overtaken reports whether the kernel map is no longer the one that is meant.
func (m *replica) overtaken() bool {
	m.mu.Lock()
	a := m.kernel
	m.mu.Unlock()
	if a == nil {
		return false // not ready, and says why
	}
	means, err := kmap.Means(m.ref, a.m.Info().ID, m.daemon.pinOwners...)
	return err == nil && !means // what is wrong, the watcher tells
}

// undecided reports whether the map may become ready, and is not yet.
func (m *replica) undecided() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == MapReplicating && m.verdict != proven
}

// underWay reports whether the map is on its way to being ready, or about to be remembered:
// a daemon that is killed before that does not know afterwards what was deleted meanwhile.
func (m *replica) underWay() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.state {
	case MapLoading, MapSyncing:
		return true
	case MapReplicating:
		return m.verdict != proven || !m.remembered && m.daemon.replicator.Stats().Peers > 0 && m.table.Stats().Failed == 0
	}
	return false
}

// judge takes a look at a map that is not ready. complete says that just now every peer
// had told all, and agreed that digests were equal, too. From then on it is the kernel
// map that counts: digests that differ later differ by what is under way.
func (m *replica) judge(complete, agreed bool) {
	excused := m.excused()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != MapReplicating {
		return
	}
	switch {
	case !complete:
		m.forgive(&m.goal)
	case m.goal == nil && agreed:
		m.table.View(func(tx *table.Tx) { m.goal = tx.Owe() })
	}
	switch {
	case m.goal != nil && m.awaits(excused) == 0:
		m.verdict = proven
		m.forgive(&m.goal)
	case m.daemon.config.OnReadyTimeout == config.ReadyOpen && m.daemon.pastSyncTimeout(m.since):
		m.verdict = unproven
	}
}

// excused reports whether entries that do not go into the kernel map are not waited for: a peer
// has more records than the table may hold, so that no map of this size holds all.
func (m *replica) excused() bool { return len(m.daemon.replicator.Limited(m.name)) > 0 }

// awaits returns how many entries are still to be written before the map is ready. The lock is held.
func (m *replica) awaits(excused bool) (n int) {
	m.table.View(func(tx *table.Tx) {
		if n = tx.Owes(m.goal); n > 0 && excused {
			n -= tx.OwesFailed(m.goal)
		}
	})
	return n
}
