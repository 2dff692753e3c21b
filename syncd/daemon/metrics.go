package daemon

import (
	"mapsync/syncd/problem"
	"mapsync/syncd/table"

	"github.com/prometheus/client_golang/prometheus"
)

// collector converts the statistics of all parts to metrics at each scrape.
type collector struct {
	daemon *Daemon
}

func newCollector(d *Daemon) *collector { return &collector{daemon: d} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("mapsync_"+name, help, labels, nil)
}

// The metrics. docs/runbook.md has a section for each metric; a test checks this.
var (
	buildInfo    = desc("build_info", "Always 1; the version is a label.", "version", "node")
	readyInfo    = desc("ready", "1 if this node is ready: its kernel maps hold the records of all live peers.")
	unprovenInfo = desc("ready_unproven", "1 if a map is ready without proof because sync-timeout has passed.")
	drainInfo    = desc("drained", "1 while the node is drained.")

	reloadGood  = desc("config_last_reload_successful", "1 when the latest reload of the settings succeeded.")
	reloadTime  = desc("config_last_reload_success_timestamp_seconds", "Time of the latest successful load of the settings, as a Unix time in seconds.")
	stateSaved  = desc("state_saved", "1 when the state directory holds what a restart of syncd needs.")
	stateErrors = desc("state_errors_total", "Errors of the state file, by operation.", "operation")

	captureEvents    = desc("capture_events_total", "Events captured by hooks and passed to tables, by context of the writer.", "context")
	captureFailed    = desc("capture_failed_writes_total", "Failed writes to watched maps: map full, key exists, or no such key.")
	captureOwn       = desc("capture_own_writes_total", "Writes to watched maps by this daemon.")
	captureLost      = desc("capture_lost_events_total", "Events lost before delivery, by cause; perf counts the same losses as buffer_full.", "cause")
	captureGaps      = desc("capture_sequence_gaps_total", "Events missing in the sequence numbers.")
	captureCounted   = desc("capture_skipped_runs_counted", "1 if this kernel counts skipped hook runs.")
	captureLookups   = desc("capture_lookups_total", "Lookups in maps with in-place: hook, by outcome: reported, or missed by the hook.", "outcome")
	captureMalformed = desc("capture_malformed_events_total", "Events dropped because they do not fit the layout of their map.")
	lossesOpen       = desc("capture_losses_open", "1 while lost events are not repaired by a scan.")
	lossesRepaired   = desc("capture_losses_repaired_total", "Incidents of lost events that scans have repaired.")

	mapEntries     = desc("map_entries", "Records of a map's table, by state; live includes unversioned, pending_write includes failed_write.", "map", "state")
	mapState       = desc("map_state", "1 for the current state of a map, 0 for the others.", "map", "state")
	mapMemory      = desc("map_memory_bytes", "Memory of a map's table, in bytes.", "map")
	mapHead        = desc("map_position", "Position of the newest change of a map.", "map")
	mapApplied     = desc("map_applied_position", "Position up to which the kernel map has received or refused all changes.", "map")
	mapWrites      = desc("map_kernel_writes_total", "Entries written to the kernel map, by operation.", "map", "operation")
	mapWriteFail   = desc("map_kernel_write_failures_total", "Failed writes to the kernel map, by cause; each attempt counts.", "map", "cause")
	mapConverted   = desc("map_conversions_total", "Conversions of a map's table to another layout.", "map")
	mapFormerUsers = desc("map_former_users", "Programs and processes that use a map that the current one has replaced.", "map")
	mapUndetected  = desc("map_undetected_programs", "Programs whose writes to the map only scans find.", "map")
	mapClears      = desc("map_clears_total", "Clears of a map whose deletes were not replicated.", "map")
	mapClear       = desc("map_clear_undecided", "1 while no operator has decided about the latest clear of a map.", "map")
	mapWaiting     = desc("map_deletes_waiting", "Deletes by bpf(2) that wait until they are sent, about 2 seconds.", "map")
	mapUnconverted = desc("map_unconverted_entries_total", "Entries dropped because they do not fit the new layout of their map.", "map")
	mapRereads     = desc("map_rereads_total", "Rereads of keys from the kernel map: new keys until they are stable, and keys with uncertain order.", "map")
	mapForgotten   = desc("map_tombstones_forgotten_total", "Tombstones removed, by reason: acknowledged by all nodes, end of lifetime, or limit of tombstones.", "map", "reason")
	mapLocal       = desc("map_local_changes_total", "Local changes, by outcome; accepted includes refreshed.", "map", "outcome")
	mapRemote      = desc("map_remote_changes_total", "Changes received from peers, by outcome; refused includes local changes.", "map", "outcome")

	metricsUsable = desc("entry_metrics_usable", "1 if the map has the fields of the setting metrics, by first counter.", "map", "counter")

	scans        = desc("scans_total", "Completed scans, by kind: regular, or urgent because of losses and handovers.", "map", "kind")
	scanFailures = desc("scan_failures_total", "Failed scans; each is retried.", "map")
	scanEntries  = desc("scan_entries_total", "Entries of the kernel map read by scans.", "map")
	scanFound    = desc("scan_found_total", "Differences between kernel map and table found by scans.", "map")
	scanSeconds  = desc("scan_seconds", "Duration of the last scan, in seconds.", "map")
	scanInterval = desc("scan_interval_seconds", "Effective time between two scans, in seconds.", "map")

	problemCount = desc("problem", "Problems of this node, by id; each has a section in docs/night.md.", "id", "severity")

	scansPaused = desc("scans_paused", "1 while scans are paused by `syncd scans pause`, else 0.")
	kernelCalls = desc("kernel_call_seconds", "Processor time of each system call that reads or writes maps, or creates the buffer of events or a map of sums, by call, in seconds.", "call")

	redundancyExpected = desc("redundancy_expected", "Peers that expected-peers lists; 0 if it is not set.")
	redundancyLive     = desc("redundancy_live", "Expected peers that can take over all maps of this node now.")
	peerMapState       = desc("peer_map_state", "1 for the current state of a map with a live peer, by direction; 0 for the others.", "peer", "map", "direction", "state")

	peerNotHeld   = desc("peer_unheld_entries", "Entries that the peer does not hold, by cause: no room in its kernel map, evicted from its LRU map, or refused because it cannot represent them.", "peer", "map", "cause")
	peerDisplaced = desc("peer_displaced_entries_total", "Entries displaced from the peer's full map.", "peer", "map")
	peerLive      = desc("peer_map_live_entries", "Live records of the map at the peer.", "peer", "map")
	peerRoom      = desc("peer_map_max_entries", "Maximum number of entries of the map at the peer; 0 while the peer has no kernel map.", "peer", "map")
	exceptionsOf  = desc("exception_entries", "Entries that are not replicated, by cause: unsent entries of this node, or refused entries of a peer.", "map", "cause")

	peerUp     = desc("peer_connected", "1 if the inbound stream from the peer is up.", "peer")
	peerServed = desc("peer_served", "1 if the outbound stream to the peer is up.", "peer")
	peerClock  = desc("peer_clock_offset_seconds", "Offset of the peer's clock from this node's clock when the daemons started, in seconds.", "peer")
	clockApart = desc("clock_apart_seconds", "Clock difference above max-clock-ahead in seconds, by node with a wrong clock.", "node")
	peerTrip   = desc("peer_round_trip_seconds", "Round trip of the clock sample in use, in seconds.", "peer")
	lagEntries = desc("peer_lag_entries", "Changes that the peer has not acknowledged yet; 0 without a stream.", "peer", "map")
	lagSeconds = desc("peer_lag_seconds", "Age of the oldest change that the peer has not acknowledged yet; 0 without a stream.", "peer", "map")

	peerAgrees   = desc("digests_agree", "1 if digests agreed at the last comparison, 0 if they did not or if it was inconclusive.", "peer", "map")
	inconclusive = desc("comparison_inconclusive", "1 while the map cannot be compared with the peer.", "peer", "map")
	divergent    = desc("divergent_entries", "Entries sent by the peer that differ on this node; 0 if the digests agree.", "peer", "map")
	digests      = desc("digest_rounds_total", "Digest comparisons with peers, by outcome; divergent includes changes in flight.", "outcome")
	repairs      = desc("repairs_total", "Repairs: resends of records in divergent buckets.")
	unexplained  = desc("unexplained_repairs_total", "Repairs that did not explain the difference of a peer's digests.")
	repaired     = desc("repaired_entries_total", "Entries corrected by repairs.")
	audits       = desc("map_audits_total", "Audits: recalculations of a map's digests from its records.", "map")
	auditsFound  = desc("map_audit_found_total", "Digest buckets that differed from the records in an audit: corrupt memory or a bug.", "map")

	streamDeltas    = desc("stream_deltas_total", "Records carried by streams, by direction.", "direction")
	streamBytes     = desc("stream_bytes_total", "Bytes of batches carried by streams, by direction.", "direction")
	peerMapBytes    = desc("peer_map_bytes_total", "Bytes of batches exchanged with the peer, by direction, without overhead.", "peer", "map", "direction")
	networkBytes    = desc("network_bytes_total", "Bytes on the network with the headers of TCP, UDP and IP, by protocol: replication with TLS, or gossip.", "protocol", "direction")
	streamErrors    = desc("stream_errors_total", "Errors of streams, by cause.", "cause")
	streamObservers = desc("stream_observers", "Observers that are connected to this node.")
	streamSyncs     = desc("stream_syncs_total", "Outbound map streams started, by kind: full sync or resumed.", "kind")

	connRejected  = desc("connections_rejected_total", "Incoming connections ended by a limit, by listener and limit.", "listener", "reason")
	logHeld       = desc("log_lines_suppressed_total", "Log lines suppressed because their message repeats.")
	recRejected   = desc("records_rejected_total", "Records of peers rejected, by reason.", "reason")
	gossipMembers = desc("gossip_members", "Live gossip members without this node.")
	gossipErrors  = desc("gossip_errors_total", "Errors of gossip, by cause.", "cause")
	tlsRefused    = desc("tls_refused_total", "Connections refused, by side and reason.", "side", "reason")
	tlsExpiry     = desc("tls_certificate_expiry_timestamp_seconds", "Expiry of this node's certificate or of its CA's, the earlier one, as a Unix time in seconds.")
	tlsStart      = desc("tls_certificate_start_timestamp_seconds", "Start of validity of the certificate that expires first, as a Unix time in seconds.")
	tlsNextUpdate = desc("tls_crl_next_update_timestamp_seconds", "Next update of the first revocation list to expire, as a Unix time in seconds.")
	tlsReloads    = desc("tls_reload_errors_total", "Failed reloads of TLS files.")

	// Former names, which exist for one release.
	deprecatedStreamSyncs  = desc("stream_walks_total", "Deprecated: use mapsync_stream_syncs_total.", "kind")
	deprecatedRereads      = desc("map_rechecks_total", "Deprecated: use mapsync_map_rereads_total.", "map")
	deprecatedInconclusive = desc("comparison_unknown", "Deprecated: use mapsync_comparison_inconclusive.", "peer", "map")
)

