package daemon

import (
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// Status is what `syncd status --json` prints. Its names are stable.
type Status struct {
	Node          string        `json:"node"`
	Incarnation   uint64        `json:"incarnation"`
	Version       string        `json:"version"`
	UptimeSeconds float64       `json:"uptime_seconds"`
	Ready         bool          `json:"ready"`
	NotReady      []string      `json:"not_ready"`
	Unproven      []string      `json:"unproven,omitempty"` // ready all the same: see Readiness
	Drained       bool          `json:"drained,omitempty"`
	TLS           bool          `json:"tls"`
	CertExpires   time.Time     `json:"cert_expires,omitzero"`
	GossipProblem string        `json:"gossip_problem,omitempty"`
	Gaps          uint64        `json:"gaps"` // batches that did not follow on the one before
	Capture       CaptureStatus `json:"capture"`
	Maps          []MapStatus   `json:"maps"`
	Peers         []PeerStatus  `json:"peers"`
}

// CaptureStatus is the part of Status about the hooks.
type CaptureStatus struct {
	Attach         string   `json:"attach"`
	Buffer         string   `json:"buffer"`
	Missing        []string `json:"missing_symbols"`
	Events         uint64   `json:"events"`
	Failed         uint64   `json:"failed_writes"`
	Own            uint64   `json:"own_writes"`
	Lost           uint64   `json:"lost"` // the sum of what follows, each loss once
	LostBuffer     uint64   `json:"lost_buffer_full"`
	LostPerf       uint64   `json:"lost_perf"`
	LostNested     uint64   `json:"lost_nested"`
	Gaps           uint64   `json:"sequence_gaps"`
	Skipped        uint64   `json:"skipped_runs"`
	SkippedCounted bool     `json:"skipped_runs_counted"`
	Malformed      uint64   `json:"malformed"`
	// Losses says whether what was lost is repaired.
	Losses LossStatus `json:"losses"`
}

// MapStatus is the part of Status about one map at this node.
type MapStatus struct {
	Name       string   `json:"name"`
	Ref        string   `json:"ref"`
	State      MapState `json:"state"`
	Error      string   `json:"error,omitempty"`
	ID         uint32   `json:"id,omitempty"`
	Read       string   `json:"read,omitempty"`
	Write      string   `json:"write,omitempty"`
	MaxEntries int      `json:"max_entries,omitempty"`

	Live        int    `json:"live"`
	Tombstones  int    `json:"tombstones"`
	Unversioned int    `json:"unversioned"`
	Pending     int    `json:"pending_writes"`
	Failed      int    `json:"failed_writes"`
	Position    uint64 `json:"position"`
	Applied     uint64 `json:"applied"`
	Memory      uint64 `json:"memory_bytes"`

	Scan *ScanStatus `json:"scan,omitempty"`
}

// PeerStatus is the part of Status about one live peer.
type PeerStatus struct {
	Node        string    `json:"node"`
	Incarnation uint64    `json:"incarnation"`
	Address     string    `json:"address"`
	Receiving   bool      `json:"receiving"` // its stream to this node is up
	Sending     bool      `json:"sending"`   // this node's stream to it is up
	Since       time.Time `json:"since,omitzero"`
	Error       string    `json:"error,omitempty"`
	// ClockOffset is how far the peer's clock is ahead of this node's, as measured
	// by messages that take RoundTrip there and back.
	ClockOffset float64         `json:"clock_offset_seconds"`
	RoundTrip   float64         `json:"round_trip_seconds"`
	Maps        []PeerMapStatus `json:"maps"`
}

// PeerMapStatus is one map with one peer. Lag is how far the peer's kernel map is
// behind this node.
type PeerMapStatus struct {
	Name       string  `json:"name"`
	State      string  `json:"state"`
	Error      string  `json:"error,omitempty"`
	CaughtUp   bool    `json:"caught_up"`
	Received   uint64  `json:"received"`
	Sent       uint64  `json:"sent"`
	Acked      uint64  `json:"acked"`
	LagEntries uint64  `json:"lag_entries"`
	LagSeconds float64 `json:"lag_seconds"`
	// Agreed says that this node was last seen to hold what the peer told, when, and up
	// to which of its positions. Divergent is how many entries it did not.
	Agreed         bool      `json:"agreed"`
	AgreedAt       time.Time `json:"agreed_at,omitzero"`
	AgreedPosition uint64    `json:"agreed_position"`
	Divergent      int       `json:"divergent_entries"`
	Incomparable   string    `json:"incomparable,omitempty"` // why
}

// Status returns what an operator wants to know now.
func (d *Daemon) Status() Status {
	s := Status{
		Node: d.self.Node, Incarnation: d.self.Incarnation, Version: d.version,
		UptimeSeconds: time.Since(d.started).Seconds(),
		TLS:           d.credentials.Secure(), CertExpires: d.credentials.Stats().NotAfter,
		Gaps:    d.replicator.Stats().Gaps,
		Capture: d.captureStatus(),
		Maps:    make([]MapStatus, 0, len(d.maps)), Peers: []PeerStatus{},
	}
	r := d.Ready()
	s.Ready, s.NotReady, s.Unproven, s.Drained = r.Ready, r.Missing, r.Unproven, r.Drained
	if err := d.cluster.JoinError(); err != nil {
		s.GossipProblem = err.Error()
	}
	for _, m := range d.maps {
		s.Maps = append(s.Maps, m.status())
	}
	for _, p := range d.replicator.Status() {
		s.Peers = append(s.Peers, peerStatus(&p))
	}
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
	}
}

