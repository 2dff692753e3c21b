package daemon

import (
	"time"

	"mapsync/peers"
	"mapsync/syncd/replicate"
)

// The states of a map with a peer, by direction.
var (
	receiveStates = []replicate.State{
		replicate.StateWaiting, replicate.StatePending, replicate.StateRefused, replicate.StateFailed, replicate.StateSyncing, replicate.StateCaughtUp, replicate.StateExcluded,
	}
	sendStates = []replicate.State{replicate.StateWaiting, replicate.StatePending, replicate.StateRefused, replicate.StateServed, replicate.StateExcluded}
)

func (s sink) peerMap(peer string, m *replicate.MapStatus) {
	if r := &m.Report; !r.At.IsZero() {
		s.gauge(peerNotHeld, float64(r.Failed), peer, m.Name, "failed")
		s.gauge(peerNotHeld, float64(r.Evicted), peer, m.Name, "evicted")
		s.gauge(peerNotHeld, float64(r.Refused), peer, m.Name, "refused")
		s.counter(peerDisplaced, r.Displaced, peer, m.Name)
		s.gauge(peerLive, float64(r.Live), peer, m.Name)
		s.gauge(peerRoom, float64(r.Kernel.MaxEntries), peer, m.Name)
	}
	for _, state := range receiveStates {
		s.gauge(peerMapState, boolValue(state == m.State), peer, m.Name, "receive", string(state))
	}
	for _, state := range sendStates {
		s.gauge(peerMapState, boolValue(state == m.SendState), peer, m.Name, "send", string(state))
	}
	s.gauge(lagEntries, float64(m.LagEntries), peer, m.Name)
	s.gauge(lagSeconds, m.Lag.Seconds(), peer, m.Name)
	s.counter(peerMapBytes, m.In.Bytes, peer, m.Name, "received")
	s.counter(peerMapBytes, m.Out.Bytes, peer, m.Name, "sent")
	// After an inconclusive comparison, the number of divergent entries is unknown.
	unknown := m.Incomparable != ""
	s.gauge(inconclusive, boolValue(unknown), peer, m.Name)
	s.gauge(deprecatedInconclusive, boolValue(unknown), peer, m.Name)
	s.gauge(peerAgrees, boolValue(m.InSync && !unknown), peer, m.Name)
	if !unknown {
		s.gauge(divergent, float64(m.Divergent), peer, m.Name)
	}
}

func (s sink) streams(d *Daemon) {
	r, _ := d.redundancy(time.Now())
	s.gauge(redundancyExpected, float64(r.Expected))
	s.gauge(redundancyLive, float64(r.Live))
	for _, c := range d.clockProblems() {
		for _, n := range c.clocks {
			s.gauge(clockApart, n.ahead.Seconds(), n.node)
		}
	}
	s.peers(d)
	st := d.replicator.Stats()
	s.deltas(&st)
	for reason, n := range d.replicator.Rejected() {
		s.counter(recRejected, n, reason)
	}
	s.gauge(streamObservers, float64(st.Observers))
	s.counter(digests, st.Digests-st.DigestsDivergent-st.DigestsImpossible, "agree")
	s.counter(digests, st.DigestsDivergent, "divergent")
	s.counter(digests, st.DigestsImpossible, "impossible")
	s.counter(repairs, st.Repairs)
	s.counter(repaired, st.Repaired)
	s.counter(unexplained, st.Unexplained)
	s.counter(streamSyncs, st.FullSyncs, "full")
	s.counter(streamSyncs, st.Resumes, "resumed")
	s.counter(deprecatedStreamSyncs, st.FullSyncs, "beginning")
	s.counter(deprecatedStreamSyncs, st.Resumes, "resumed")
}

