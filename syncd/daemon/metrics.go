package daemon

import (
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/replicate"
	"mapsync/syncd/table"

	"github.com/prometheus/client_golang/prometheus"
)

// collector turns the snapshots of all parts into metrics, at each scrape.
type collector struct {
	daemon *Daemon
}

func newCollector(d *Daemon) *collector { return &collector{daemon: d} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("mapsync_"+name, help, labels, nil)
}

// The metrics. docs/runbook.md has a section for each, and a test sees to that.
var (
	buildInfo = desc("build_info", "Always 1; the version is a label.", "version", "node")
	readyInfo = desc("ready", "1 when this node's kernel maps hold what its peers know.")
	readyLuck = desc("ready_unproven", "1 when a map counts as ready only because sync-timeout has passed.")
	drainInfo = desc("drained", "1 when an operator has taken the node out of service.")

	reloadGood  = desc("config_last_reload_successful", "1 when the latest reload of the settings succeeded.")
	reloadTime  = desc("config_last_reload_success_timestamp_seconds", "Time of the latest successful load of the settings.")
	stateSaved  = desc("state_saved", "1 when the state directory holds what a restart of syncd needs.")
	stateErrors = desc("state_errors_total", "Failures to read or write the state file, by operation.", "operation")

	captureEvents    = desc("capture_events_total", "Changes seen by hooks and handed to tables, by who wrote.", "context")
	captureFailed    = desc("capture_failed_writes_total", "Writes to watched maps that came to nothing: map full, key there already, or nothing to delete.")
	captureOwn       = desc("capture_own_writes_total", "Writes to watched maps by this daemon.")
	captureLost      = desc("capture_lost_events_total", "Changes seen by a hook, or missed by it, and not handed on, by cause; perf counts what buffer_full does.", "cause")
	captureGaps      = desc("capture_sequence_gaps_total", "Events that were numbered and never arrived.")
	captureCounted   = desc("capture_skipped_runs_counted", "1 when this kernel counts hook runs that it skipped.")
	captureMalformed = desc("capture_malformed_events_total", "Events that no watched map's layout fits.")
	lossesOpen       = desc("capture_losses_open", "1 while changes were lost that no scan has repaired yet.")
	lossesRepaired   = desc("capture_losses_repaired_total", "Times that scans repaired all losses there were.")

	mapEntries   = desc("map_entries", "Records of a map's table, by state; live has the unversioned among it, pending_write the failed.", "map", "state")
	mapState     = desc("map_state", "1 for the state that the map is in.", "map", "state")
	mapMemory    = desc("map_memory_bytes", "Memory of a map's table.", "map")
	mapHead      = desc("map_position", "Number of the newest change in a map's order.", "map")
	mapApplied   = desc("map_applied_position", "Number of the newest change that the kernel map holds or has refused.", "map")
	mapWrites    = desc("map_kernel_writes_total", "Entries written to the kernel map, by operation.", "map", "operation")
	mapWriteFail = desc("map_kernel_write_failures_total", "Writes that the kernel map refused, by cause; each try counts.", "map", "cause")
	mapConverted = desc("map_conversions_total", "Times that the load balancer's map came back with another layout and the table was converted.", "map")
	mapUnfit     = desc("map_unconverted_entries_total", "Entries left out because they did not fit the new layout of their map.", "map")
	mapRechecks  = desc("map_rechecks_total", "Keys read again from the kernel map: new ones until they settle, and what is in doubt.", "map")
	mapForgotten = desc("map_tombstones_forgotten_total", "Deletes forgotten, by reason: acknowledged by all nodes, end of lifetime, or limit of tombstones.", "map", "reason")
	mapLocal     = desc("map_local_changes_total", "Local changes, by what became of them; refreshed ones are accepted, too.", "map", "outcome")
	mapRemote    = desc("map_remote_changes_total", "Changes from peers, by what became of them; refused has local ones, too.", "map", "outcome")

	scans        = desc("scans_total", "Comparisons of the kernel map with what is known of it: regular ones, and urgent ones for losses and handovers.", "map", "kind")
	scanFailures = desc("scan_failures_total", "Comparisons that ended with an error; they are done again.", "map")
	scanEntries  = desc("scan_entries_total", "Entries of the kernel map that were compared.", "map")
	scanFound    = desc("scan_found_total", "Differences that comparing found; each is made a change, or its key is read again.", "map")
	scanSeconds  = desc("scan_seconds", "Time that the last comparison took.", "map")
	scanInterval = desc("scan_interval_seconds", "Time from one comparison to the next, as the budget allows.", "map")

	redundancyExpected = desc("redundancy_expected", "Peers that expected-peers asks for; 0 when it is not set.")
	redundancyLive     = desc("redundancy_live", "Expected peers with streams in both directions.")
	peerMapState       = desc("peer_map_state", "1 for the state that a map is in with a live peer, by direction.", "peer", "map", "direction", "state")

	peerNotHeld   = desc("peer_unheld_entries", "Entries that the peer reports not to hold: failed do not go into its kernel map, refused cannot be represented there.", "peer", "map", "cause")
	peerDisplaced = desc("peer_displaced_entries_total", "Entries displaced from the peer's full map.", "peer", "map")
	peerLive      = desc("peer_map_live_entries", "Live records of the map at the peer.", "peer", "map")
	peerRoom      = desc("peer_map_max_entries", "Room of the map at the peer; 0 while the peer has no kernel map.", "peer", "map")
	exceptionsOf  = desc("exception_entries", "Entries that are not replicated, by cause: unsent cannot be sent by this node, refused are a peer's and cannot be held here.", "map", "cause")

	peerUp     = desc("peer_connected", "1 when changes of the peer arrive here.", "peer")
	peerServed = desc("peer_served", "1 when changes of this node go to the peer.", "peer")
	peerClock  = desc("peer_clock_offset_seconds", "How far the peer's clock is ahead of this node's, as both were when the daemons started.", "peer")
	clockApart = desc("clock_too_far_ahead_seconds", "How far the clock of one node is ahead of another's where that is more than max-clock-ahead, by the other node and by which one is ahead.", "peer", "ahead")
	peerTrip   = desc("peer_round_trip_seconds", "Time that a message to the peer and its answer took, of the clock sample in use.", "peer")
	lagEntries = desc("peer_lag_entries", "Changes that the peer has not acknowledged yet; 0 without a stream.", "peer", "map")
	lagSeconds = desc("peer_lag_seconds", "Age of the oldest change that the peer has not acknowledged yet; 0 without a stream.", "peer", "map")

	peerAgrees  = desc("digests_agree", "1 when this node was last seen to hold what the peer sent, 0 when not or when that is unknown.", "peer", "map")
	peerUnknown = desc("comparison_unknown", "1 while it is unknown whether this node holds what the peer sent, because they cannot be compared.", "peer", "map")
	divergent   = desc("divergent_entries", "Entries, of those that the peer tells, that this node holds differently; 0 when the digests agree.", "peer", "map")
	digests     = desc("digest_rounds_total", "Comparisons with peers, by what came out; of those that differ most are of changes under way.", "outcome")
	repairs     = desc("repairs_total", "Times that records were told again because they differed.")
	repaired    = desc("repaired_entries_total", "Entries that were put right by that.")
	audits      = desc("map_audits_total", "Times that a map's digests were made anew from its records.", "map")
	auditsFound = desc("map_audit_found_total", "Parts of digests that were not those of the records: memory has changed.", "map")

	streamDeltas    = desc("stream_deltas_total", "Records carried by streams, by direction.", "direction")
	streamBytes     = desc("stream_bytes_total", "Bytes of batches carried by streams, by direction.", "direction")
	streamErrors    = desc("stream_errors_total", "What went wrong with streams, by cause.", "cause")
	streamObservers = desc("stream_observers", "Programs that are no nodes and follow a map here.")
	streamWalks     = desc("stream_walks_total", "Maps that peers subscribed to, to be told from the beginning or from where they were.", "kind")

	connRejected  = desc("connections_rejected_total", "Incoming connections ended by a limit, by listener and limit.", "listener", "reason")
	logHeld       = desc("log_lines_suppressed_total", "Log lines that remote sides caused and that were held back.")
	recRejected   = desc("records_rejected_total", "Records of peers that were not accepted, by reason.", "reason")
	gossipMembers = desc("gossip_members", "Other nodes that live.")
	gossipErrors  = desc("gossip_errors_total", "What went wrong with gossip, by cause.", "cause")
	tlsRefused    = desc("tls_refused_total", "Connections refused, by side and reason.", "side", "reason")
	tlsExpiry     = desc("tls_certificate_expiry_timestamp_seconds", "End of this node's certificate, or of its CA's if that is earlier.")
	tlsStart      = desc("tls_certificate_start_timestamp_seconds", "Begin of the validity of the certificate that ends first.")
	tlsNextUpdate = desc("tls_crl_next_update_timestamp_seconds", "Time at which the first revocation list is out of date.")
	tlsReloads    = desc("tls_reload_errors_total", "Changed certificate files that could not be used.")
)