func (m *replica) status() MapStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MapStatus{Name: m.name, Ref: m.ref.String(), State: m.state}
	if m.err != nil {
		s.Error = m.err.Error()
	}
	if m.kernel != nil {
		info, method := m.kernel.m.Info(), m.kernel.m.Method()
		s.ID, s.Read, s.Write, s.MaxEntries = info.ID, string(method.Read), string(method.Write), info.MaxEntries
		s.Scan = scanStatus(m.kernel.scanner)
	}
	if m.table != nil {
		s.fill(m.table.Stats())
	}
	return s
}

func (s *MapStatus) fill(t table.Stats) {
	s.Live, s.Tombstones, s.Unversioned = t.Live, t.Tombstones, t.Unversioned
	s.Pending, s.Failed = t.Dirty, t.Failed
	s.Position, s.Applied, s.Memory = t.Head, t.Applied, t.MemoryBytes
}

func peerStatus(p *replicate.PeerStatus) PeerStatus {
	s := PeerStatus{
		Node: p.Node, Incarnation: p.Incarnation, Address: p.Addr,
		Receiving: p.Connected, Sending: p.Serving, Since: p.Since, Error: p.Error,
		ClockOffset: p.ClockOffset.Seconds(), RoundTrip: p.RoundTrip.Seconds(),
		Maps: make([]PeerMapStatus, 0, len(p.Maps)),
	}
	for _, m := range p.Maps {
		s.Maps = append(s.Maps, PeerMapStatus{
			Name: m.Name, State: string(m.State), Error: m.Error, CaughtUp: m.CaughtUp,
			Received: m.Received, Sent: m.Sent, Acked: m.Acked,
			LagEntries: m.LagEntries, LagSeconds: m.Lag.Seconds(),
			Agreed: m.Agreed, AgreedAt: m.AgreedAt, AgreedPosition: m.AgreedPosition,
			Divergent: m.Divergent, Incomparable: m.Incomparable,
		})
	}
	return s
}

func (d *Daemon) replica(name string) *replica {
	for _, m := range d.maps {
		if m.name == name {
			return m
		}
	}
	return nil
}

func (d *Daemon) mapNames() []string {
	names := make([]string, len(d.maps))
	for i, m := range d.maps {
		names[i] = m.name
	}
	return names
}