// Describe sends nothing, because the metrics depend on the current maps and peers.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	out := sink(ch)
	d := c.daemon
	ready := d.Ready()
	out.gauge(buildInfo, 1, d.version, d.self.Node)
	out.gauge(readyInfo, boolValue(ready.Ready))
	out.gauge(unprovenInfo, boolValue(len(ready.Unproven) > 0))
	out.gauge(drainInfo, boolValue(ready.Drained))
	out.gauge(scansPaused, boolValue(!d.scanBudget.PausedUntil().IsZero()))
	out.problems(d.problems.All())
	out.files(d)
	out.capture(d)
	for _, m := range d.replicas() {
		out.replica(m)
	}
	out.kernelCalls()
	out.streams(d)
	out.transport(d)
	out.entryMetrics(d.entryMetrics)
}

type sink chan<- prometheus.Metric

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// problems sends the number of problems of each kind. A kind without problems has a sample with its usual severity.
func (s sink) problems(list []problem.Problem) {
	type sample struct{ id, severity string }
	count := make(map[sample]int)
	for _, k := range problem.Kinds {
		count[sample{k.ID, string(k.Severity)}] = 0
	}
	for i := range list {
		count[sample{list[i].ID, string(list[i].Severity)}]++
	}
	for p, n := range count {
		s.gauge(problemCount, float64(n), p.id, p.severity)
	}
}