// Describe sends nothing: the metrics depend on the maps and peers there are.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	out := sink(ch)
	d := c.daemon
	ready := d.Ready()
	out.gauge(buildInfo, 1, d.version, d.self.Node)
	out.gauge(readyInfo, truth(ready.Ready))
	out.gauge(readyLuck, truth(len(ready.Unproven) > 0))
	out.gauge(drainInfo, truth(ready.Drained))
	out.files(d)
	out.capture(d)
	for _, m := range d.replicas() {
		out.replica(m)
	}
	out.streams(d)
	out.transport(d)
}

type sink chan<- prometheus.Metric

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// files sends what is known of the files that the daemon reads and writes.
func (s sink) files(d *Daemon) {
	last, failure := d.lastReload()
	s.gauge(reloadGood, truth(failure == nil))
	s.gauge(reloadTime, float64(last.UnixMilli())/1000)
	st := d.state.stats()
	s.gauge(stateSaved, truth(st.Saved))
	s.counter(stateErrors, st.ReadFailures, "read")
	s.counter(stateErrors, st.WriteErrors, "write")
}

func (s sink) capture(d *Daemon) {
	c := d.capture.Stats()
	for i, n := range c.ByContext {
		s.counter(captureEvents, n, table.Context(i).String())
	}
	s.counter(captureFailed, c.Failed)
	s.counter(captureOwn, c.Own)
	s.counter(captureLost, c.LostReservations, "buffer_full")
	s.counter(captureLost, c.PerfLost, "perf")
	s.counter(captureLost, c.Nested, "nested")
	s.counter(captureLost, c.Skipped, "skipped")
	s.counter(captureGaps, c.SequenceGaps)
	s.gauge(captureCounted, truth(c.SkippedCounted))
	s.counter(captureMalformed, c.Malformed)
	losses := d.lossStatus()
	s.gauge(lossesOpen, truth(losses.Open))
	s.counter(lossesRepaired, losses.Repaired)
}