// peers adds the state of each peer and of its maps, and the exceptions of each map.
func (s sink) peers(d *Daemon) {
	refused := make(map[string]int)
	for _, m := range d.replicas() {
		count, _ := d.replicator.Unsent(m.name)
		s.gauge(exceptionsOf, float64(count), m.name, "unsent")
		refused[m.name] = 0
	}
	for _, p := range d.replicator.Status() {
		s.gauge(peerUp, boolValue(p.Connected), p.Node)
		s.gauge(peerServed, boolValue(p.Serving), p.Node)
		s.gauge(peerClock, p.ClockOffset.Seconds(), p.Node)
		s.gauge(peerTrip, p.RoundTrip.Seconds(), p.Node)
		for _, m := range p.Maps {
			s.peerMap(p.Node, &m)
			refused[m.Name] += m.ExceptionCount
		}
	}
	for name, count := range refused {
		s.gauge(exceptionsOf, float64(count), name, "refused")
	}
}

// deltas adds the deltas of all streams, and the errors of streams.
func (s sink) deltas(st *replicate.Stats) {
	s.counter(streamDeltas, st.Sent.Deltas, "sent")
	s.counter(streamDeltas, st.Received.Deltas, "received")
	s.counter(streamBytes, st.Sent.Bytes, "sent")
	s.counter(streamBytes, st.Received.Bytes, "received")
	for cause, n := range map[string]uint64{
		"connect": st.ConnectErrors, "gap": st.Gaps, "bad_message": st.BadMessages, "bad_request": st.BadRequests,
		"silence": st.ReceiveTimeouts, "clock_ahead": st.DeltasAhead, "refused_map": st.MapsRefused, "unfit_map": st.MapsIncompatible,
		"refused_delta": st.DeltasRefused - st.DeltasOutOfRange - st.DeltasWithoutInterface,
		"out_of_range":  st.DeltasOutOfRange, "no_interface": st.DeltasWithoutInterface, "unencodable": st.DeltasUnencodable,
	} {
		s.counter(streamErrors, n, cause)
	}
}

func (s sink) transport(d *Daemon) {
	held := d.logLimiter.held()
	rejected := map[string]map[string]uint64{"metrics": d.admin.limiter.Rejected()}
	if !d.config.Standalone() {
		g := d.cluster.Stats()
		s.gossip(&g)
		held += g.LogsSuppressed
		rejected["gossip"], rejected["grpc"] = g.Rejected, d.limiter.Rejected()
		s.networkBytes("gossip", d.cluster.NetworkBytes())
		s.networkBytes("replication", d.streamMeter.Bytes())
	}
	for listener, rejected := range rejected {
		for reason, n := range rejected {
			s.counter(connRejected, n, listener, reason)
		}
	}
	c := d.credentials.Stats()
	s.counter(logHeld, held+c.LogsSuppressed)
	s.credentials(&c)
}

func (s sink) networkBytes(protocol string, b peers.NetworkBytes) {
	s.counter(networkBytes, b.Sent, protocol, "sent")
	s.counter(networkBytes, b.Received, protocol, "received")
}

func (s sink) gossip(g *peers.Stats) {
	s.gauge(gossipMembers, float64(g.Members))
	for cause, n := range map[string]uint64{
		"join": g.JoinFailures, "key_differs": g.KeyDiffers, "peer_plain": g.PeerUnencrypted,
		"peer_encrypted": g.PeerEncrypted, "bad_meta": g.BadMeta, "name_conflict": g.NameConflicts,
	} {
		s.counter(gossipErrors, n, cause)
	}
}

// credentials adds the refusals by TLS and the times of the certificate and of the revocation lists.
func (s sink) credentials(c *peers.CredentialsStats) {
	for reason, n := range c.AcceptRefused {
		s.counter(tlsRefused, n, "accept", string(reason))
	}
	for reason, n := range c.Dropped {
		s.counter(tlsRefused, n, "open", string(reason))
	}
	for reason, n := range c.DialRefused {
		s.counter(tlsRefused, n, "dial", string(reason))
	}
	if !c.NotAfter.IsZero() {
		s.gauge(tlsExpiry, float64(c.NotAfter.Unix()))
		s.gauge(tlsStart, float64(c.NotBefore.Unix()))
	}
	if !c.NextUpdate.IsZero() {
		s.gauge(tlsNextUpdate, float64(c.NextUpdate.Unix()))
	}
	s.counter(tlsReloads, c.ReloadErrors)
}