// files sends the metrics of the files that the daemon reads and writes.
func (s sink) files(d *Daemon) {
	last, failure := d.lastReload()
	s.gauge(reloadGood, boolValue(failure == nil))
	s.gauge(reloadTime, float64(last.UnixMilli())/1000)
	st := d.state.stats()
	s.gauge(stateSaved, boolValue(st.Saved))
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
	s.gauge(captureCounted, boolValue(c.SkippedCounted))
	s.counter(captureLookups, c.Lookups, "reported")
	s.counter(captureLookups, c.LookupsMissed, "missed")
	s.counter(captureMalformed, c.Malformed)
	losses := d.lossStatus()
	s.gauge(lossesOpen, boolValue(losses.Open))
	s.counter(lossesRepaired, losses.Repaired)
}

func (s sink) replica(m *replica) {
	m.mu.Lock()
	state, t := m.state, m.table
	var kernel attachment
	if m.kernel != nil {
		kernel = *m.kernel
	}
	conversions, unconverted, undetected := m.conversions, m.unconverted, len(m.undetected)
	formerUsers, formerKnown := len(m.former.users), !m.former.unknown
	m.mu.Unlock()
	if formerKnown {
		s.gauge(mapFormerUsers, float64(formerUsers), m.name)
	}
	if m.daemon.programs.known.Load() {
		s.gauge(mapUndetected, float64(undetected), m.name)
	}
	for _, each := range []MapState{MapWaiting, MapLoading, MapSyncing, MapReplicating, MapRefused} {
		s.gauge(mapState, boolValue(each == state), m.name, string(each))
	}
	if t == nil {
		return
	}
	s.counter(mapConverted, conversions, m.name)
	s.counter(mapUnconverted, unconverted, m.name)
	st := t.Stats()
	s.counter(mapClears, st.Clears, m.name)
	s.gauge(mapClear, boolValue(latestClear(t).At != 0), m.name)
	s.gauge(mapWaiting, float64(st.HeldDeletes), m.name)
	s.table(m.name, &st)
	if kernel.syncer != nil {
		s.kernel(m.name, &kernel)
	}
}