func (s sink) replica(m *replica) {
	m.mu.Lock()
	state, t := m.state, m.table
	var kernel attachment
	if m.kernel != nil {
		kernel = *m.kernel
	}
	conversions, unconverted := m.conversions, m.unconverted
	m.mu.Unlock()
	for _, each := range []MapState{MapWaiting, MapLoading, MapSyncing, MapReplicating, MapRefused} {
		s.gauge(mapState, truth(each == state), m.name, string(each))
	}
	if t == nil {
		return
	}
	s.counter(mapConverted, conversions, m.name)
	s.counter(mapUnfit, unconverted, m.name)
	st := t.Stats()
	for name, n := range map[string]int{
		"live": st.Live, "tombstone": st.Tombstones, "unversioned": st.Unversioned,
		"pending_write": st.Dirty, "failed_write": st.Failed,
	} {
		s.gauge(mapEntries, float64(n), m.name, name)
	}
	s.counter(audits, st.Audits, m.name)
	s.counter(auditsFound, st.AuditFound, m.name)
	s.gauge(mapMemory, float64(st.MemoryBytes), m.name)
	s.gauge(mapHead, float64(st.Head), m.name)
	s.gauge(mapApplied, float64(st.Applied), m.name)
	for name, n := range map[string]uint64{
		"accepted": st.LocalAccepted, "unchanged": st.LocalUnchanged, "stale": st.LocalStale, "unsettled": st.Unsettled, "unread": st.RereadsDropped,
		"restored": st.Restored, "evicted": st.Evictions, "expired": st.EvictionsExpired, "refreshed": st.Refreshed,
	} {
		s.counter(mapLocal, n, m.name, name)
	}
	for name, n := range map[string]uint64{
		"accepted": st.RemoteAccepted, "stale": st.RemoteStale, "conflict": st.RemoteConflictOwn, "refused": st.Refused,
	} {
		s.counter(mapRemote, n, m.name, name)
	}
	for reason, n := range map[string]uint64{"acknowledged": st.Acknowledged, "lifetime": st.Expired, "limit": st.ExpiredEarly} {
		s.counter(mapForgotten, n, m.name, reason)
	}
	if kernel.syncer != nil {
		s.kernel(m.name, kernel.syncer)
		s.scans(m.name, kernel.scanner)
	}
}

