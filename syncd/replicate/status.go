package replicate

import (
	"cmp"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// State is the state of a map with a peer.
type State string

// The states.
const (
	// StateWaiting: the peer has not answered the subscription yet, or is unreachable.
	StateWaiting State = "waiting"
	// StatePending: the map does not exist at the peer yet.
	StatePending State = "pending"
	// StateRefused: one side refused the map, because of its schema or of access.
	StateRefused State = "refused"
	// StateExcluded: the settings exclude the map. On the receiving side, write-from does not list the
	// peer. On the sending side, the peer may not read the map or does not accept this node's records.
	StateExcluded State = "excluded"
	// StateFailed: the map had an error and is subscribed to again later.
	StateFailed State = "failed"
	// StateSyncing: the peer has more to send.
	StateSyncing State = "syncing"
	// StateCaughtUp: the peer has sent everything.
	StateCaughtUp State = "caught_up"
	// StateServed: the map is sent to the peer.
	StateServed State = "served"
)

// PeerStatus is the state of replication with one live peer.
type PeerStatus struct {
	// Peer is the peer and its current address.
	Peer
	// Connected reports that the stream from the peer is established.
	Connected bool
	// Since is when the stream was established if Connected is set, else when the last one ended. Never zero.
	Since time.Time
	// Error is why the last stream from the peer ended; empty: no error.
	Error string
	// LastContact is when the last message of this incarnation of the peer arrived, by the clock of
	// time.Now; zero: never.
	LastContact time.Time
	// ProtocolVersion is the version of the protocol of the last stream from the peer; 0: there was
	// none.
	ProtocolVersion uint32
	// Release is the release of the peer, as it states it; empty: unknown.
	Release string
	// Serving reports that the peer has a stream from this node.
	Serving bool
	// ClockOffset is the peer's clock minus this node's clock, with an error of up to half of
	// RoundTrip, the round trip of the measurement. Both are zero before the first measurement.
	ClockOffset, RoundTrip time.Duration
	// Maps are this node's maps, ordered by name.
	Maps []MapStatus
}

// MapStatus is the state of one map with one peer. Positions are those of the sending table: the
// peer's table for what is received, this node's table for what is sent.
type MapStatus struct {
	// Name is the map's name.
	Name string
	// State is the state on the receiving side. StateServed is not among them.
	State State
	// Error is the last error of the map on the receiving side; empty: none.
	Error string
	// CaughtUp reports that everything was received from the peer at least once.
	CaughtUp bool
	// Received is the position merged into the table. Applied is the last acknowledged position:
	// the kernel map holds everything up to it.
	Received, Applied uint64
	// In counts what was received.
	In Traffic
	// DeltasAccepted counts the deltas that changed the table, DeltasRefused those that were set aside. Deltas that
	// are not newer than the record, or that the peer may not send, count in neither.
	DeltasAccepted, DeltasRefused uint64
	// InSync reports that the digests of this node and the peer have agreed, and that no later repair,
	// full sync or failed comparison has invalidated that.
	InSync bool
	// InSyncAt is when the digests last agreed; zero: never. It stays when InSync is cleared.
	InSyncAt time.Time
	// InSyncPosition is the position of the peer at InSyncAt.
	InSyncPosition uint64
	// FalseDigests reports that the digests of the peer stay different although repairs find no reason.
	FalseDigests bool
	// Divergent is the number of entries that differ from those that the peer sends. It is 0 if the
	// digests agree, else the number found by the last repair.
	Divergent int
	// Exceptions are entries of the peer that this node cannot hold, not necessarily all.
	Exceptions []Exception
	// ExceptionCount is the number of all entries of the peer that this node cannot hold. Unsent is the number of entries
	// that the peer reports as not encodable.
	ExceptionCount, Unsent int
	// Incomparable is why the map cannot be compared with the peer's; empty: it can.
	Incomparable string
	// FallbackSender reports that this node requests orphaned records from the peer, because the
	// peer started first among the nodes from which this node receives the map.
	FallbackSender bool
	// Via is the peer that sends this peer's records because nothing is received from it; empty: none.
	Via string

	// Serving reports that the peer receives the map from this node.
	Serving bool
	// SendState is the state on the sending side: StateWaiting, StatePending, StateRefused, StateExcluded or StateServed.
	SendState State
	// Reporting reports that the peer sends reports.
	Reporting bool
	// Report is the last report of the peer. It is zero if none has arrived.
	Report Report
	// Out counts what was sent to the peer.
	Out Traffic
	// Sent is the position sent to the peer. Acked is the position that the peer has acknowledged:
	// its kernel map holds everything up to it.
	Sent, Acked uint64
	// Records is the number of this node's live records. A peer that holds all of them loses none in a failover.
	Records uint64
	// LagEntries is the number of changes since Acked. Changes that are not sent to the peer count
	// until the peer has acknowledged a later position.
	LagEntries uint64
	// Lag is the age of the oldest change since Acked, with a resolution of 250 ms.
	Lag time.Duration
}

// Status returns the state of replication with each live peer, ordered by name.
//
// The parts belong to slightly different moments, because each stream is read under its own lock.
// The caller owns the result.
func (r *Replicator) Status() []PeerStatus {
	r.mu.Lock()
	// The streams are collected under the lock and read afterwards, because the lock of an outbound
	// stream is never taken while r.mu is held.
	links := make([]*inboundStream, 0, len(r.inboundStreams))
	for node := range r.view.Load().live {
		links = append(links, r.inboundStreams[node])
	}
	sessions := make(map[table.Owner]*outboundStream, len(r.outboundStreams))
	for s := range r.outboundStreams {
		if s.observing.Load() {
			continue
		}
		// A stream without subscriptions, which only verifies this node, is not the stream of the peer.
		if o := sessions[s.target]; o == nil || s.subscribed.Load() && (!o.subscribed.Load() || o.startedAt.Before(s.startedAt)) {
			sessions[s.target] = s
		}
	}
	r.mu.Unlock()

	now := time.Now()
	// A peer has the status of the receiving side even without an outbound stream.
	all := make([]PeerStatus, 0, len(links))
	for _, inbound := range links {
		st := inbound.status(r.localMaps())
		if s := sessions[st.owner()]; s != nil {
			st.Serving = true
			s.status(st.Maps, now)
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b PeerStatus) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// status returns the state of the receiving side. The sending side is empty, except for
// StateExcluded. It takes inboundStream.mu.
func (s *inboundStream) status(maps map[string]*localMap) PeerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := PeerStatus{
		Peer: Peer{s.peer.Node, s.peer.Incarnation, s.addr}, Connected: s.up, Since: s.since, Error: errorText(s.err),
		ProtocolVersion: s.version, Release: s.release, ClockOffset: s.clock.offsetFrom(s.r.opt.WallOffset()), RoundTrip: s.clock.roundTrip,
	}
	if at := s.lastContact.Load(); at != 0 {
		st.LastContact = time.Unix(0, at)
	}
	for name, m := range maps {
		ms := MapStatus{Name: name, State: StateWaiting, SendState: StateWaiting, Out: s.r.sentBy(s.peer.Node, name)}
		if m.sendExcluded(s.r.opt.Self.Node, s.peer.Node) {
			ms.SendState = StateExcluded
		}
		if in := s.maps[name]; in != nil && in.m == m {
			ms.State, ms.Error, ms.CaughtUp = in.state, errorText(in.err), in.fullSyncDone
			ms.Received, ms.Applied = in.position, in.ackedPosition
			c := &in.comparison
			ms.InSync, ms.InSyncAt, ms.InSyncPosition = c.inSync, c.inSyncAt, c.inSyncPosition
			ms.Divergent, ms.Incomparable = c.divergent, c.impossibleReason
			ms.FalseDigests = in.unexplained.isFalse(time.Now())
			ms.FallbackSender, ms.Via = in.owners.requested.fallback, in.owners.via
			// Digests that agreed before the stream broke do not show the current state.
			if why := in.disconnectedReason(time.Now()); why != "" {
				ms.InSync, ms.Incomparable = false, why
			}
			ms.ExceptionCount, ms.Unsent = in.exceptions.count(), c.peerUnsent
			ms.Exceptions = in.exceptions.list(in.printer.key)
			ms.In, ms.DeltasAccepted, ms.DeltasRefused = in.traffic.load(), in.accepted, in.refused
		}
		st.Maps = append(st.Maps, ms)
	}
	slices.SortFunc(st.Maps, func(a, b MapStatus) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// status sets the fields of the sending side. The caller must not hold Replicator.mu, because it
// takes s.mu and the locks of maps and tables.
func (s *outboundStream) status(maps []MapStatus, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range maps {
		for _, out := range s.maps {
			if out.name != maps[i].Name || out.unsubscribed.Load() {
				continue
			}
			ms := &maps[i]
			// out.m may be read only while the map is served.
			if !out.serving.Load() {
				if ms.SendState != StateExcluded {
					ms.SendState = out.sharedAnswer.Load().state()
				}
				continue
			}
			ms.SendState = StateServed
			ms.Reporting, ms.Report = s.sendsReports, out.lastReport()
			out.m.table.View(func(tx *table.Tx) {
				n, _, _ := tx.RecordsOf(s.r.opt.Self.Node)
				ms.Records = uint64(n)
			})
			ms.Serving, ms.Sent, ms.Acked = true, out.sentPosition.Load(), out.ackedPosition.Load()
			// The lag covers all changes of the table since the acknowledged position.
			if head := out.m.head(); head > ms.Acked {
				ms.LagEntries = head - ms.Acked
				ms.Lag = out.m.lagSince(ms.Acked, now)
			}
		}
	}
}

// errorText returns the text of an error, or an empty string for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
