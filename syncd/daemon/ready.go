package daemon

import (
	"context"
	"errors"
	"strings"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Readiness determines whether traffic may come to this node. A map becomes ready once. Before
// that, every live peer must have sent all its records, and the digests must agree over the
// streams that are up. The kernel map must hold the records of that moment. The map stays ready
// until its kernel map disappears, is replaced or is refused. Lag does not end readiness: a slow
// peer or a network partition would otherwise take all nodes out of service at once.
type Readiness struct {
	// Node is the name of the node.
	Node string `json:"node"`
	// Ready reports whether traffic may come.
	Ready bool `json:"ready"`
	// Missing lists why the node is not ready, as text for operators.
	Missing []string `json:"missing"`
	// Unproven lists what is missing although the node is ready, because sync-timeout has passed
	// and on-ready-timeout is open.
	Unproven []string `json:"unproven,omitempty"`
	// Clocks lists the nodes whose clocks differ too much from this node's clock, with the
	// remedy. They do not replicate with this node.
	Clocks []string `json:"clocks,omitempty"`
	// Drained reports whether an operator has taken the node out of service.
	Drained bool `json:"drained,omitempty"`
}

// readyState is how close a map is to being ready.
type readyState uint8

const (
	notReady      readyState = iota
	readyUnproven            // ready without proof, because sync-timeout has passed
	readyConfirmed
)

// Ready returns whether this node's kernel maps hold the records of its peers, and what is
// missing. Each reason appears once, with the maps that it concerns.
func (d *Daemon) Ready() Readiness {
	r := d.mapsReady()
	d.addDrain(&r)
	return r
}

// addDrain adds the state of the drain.
func (d *Daemon) addDrain(r *Readiness) {
	if reason, drained := d.drainReason(); drained {
		r.Ready, r.Drained = false, true
		r.Missing = append(r.Missing, reason)
	}
}

// mapsReady is Ready without the state of the drain.
func (d *Daemon) mapsReady() Readiness {
	r := Readiness{Node: d.self.Node, Ready: true}
	var missing, unproven reasons
	var peers *obstacles // read only if a map needs it
	for _, m := range d.replicas() {
		v, reason := m.readiness()
		if admitted := m.noteReadyState(v); v == readyConfirmed || !admitted {
			continue
		}
		if reason == "" {
			if peers == nil {
				peers = d.obstacles()
			}
			reason = orElse(peers.reason(m.name), "the last check is under way")
		}
		if v == readyUnproven {
			unproven.add(m.name, reason)
			continue
		}
		r.Ready = false
		missing.add(m.name, reason)
	}
	for _, c := range d.clockProblems() {
		r.Clocks = append(r.Clocks, c.text())
	}
	r.Missing, r.Unproven = append([]string{}, missing.texts()...), unproven.texts()
	return r
}

// ReadyNow is Ready for callers that decide on traffic. It first checks whether each map is still
// the kernel map that its reference means, because the watcher only checks that at intervals. A
// load balancer that has just made a new map therefore does not receive the readiness of the old
// map.
func (d *Daemon) ReadyNow() Readiness {
	var missing reasons
	for _, m := range d.replicas() {
		if m.countsForReadiness() && m.mapReplaced() {
			missing.add(m.name, "the kernel map was replaced or removed, and syncd has not attached its successor yet")
		}
	}
	r := d.Ready() // after the check, so that a map attached meanwhile counts with its new state
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
		d.log.Warn("no longer ready", "missing", strings.Join(r.Missing, "; "),
			"hint", "see `syncd status`, and docs/night.md#not-ready")
	case len(r.Unproven) > 0:
		d.log.Warn("ready without proof, sync-timeout has passed", "missing", strings.Join(r.Unproven, "; "),
			"hint", "restore the stream to these peers; to prevent this state: on-ready-timeout: closed")
	default:
		d.log.Info("ready", "up_seconds", time.Since(d.started).Seconds())
	}
}

// checkReadiness updates the maps that are not ready yet. It reads the state of peers before the
// tables, so that a table contains all records that the peers had sent.
func (d *Daemon) checkReadiness() {
	var open []*replica
	for _, m := range d.replicas() {
		if m.mayBecomeReady() {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return
	}
	peers := d.obstacles()
	for _, m := range open {
		m.checkReadiness(peers.syncReason(m.name) == "", peers.reason(m.name) == "")
	}
}

// servePeers serves peers after each map of this host was read and offered. A peer does not wait
// for a map if it receives the answer that the map does not exist.
func (d *Daemon) servePeers(ctx context.Context) error {
	for _, m := range d.replicas() {
		select {
		case <-m.firstRead:
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

// publish sets the readiness in the health service, and returns it.
func (d *Daemon) publish() Readiness {
	d.healthMu.Lock()
	defer d.healthMu.Unlock()
	r := d.mapsReady() // under the lock, so that an older state cannot overwrite a drain
	d.holdDeletes(!r.Ready || len(r.Unproven) > 0)
	d.addDrain(&r)
	d.nodeState.Store(int32(r.state()))
	if r.Ready == d.healthServing {
		return r
	}
	d.healthServing = r.Ready
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if r.Ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range healthServices {
		d.health.SetServingStatus(service, status)
	}
	return r
}

// state returns the state that peers receive.
func (r *Readiness) state() replicate.NodeState {
	switch {
	case r.Drained:
		return replicate.NodeStateDrained
	case r.Ready:
		return replicate.NodeStateReady
	}
	return replicate.NodeStateNotReady
}

// healthServices are the service names of the health service. The empty name is the whole server.
var healthServices = []string{"", mapsyncv1.ReplicationService_ServiceDesc.ServiceName}

func newHealth() *health.Server {
	h := health.NewServer()
	for _, service := range healthServices {
		h.SetServingStatus(service, healthv1.HealthCheckResponse_NOT_SERVING)
	}
	return h
}