func (s sink) kernel(name string, syncer *kmap.Syncer) {
	st := syncer.Stats()
	s.counter(mapWrites, st.Written, name, "update")
	s.counter(mapWrites, st.Deleted, name, "delete")
	s.counter(mapWrites, st.Displaced, name, "displace")
	for cause, n := range map[string]uint64{
		"full": st.FailedFull, "memory": st.FailedMemory, "busy": st.FailedBusy, "other": st.FailedOther,
	} {
		s.counter(mapWriteFail, n, name, cause)
	}
	s.counter(mapRechecks, st.Rechecks, name)
}

func (s sink) scans(name string, scanner *kmap.Scanner) {
	st := scanner.Stats()
	s.counter(scans, st.Scans-st.Urgent, name, "regular")
	s.counter(scans, st.Urgent, name, "urgent")
	s.counter(scanFailures, st.Failures, name)
	s.counter(scanEntries, st.Entries, name)
	s.counter(scanFound, st.Found, name)
	s.gauge(scanInterval, st.Interval.Seconds(), name)
	if st.Scans > 0 {
		s.gauge(scanSeconds, st.Last.Seconds(), name)
	}
}

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
		s.gauge(peerNotHeld, float64(r.Refused), peer, m.Name, "refused")
		s.counter(peerDisplaced, r.Displaced, peer, m.Name)
		s.gauge(peerLive, float64(r.Live), peer, m.Name)
		s.gauge(peerRoom, float64(r.MaxEntries), peer, m.Name)
	}
	for _, state := range receiveStates {
		s.gauge(peerMapState, truth(state == m.State), peer, m.Name, "receive", string(state))
	}
	for _, state := range sendStates {
		s.gauge(peerMapState, truth(state == m.SendState), peer, m.Name, "send", string(state))
	}
}

