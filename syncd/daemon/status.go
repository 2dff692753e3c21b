package daemon

import (
	"slices"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/problem"
	"mapsync/syncd/replicate"
)

// Status is the output of `syncd status --json`. Its field names are stable.
type Status struct {
	Node          string    `json:"node"`
	Incarnation   uint64    `json:"incarnation,string"`
	Version       string    `json:"version"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	Ready         bool      `json:"ready"`
	NotReady      []string  `json:"not_ready"`
	Unproven      []string  `json:"unproven,omitempty"` // the node is ready nevertheless: see Readiness
	Drained       bool      `json:"drained,omitempty"`
	DrainedSince  time.Time `json:"drained_since,omitzero"`
	Standalone    bool      `json:"standalone"` // no port for peers is open
	TLS           bool      `json:"tls"`
	CertExpires   time.Time `json:"cert_expires,omitzero"`
	GossipProblem string    `json:"gossip_problem,omitempty"`
	// ClockProblems lists nodes whose clocks differ too much from this node's clock: see
	// Readiness.
	ClockProblems []string `json:"clock_problems,omitempty"`
	clockNodes    []string // the nodes of each of ClockProblems, separated by commas
	// StateProblem is why the state file is not saved, StateUnread why it was not read at the start, SettingsProblem why the latest
	// reload of the settings failed, and TLSProblem why changed TLS files are not in use. FileProblems are other problems of TLS files.
	StateProblem    string        `json:"state_problem,omitempty"`
	StateUnread     string        `json:"state_unread,omitempty"`
	StateDir        string        `json:"state_dir"`
	SettingsProblem string        `json:"settings_problem,omitempty"`
	NeedsRestart    []string      `json:"needs_restart,omitempty"` // changed settings that are not in use
	TLSProblem      string        `json:"tls_problem,omitempty"`
	FileProblems    []FileProblem `json:"file_problems,omitempty"`
	Gaps            uint64        `json:"gaps"` // batches received out of sequence
	Capture         CaptureStatus `json:"capture"`
	// ScansPausedUntil is the end of a pause of scans. Zero: they are not paused.
	ScansPausedUntil time.Time    `json:"scans_paused_until,omitzero"`
	Maps             []MapStatus  `json:"maps"`
	Peers            []PeerStatus `json:"peers"`
	Cluster          string       `json:"cluster,omitempty"`
	Redundancy       Redundancy   `json:"redundancy"`
	// Absent lists the nodes that are expected, or were peers, and are not live.
	Absent []AbsentPeer `json:"absent_peers"`
	// Unverified lists the members of gossip that are not peers, because no stream has proved
	// their name.
	Unverified []UnverifiedNode `json:"unverified_nodes,omitempty"`
	// Observers lists the programs that receive maps and replicate nothing back.
	Observers []ObserverStatus `json:"observers,omitempty"`
	// Problems are the problems of the node, the most severe ones first.
	Problems []problem.Problem `json:"problems"`
}

// UnverifiedNode is a member of gossip that is not a peer, with the reason.
type UnverifiedNode struct {
	Node    string `json:"node"`
	Address string `json:"address"`
	Error   string `json:"error"`
	// OtherCluster reports that the node belongs to another cluster.
	OtherCluster bool `json:"other_cluster,omitempty"`
}

// maxUnverified is the maximum number of unverified nodes that are listed.
const maxUnverified = 16

// ObserverStatus is the part of Status about one observer stream.
type ObserverStatus struct {
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
	Maps    []string  `json:"maps"`
}

// CaptureStatus is the part of Status about the hooks.
type CaptureStatus struct {
	Attach         string   `json:"attach"`
	Buffer         string   `json:"buffer"`
	Missing        []string `json:"missing_symbols"`
	Events         uint64   `json:"events"`
	Failed         uint64   `json:"failed_writes"`
	Own            uint64   `json:"own_writes"`
	Lost           uint64   `json:"lost"` // sum of the losses below, each loss counted once
	LostBuffer     uint64   `json:"lost_buffer_full"`
	LostPerf       uint64   `json:"lost_perf"`
	LostNested     uint64   `json:"lost_nested"`
	Gaps           uint64   `json:"sequence_gaps"`
	Skipped        uint64   `json:"skipped_runs"`
	SkippedCounted bool     `json:"skipped_runs_counted"`
	Malformed      uint64   `json:"malformed"`
	Lookups        uint64   `json:"lookups"`        // reported by the hook on lookups
	LookupsMissed  uint64   `json:"lookups_missed"` // scans find changes in place after them
	// Losses is the state of the repair of losses.
	Losses LossStatus `json:"losses"`
}

// MapStatus is the part of Status about one map at this node.
type MapStatus struct {
	Name    string   `json:"name"`
	Ref     string   `json:"ref"`
	State   MapState `json:"state"`
	Error   string   `json:"error,omitempty"`
	Waiting string   `json:"waiting,omitempty"` // why the map does not exist, in the state waiting
	// Optional reports in the state waiting whether the node is ready without the map.
	Optional bool `json:"optional,omitempty"`
	// NoFileSystem is true in the state waiting if the path of the pin is not in a BPF file system.
	NoFileSystem bool   `json:"no_bpf_file_system,omitempty"`
	Type         string `json:"type,omitempty"`  // of the kernel map: hash, lru_hash or array
	Flags        uint32 `json:"flags,omitempty"` // BPF_F_ flags of the kernel map
	ID           uint32 `json:"id,omitempty"`
	Read         string `json:"read,omitempty"`
	Write        string `json:"write,omitempty"`
	InPlace      string `json:"in_place,omitempty"` // how changes in place are found: hook or scan
	Deletes      string `json:"deletes,omitempty"`  // which deletes by bpf(2) replicate: any or owner
	Clears       string `json:"clears,omitempty"`   // what happens to a clear of the map: hold or replicate
	MaxEntries   int    `json:"max_entries,omitempty"`

	// Clear is the latest clear of the map, until an operator decides about it.
	Clear *ClearStatus `json:"clear,omitempty"`

	// InPlaceProblem is why the setting in-place: hook has no effect.
	InPlaceProblem string `json:"in_place_problem,omitempty"`
	// MetricsProblem is why the setting metrics has no effect.
	MetricsProblem string `json:"metrics_problem,omitempty"`

	Live        int       `json:"live"`
	Tombstones  int       `json:"tombstones"`
	Unversioned int       `json:"unversioned"`
	Pending     int       `json:"pending_writes"`
	Failed      int       `json:"failed_writes"`
	Paused      time.Time `json:"paused_since,omitzero"`        // since when replication is paused: `syncd pause`
	LastFailure string    `json:"last_write_failure,omitempty"` // cause of the latest failed write: full, memory, busy, id or other
	Position    uint64    `json:"position"`
	Applied     uint64    `json:"applied"`
	Memory      uint64    `json:"memory_bytes"`

	// Unsent is the number of entries that cannot be sent to any peer. Exceptions lists some of
	// them.
	Unsent     int         `json:"unsent_entries"`
	Exceptions []Exception `json:"exceptions,omitempty"`

	// FieldRoles are roles that fields seem to need, according to this node's entries.
	FieldRoles []FieldRole `json:"field_roles,omitempty"`

	// References are the maps that say what the ids in entries mean.
	References []ReferenceStatus `json:"references,omitempty"`

	// SumFields are the fields of the value with the role sum.
	SumFields []string `json:"sum_fields,omitempty"`

	// UndetectedPrograms are programs whose writes only scans find, with type and id.
	// UndetectedProblem is why they are not known at present.
	UndetectedPrograms []string `json:"undetected_programs,omitempty"`
	UndetectedProblem  string   `json:"undetected_programs_problem,omitempty"`
	// FormerUsers are programs and processes that use a kernel map that the current one has replaced. Their changes do not reach
	// peers.
	FormerUsers []string `json:"former_map_users,omitempty"`
	// FormerUsersUnknown reports that the users of former maps cannot be listed.
	FormerUsersUnknown bool `json:"former_map_users_unknown,omitempty"`
	// AboveLimit has the number of records by live peer that did not enter the table, because of max-records-factor.
	AboveLimit map[string]int `json:"records_above_limit,omitempty"`

	Scan *ScanStatus `json:"scan,omitempty"`

	DrainSums *DrainSumsStatus `json:"drain_sums,omitempty"`
}

// Exception is an entry that one node cannot send, or that another node cannot hold.
type Exception struct {
	Entry  string `json:"entry"` // its key as text
	Reason string `json:"reason"`
}

// PeerStatus is the part of Status about one live peer.
type PeerStatus struct {
	Node        string    `json:"node"`
	Incarnation uint64    `json:"incarnation,string"`
	Address     string    `json:"address"`
	Receiving   bool      `json:"receiving"` // the inbound stream is up
	Sending     bool      `json:"sending"`   // the outbound stream is up
	Since       time.Time `json:"since,omitzero"`
	LastContact time.Time `json:"last_contact,omitzero"` // time of its last message
	Error       string    `json:"error,omitempty"`
	// ProtocolVersion is the version of the protocol that both nodes chose for the last inbound
	// stream; absent: there was none.
	ProtocolVersion uint32 `json:"protocol_version,omitempty"`
	// Release is the release of syncd on the peer; absent: an older one, which does not state it.
	Release string `json:"release,omitempty"`
	// ClockOffset is how far the peer's clock is ahead of this node's clock, measured with
	// messages. RoundTrip is the round trip time of these messages.
	ClockOffset float64         `json:"clock_offset_seconds"`
	RoundTrip   float64         `json:"round_trip_seconds"`
	Maps        []PeerMapStatus `json:"maps"`
}

// PeerMapStatus is one map with one peer. Lag is how far the peer's kernel map is behind this
// node.
type PeerMapStatus struct {
	Name       string  `json:"name"`
	State      string  `json:"state"`      // of the inbound map stream
	SendState  string  `json:"send_state"` // of the outbound map stream
	Error      string  `json:"error,omitempty"`
	CaughtUp   bool    `json:"caught_up"`
	Received   uint64  `json:"received"`
	Sent       uint64  `json:"sent"`
	Acked      uint64  `json:"acked"`
	LagEntries uint64  `json:"lag_entries"`
	LagSeconds float64 `json:"lag_seconds"`
	// Agreed reports whether the last digest comparison showed that this node held the peer's
	// records. AgreedAt is the time of the last agreement. AgreedPosition is the peer's position
	// up to which it held. Divergent is the number of entries that differ.
	Agreed         bool      `json:"agreed"`
	AgreedAt       time.Time `json:"agreed_at,omitzero"`
	AgreedPosition uint64    `json:"agreed_position"`
	Divergent      int       `json:"divergent_entries"`
	Incomparable   string    `json:"incomparable,omitempty"` // why the comparison is impossible
	// FalseDigests reports whether the digests of the peer stay different although repairs find no reason.
	FalseDigests bool `json:"false_digests,omitempty"`
	// FallbackSender reports whether this node requests orphaned records from the peer. Via is
	// the peer that sends this peer's records, because nothing is received from it.
	FallbackSender bool   `json:"fallback_sender,omitempty"`
	Via            string `json:"via,omitempty"`
	// Refused is the number of entries of the peer that this node cannot hold. Exceptions lists
	// some of them. They count neither as divergent nor for readiness. PeerUnsent is the number
	// of entries that the peer cannot send.
	Refused    int         `json:"refused_entries"`
	Exceptions []Exception `json:"exceptions,omitempty"`
	PeerUnsent int         `json:"peer_unsent_entries"`
	// Report is the peer's report on its copy of the map; absent: it has not reported.
	Report *PeerReport `json:"report,omitempty"`
}

// PeerReport is a peer's report on its copy of a map.
type PeerReport struct {
	At         time.Time   `json:"at"`
	Live       uint64      `json:"live"`
	MaxEntries int         `json:"max_entries"`       // of its kernel map; 0: there is none
	Type       string      `json:"type,omitempty"`    // of its kernel map: hash, lru_hash or array
	Flags      uint32      `json:"flags,omitempty"`   // BPF_F_ flags of its kernel map
	State      string      `json:"state,omitempty"`   // of the peer: ready, not_ready or drained; absent: unknown
	Failed     uint64      `json:"failed_writes"`     // entries of this node that its kernel map has no room for, or refuses
	Evicted    uint64      `json:"evicted_entries"`   // entries of this node that its LRU map has evicted
	FailedAll  uint64      `json:"failed_writes_all"` // like Failed, of the entries of all nodes
	Displaced  uint64      `json:"displaced_entries"` // entries that newer ones ever displaced from it
	Refused    uint64      `json:"refused_entries"`   // entries of this node that it cannot hold
	Exceptions []Exception `json:"exceptions,omitempty"`
}

// NotHeld returns the number of entries that the peer does not hold.
func (r *PeerReport) NotHeld() uint64 { return r.Failed + r.Evicted + r.Refused }

// Status returns the current status of the node for operators.
func (d *Daemon) Status() Status {
	s := Status{
		Node: d.self.Node, Incarnation: d.self.Incarnation, Version: d.version,
		UptimeSeconds: time.Since(d.started).Seconds(),
		TLS:           d.credentials.Secure(), CertExpires: d.credentials.Stats().NotAfter,
		Gaps:    d.replicator.Stats().Gaps,
		Capture: d.captureStatus(),
		Maps:    make([]MapStatus, 0, len(d.replicas())), Peers: []PeerStatus{},
	}
	s.Cluster = d.config.Cluster
	s.Redundancy, s.Absent = d.redundancy(time.Now())
	r := d.Ready()
	s.Ready, s.NotReady, s.Unproven, s.Drained = r.Ready, r.Missing, r.Unproven, r.Drained
	for _, c := range d.clockProblems() {
		s.ClockProblems, s.clockNodes = append(s.ClockProblems, c.text()), append(s.clockNodes, c.nodes())
	}
	if s.Drained {
		s.DrainedSince = d.Handover().Since
	}
	d.fillFiles(&s)
	s.ScansPausedUntil = d.scanBudget.PausedUntil()
	if s.Standalone = d.config.Standalone(); !s.Standalone {
		s.GossipProblem = d.gossipProblem()
	}
	for _, m := range d.replicas() {
		st := m.status()
		count, list := d.replicator.Unsent(m.name)
		st.Unsent, st.Exceptions, st.AboveLimit = count, exceptions(list), d.replicator.PeersAboveLimit(m.name)
		s.Maps = append(s.Maps, st)
	}
	for _, u := range d.replicator.Unverified(maxUnverified) {
		s.Unverified = append(s.Unverified, UnverifiedNode{Node: u.Node, Address: u.Addr, Error: u.Error, OtherCluster: u.OtherCluster})
	}
	for _, o := range d.replicator.Observers() {
		s.Observers = append(s.Observers, ObserverStatus{Name: o.Name, Address: o.Addr, Since: o.Since, Maps: o.Maps})
	}
	for _, p := range d.replicator.Status() {
		s.Peers = append(s.Peers, peerStatus(&p))
	}
	d.problems.Set(s.StateProblems(), time.Now(), d.starting())
	s.Problems = d.problems.All()
	return s
}

func (d *Daemon) captureStatus() CaptureStatus {
	c := d.capture
	s := c.Stats()
	return CaptureStatus{
		Losses: d.lossStatus(),
		Attach: string(c.Attached()), Buffer: d.config.Buffer, Missing: append([]string{}, c.Missing()...),
		Events: s.Events, Failed: s.Failed, Own: s.Own, Lost: s.Lost(),
		LostBuffer: s.LostReservations, LostPerf: s.PerfLost, LostNested: s.Nested, Gaps: s.SequenceGaps,
		Skipped: s.Skipped, SkippedCounted: s.SkippedCounted, Malformed: s.Malformed,
		Lookups: s.Lookups, LookupsMissed: s.LookupsMissed,
	}
}

func (m *replica) status() MapStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MapStatus{Name: m.name, Ref: m.ref.String(), State: m.state, Deletes: config.DeletesOwner, Clears: m.clears()}
	s.UndetectedPrograms, s.UndetectedProblem = slices.Clone(m.undetected), m.daemon.programsProblem()
	s.FormerUsers, s.FormerUsersUnknown = slices.Clone(m.former.users), m.former.unknown
	if m.daemon.config.DeletesAny(m.name) {
		s.Deletes = config.DeletesAny
	}
	if m.err != nil {
		s.Error = m.err.Error()
	}
	s.Paused = m.pausedSince()
	s.MetricsProblem = m.metricsProblem()
	s.FieldRoles = m.fieldRolesStatus()
	if m.state == MapWaiting {
		s.Waiting, s.NoFileSystem, s.Optional = m.ref.Absence(), m.ref.MissingFileSystem() != "", m.daemon.config.IsOptional(m.name)
	}
	if m.kernel != nil {
		info, method := m.kernel.m.Info(), m.kernel.m.AccessMethods()
		s.ID, s.Read, s.Write, s.MaxEntries = m.kernel.source, string(method.Read), string(method.Write), info.MaxEntries
		s.InPlace, s.Scan = m.kernel.inPlace(), scanStatus(m.kernel.scanner)
		described := describeKernel(&info)
		s.Type, s.Flags = mapTypeName(described.Type), described.Flags
		if m.kernel.syncer != nil {
			s.LastFailure = m.kernel.syncer.Stats().LastFailure
		}
		if err := m.kernel.inPlaceErr; err != nil {
			s.InPlaceProblem = err.Error()
		}
	}
	if m.kernel != nil && m.kernel.drainSums != nil {
		s.DrainSums = m.kernel.drainSums.status()
	}
	if m.table != nil {
		s.fill(m.table.Stats())
		s.Clear = clearStatus(latestClear(m.table))
		s.SumFields = m.schema.SumFields()
		s.References = m.daemon.references.status(m.schema)
	}
	return s
}

func peerStatus(p *replicate.PeerStatus) PeerStatus {
	s := PeerStatus{
		Node: p.Node, Incarnation: p.Incarnation, Address: p.Addr,
		Receiving: p.Connected, Sending: p.Serving, Since: p.Since, LastContact: p.LastContact, Error: p.Error,
		ProtocolVersion: p.ProtocolVersion, Release: p.Release,
		ClockOffset: p.ClockOffset.Seconds(), RoundTrip: p.RoundTrip.Seconds(),
		Maps: make([]PeerMapStatus, 0, len(p.Maps)),
	}
	for _, m := range p.Maps {
		s.Maps = append(s.Maps, PeerMapStatus{
			Name: m.Name, State: string(m.State), SendState: string(m.SendState), Error: m.Error, CaughtUp: m.CaughtUp,
			Received: m.Received, Sent: m.Sent, Acked: m.Acked,
			LagEntries: m.LagEntries, LagSeconds: m.Lag.Seconds(),
			Agreed: m.InSync, AgreedAt: m.InSyncAt, AgreedPosition: m.InSyncPosition,
			Divergent: m.Divergent, Incomparable: m.Incomparable, FalseDigests: m.FalseDigests,
			FallbackSender: m.FallbackSender, Via: m.Via,
			Refused: m.ExceptionCount, Exceptions: exceptions(m.Exceptions), PeerUnsent: m.Unsent, Report: peerReport(&m.Report),
		})
	}
	return s
}

func peerReport(r *replicate.Report) *PeerReport {
	if r.At.IsZero() {
		return nil
	}
	return &PeerReport{
		At: r.At, Live: r.Live, MaxEntries: r.Kernel.MaxEntries, Type: mapTypeName(r.Kernel.Type), Flags: r.Kernel.Flags,
		State: nodeStateName(r.State), Failed: r.Failed, Evicted: r.Evicted, FailedAll: r.FailedOfAll, Displaced: r.Displaced,
		Refused: r.Refused, Exceptions: exceptions(r.Exceptions),
	}
}

func (d *Daemon) replica(name string) *replica {
	for _, m := range d.replicas() {
		if m.name == name {
			return m
		}
	}
	return nil
}

func (d *Daemon) mapNames() []string { return namesOf(d.replicas()) }
