package daemon

import (
	"mapsync/syncd/kmap"
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
	mapLocal     = desc("map_local_changes_total", "Local changes, by what became of them; refreshed ones are accepted, too.", "map", "outcome")
	mapRemote    = desc("map_remote_changes_total", "Changes from peers, by what became of them; refused has local ones, too.", "map", "outcome")

	scans        = desc("scans_total", "Comparisons of the kernel map with what is known of it: regular ones, and urgent ones for losses and handovers.", "map", "kind")
	scanFailures = desc("scan_failures_total", "Comparisons that ended with an error; they are done again.", "map")
	scanEntries  = desc("scan_entries_total", "Entries of the kernel map that were compared.", "map")
	scanFound    = desc("scan_found_total", "Differences that comparing found; each is made a change, or its key is read again.", "map")
	scanSeconds  = desc("scan_seconds", "Time that the last comparison took.", "map")
	scanInterval = desc("scan_interval_seconds", "Time from one comparison to the next, as the budget allows.", "map")

	peerUp     = desc("peer_connected", "1 when changes of the peer arrive here.", "peer")
	peerServed = desc("peer_served", "1 when changes of this node go to the peer.", "peer")
	peerClock  = desc("peer_clock_offset_seconds", "How far the peer's clock is ahead of this node's, as both were when the daemons started.", "peer")
	peerTrip   = desc("peer_round_trip_seconds", "Time that a message to the peer and its answer took, of the clock sample in use.", "peer")
	lagEntries = desc("peer_lag_entries", "Changes that the peer has not acknowledged yet; 0 without a stream.", "peer", "map")
	lagSeconds = desc("peer_lag_seconds", "Age of the oldest change that the peer has not acknowledged yet; 0 without a stream.", "peer", "map")

	peerAgrees  = desc("digests_agree", "1 when this node was last seen to hold what the peer told; no sample if that cannot be compared.", "peer", "map")
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

	gossipMembers = desc("gossip_members", "Other nodes that live.")
	gossipErrors  = desc("gossip_errors_total", "What went wrong with gossip, by cause.", "cause")
	tlsRefused    = desc("tls_refused_total", "Connections refused, by side and reason.", "side", "reason")
	tlsExpiry     = desc("tls_certificate_expiry_timestamp_seconds", "When this node's certificate ends.")
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
	out.capture(d)
	for _, m := range d.maps {
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
		"restored": st.Restored, "evicted": st.Evictions, "refreshed": st.Refreshed,
	} {
		s.counter(mapLocal, n, m.name, name)
	}
	for name, n := range map[string]uint64{
		"accepted": st.RemoteAccepted, "stale": st.RemoteStale, "conflict": st.RemoteConflictOwn, "refused": st.Refused,
	} {
		s.counter(mapRemote, n, m.name, name)
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

func (s sink) streams(d *Daemon) {
	for _, p := range d.replicator.Status() {
		s.gauge(peerUp, truth(p.Connected), p.Node)
		s.gauge(peerServed, truth(p.Serving), p.Node)
		s.gauge(peerClock, p.ClockOffset.Seconds(), p.Node)
		s.gauge(peerTrip, p.RoundTrip.Seconds(), p.Node)
		for _, m := range p.Maps {
			s.gauge(lagEntries, float64(m.LagEntries), p.Node, m.Name)
			s.gauge(lagSeconds, m.Lag.Seconds(), p.Node, m.Name)
			if m.Incomparable == "" {
				s.gauge(peerAgrees, truth(m.Agreed), p.Node, m.Name)
				s.gauge(divergent, float64(m.Divergent), p.Node, m.Name)
			}
		}
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
	c := d.credentials.Stats()
	for reason, n := range c.AcceptRefused {
		s.counter(tlsRefused, n, "accept", string(reason))
	}
	for reason, n := range c.DialRefused {
		s.counter(tlsRefused, n, "dial", string(reason))
	}
	if !c.NotAfter.IsZero() {
		s.gauge(tlsExpiry, float64(c.NotAfter.Unix()))
	}
	s.counter(tlsReloads, c.ReloadErrors)
}