func (s sink) streams(d *Daemon) {
	r, _ := d.redundancy(time.Now())
	s.gauge(redundancyExpected, float64(r.Expected))
	s.gauge(redundancyLive, float64(r.Live))
	refused := make(map[string]int)
	for _, m := range d.replicas() {
		count, _ := d.replicator.Unsent(m.name)
		s.gauge(exceptionsOf, float64(count), m.name, "unsent")
		refused[m.name] = 0
	}
	for _, c := range d.clockProblems() {
		side := "peer"
		if c.ahead < 0 {
			side = "self"
		}
		s.gauge(clockApart, c.ahead.Abs().Seconds(), c.node, side)
	}
	for _, p := range d.replicator.Status() {
		s.gauge(peerUp, truth(p.Connected), p.Node)
		s.gauge(peerServed, truth(p.Serving), p.Node)
		s.gauge(peerClock, p.ClockOffset.Seconds(), p.Node)
		s.gauge(peerTrip, p.RoundTrip.Seconds(), p.Node)
		for _, m := range p.Maps {
			s.peerMap(p.Node, &m)
			refused[m.Name] += m.ExceptionCount
			s.gauge(lagEntries, float64(m.LagEntries), p.Node, m.Name)
			s.gauge(lagSeconds, m.Lag.Seconds(), p.Node, m.Name)
			// What is unknown is not proven, and how many entries differ is unknown with it.
			unknown := m.Incomparable != ""
			s.gauge(peerUnknown, truth(unknown), p.Node, m.Name)
			s.gauge(peerAgrees, truth(m.Agreed && !unknown), p.Node, m.Name)
			if !unknown {
				s.gauge(divergent, float64(m.Divergent), p.Node, m.Name)
			}
		}
	}
	for name, count := range refused {
		s.gauge(exceptionsOf, float64(count), name, "refused")
	}
	st := d.replicator.Stats()
	s.counter(streamDeltas, st.Sent.Deltas, "sent")
	s.counter(streamDeltas, st.Received.Deltas, "received")
	s.counter(streamBytes, st.Sent.Bytes, "sent")
	s.counter(streamBytes, st.Received.Bytes, "received")
	for cause, n := range map[string]uint64{
		"connect": st.ConnectErrors, "gap": st.Gaps, "bad_message": st.BadMessages, "bad_request": st.BadRequests,
		"silence": st.Silences, "clock_ahead": st.DeltasAhead, "refused_map": st.MapsRefused, "unfit_map": st.MapsUnfit,
		"refused_delta": st.DeltasRefused - st.DeltasOutOfRange - st.DeltasWithoutLink,
		"out_of_range":  st.DeltasOutOfRange, "no_interface": st.DeltasWithoutLink, "unencodable": st.DeltasUnencodable,
	} {
		s.counter(streamErrors, n, cause)
	}
	s.gauge(streamObservers, float64(st.Observers))
	s.counter(digests, st.Digests-st.DigestsDiffer-st.DigestsImpossible, "agree")
	s.counter(digests, st.DigestsDiffer, "differ")
	s.counter(digests, st.DigestsImpossible, "impossible")
	for reason, n := range d.replicator.Rejected() {
		s.counter(recRejected, n, reason)
	}
	s.counter(repairs, st.Repairs)
	s.counter(repaired, st.Repaired)
	s.counter(streamWalks, st.Walks, "beginning")
	s.counter(streamWalks, st.Resumes, "resumed")
}

func (s sink) transport(d *Daemon) {
	g := d.cluster.Stats()
	s.gauge(gossipMembers, float64(g.Members))
	for cause, n := range map[string]uint64{
		"join": g.JoinFailures, "key_differs": g.KeyDiffers, "peer_plain": g.PeerPlain,
		"peer_encrypted": g.PeerEncrypted, "bad_meta": g.BadMeta, "name_conflict": g.NameConflicts,
	} {
		s.counter(gossipErrors, n, cause)
	}
	for listener, rejected := range map[string]map[string]uint64{
		"gossip": g.Rejected, "grpc": d.limiter.Rejected(), "metrics": d.admin.limiter.Rejected(),
	} {
		for reason, n := range rejected {
			s.counter(connRejected, n, listener, reason)
		}
	}
	c := d.credentials.Stats()
	s.counter(logHeld, d.logLimiter.held()+g.LogsSuppressed+c.LogsSuppressed)
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