// table adds the counters of a map's table.
func (s sink) table(m string, st *table.Stats) {
	for name, n := range map[string]int{
		"live": st.Live, "tombstone": st.Tombstones, "unversioned": st.Unversioned,
		"pending_write": st.Dirty, "failed_write": st.Failed,
	} {
		s.gauge(mapEntries, float64(n), m, name)
	}
	s.counter(audits, st.Audits, m)
	s.counter(auditsFound, st.AuditFound, m)
	s.gauge(mapMemory, float64(st.MemoryBytes), m)
	s.gauge(mapHead, float64(st.Head), m)
	s.gauge(mapApplied, float64(st.Applied), m)
	for name, n := range map[string]uint64{
		"accepted": st.LocalAccepted, "unchanged": st.LocalUnchanged, "stale": st.LocalStale, "unsettled": st.Unsettled, "unread": st.RereadsDropped,
		"restored": st.Restored, "evicted": st.Evictions, "expired": st.EvictionsExpired, "takeover_expired": st.TakeoversExpired, "takeover_used": st.TakeoversUsed, "refreshed": st.Refreshed, "withdrawn": st.Withdrawn,
	} {
		s.counter(mapLocal, n, m, name)
	}
	for name, n := range map[string]uint64{
		"accepted": st.RemoteAccepted, "stale": st.RemoteStale, "conflict": st.RemoteConflictOwn, "refused": st.Refused,
	} {
		s.counter(mapRemote, n, m, name)
	}
	for reason, n := range map[string]uint64{"acknowledged": st.Acknowledged, "lifetime": st.Expired, "limit": st.ExpiredEarly} {
		s.counter(mapForgotten, n, m, reason)
	}
}
