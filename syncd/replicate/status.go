package replicate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// State is where a map stands with a peer, on the receiving side.
type State string

// The states.
const (
	// StateWaiting maps have not been answered for yet, or the peer cannot be
	// reached.
	StateWaiting State = "waiting"
	// StatePending maps are not there yet on the peer.
	StatePending State = "pending"
	// StateRefused maps cannot hold what the peer's do.
	StateRefused State = "refused"
	// StateExcluded maps are not received from the peer: write-from does not have it.
	StateExcluded State = "excluded"
	// StateFailed maps had an error and are subscribed to again later.
	StateFailed State = "failed"
	// StateSyncing maps have more to come.
	StateSyncing State = "syncing"
	// StateCaughtUp maps have been received to the end.
	StateCaughtUp State = "caught_up"
	// StateServed maps are sent to the peer.
	StateServed State = "served"
)

// PeerStatus is the state of replication with one live peer.
type PeerStatus struct {
	// Peer is the peer as membership has it.
	Peer
	// Connected says that the stream from the peer is up, and Since since when
	// it is, or is not.
	Connected bool
	Since     time.Time
	// Error is why the last stream from the peer ended, or empty.
	Error string
	// LastContact is when the peer's last message came, by the clock of time.Now; zero: none
	// came since this incarnation of the peer is in the cluster.
	LastContact time.Time
	// Serving says that the peer has a stream from this node.
	Serving bool
	// ClockOffset is how far the peer's clock is ahead of this node's, right to half
	// of RoundTrip, the time that it took to ask. Both are zero before the first answer.
	ClockOffset, RoundTrip time.Duration
	// Maps are this node's maps, by name.
	Maps []MapStatus
}

// MapStatus is the state of one map with one peer. Positions are those of the
// table that changes come from: the peer's for what is received, this node's
// for what is sent.
type MapStatus struct {
	// Name is the map's name.
	Name string
	// State is where the map stands on the receiving side, and Error what went
	// wrong with it, or empty.
	State State
	Error string
	// CaughtUp says that all that the peer had was received at least once.
	CaughtUp bool
	// Received is the position merged into the table, and Applied the one that
	// the kernel map is known to hold and the peer was told of.
	Received, Applied uint64
	// In counts what was received, DeltasAccepted how much of it was news, and
	// DeltasRefused how much was set aside.
	In                            Traffic
	DeltasAccepted, DeltasRefused uint64
	// Agreed says that this node was last seen to hold what the peer told it, when,
	// and up to which position.
	Agreed         bool
	AgreedAt       time.Time
	AgreedPosition uint64
	// Divergent is the number of entries that differ, of those that the peer tells: 0
	// when the digests agree, or else how many did when they were last looked into.
	Divergent int
	// Exceptions are entries of the peer that this node cannot hold, and ExceptionCount how
	// many there are; Unsent is how many the peer says that it cannot send.
	Exceptions             []Exception
	ExceptionCount, Unsent int
	// Incomparable is why it is not known whether the map and the peer's hold the same, or
	// empty.
	Incomparable string
	// FallbackSender says that this node requests orphaned records from the peer, because
	// it started first of those from which the map is received. Via is the peer that sends
	// this peer's records because nothing is received from it, or empty.
	FallbackSender bool
	Via            string

	// Serving says that the peer is subscribed to the map, and SendState where the map
	// stands on the sending side: one of StateWaiting, StatePending, StateRefused and
	// StateServed.
	Serving   bool
	SendState State
	// Reporting says that the peer sends reports, and Report is the last one.
	Reporting bool
	Report    Report
	// Sent is the position sent to the peer, and Acked the one that its kernel
	// map holds.
	Sent, Acked uint64
	// LagEntries is the number of changes since Acked. Those that are none of
	// the peer's business count until the peer has acknowledged what is after.
	LagEntries uint64
	// Lag is the age of the oldest change since Acked, to a quarter of a second.
	Lag time.Duration
}

// Status returns the state of replication with each live peer, by name.
func (r *Replicator) Status() []PeerStatus {
	r.mu.Lock()
	links := make([]*link, 0, len(r.links))
	for node := range r.view.Load().live {
		links = append(links, r.links[node])
	}
	sessions := make(map[table.Owner]*session, len(r.sessions))
	for s := range r.sessions {
		if s.observing.Load() {
			continue
		}
		// One that wants a proof alone is not the peer's stream.
		if o := sessions[s.target]; o == nil || s.joined.Load() && (!o.joined.Load() || o.begun.Before(s.begun)) {
			sessions[s.target] = s
		}
	}
	r.mu.Unlock()

	now := time.Now()
	all := make([]PeerStatus, 0, len(links))
	for _, l := range links {
		st := l.status(r.localMaps())
		if s := sessions[st.owner()]; s != nil {
			st.Serving = true
			s.status(st.Maps, now)
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b PeerStatus) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// SyncedAll reports whether the first walk over every map of every live peer
// has been merged, and if not, which are waited for: the peer's name, or peer
// and map as peer/map. A map that a peer does not have, or that does not match
// its own, is not waited for. Before the first SetPeers nobody knows.
func (r *Replicator) SyncedAll() (ok bool, waiting []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known.IsZero() {
		return false, []string{"membership"}
	}
	for node := range r.view.Load().live {
		for _, name := range r.links[node].unsynced(r.localMaps()) {
			waiting = append(waiting, node+"/"+name)
		}
	}
	slices.Sort(waiting)
	return len(waiting) == 0, waiting
}

func (l *link) unsynced(maps map[string]*localMap) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, m := range maps {
		in := l.intakes[name]
		if in == nil || in.m != m || ((!in.synced || !in.settled()) && in.state != StatePending && in.state != StateRefused && in.state != StateExcluded) {
			names = append(names, name)
		}
	}
	return names
}

func (l *link) status(maps map[string]*localMap) PeerStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := PeerStatus{
		Peer: Peer{l.peer.Node, l.peer.Incarnation, l.addr}, Connected: l.up, Since: l.since, Error: text(l.err),
		ClockOffset: l.clock.offset, RoundTrip: l.clock.roundTrip,
	}
	if at := l.contact.Load(); at != 0 {
		st.LastContact = time.Unix(0, at)
	}
	for name, m := range maps {
		ms := MapStatus{Name: name, State: StateWaiting, SendState: StateWaiting}
		if m.withheld(l.r.opt.Self.Node, l.peer.Node) {
			ms.SendState = StateExcluded
		}
		if in := l.intakes[name]; in != nil && in.m == m {
			ms.State, ms.Error, ms.CaughtUp = in.state, text(in.err), in.synced
			ms.Received, ms.Applied = in.position, in.acked
			c := &in.comparing
			ms.Agreed, ms.AgreedAt, ms.AgreedPosition = c.agreed, c.at, c.position
			ms.Divergent, ms.Incomparable = c.divergent, c.impossible
			ms.FallbackSender, ms.Via = in.requesting.wanted.fallback, in.requesting.via
			if why := in.cutOff(time.Now()); why != "" {
				ms.Agreed, ms.Incomparable = false, why
			}
			ms.ExceptionCount, ms.Unsent = in.excepted.count(), c.unsent
			ms.Exceptions = in.excepted.list(in.printer.key)
			ms.In, ms.DeltasAccepted, ms.DeltasRefused = in.count.load(), in.accepted, in.refused
		}
		st.Maps = append(st.Maps, ms)
	}
	slices.SortFunc(st.Maps, func(a, b MapStatus) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// cutOff returns since when nothing is received of the map, if that is for longer than it
// takes to connect again. The lock is held.
func (in *intake) cutOff(now time.Time) string {
	if in.state != StateWaiting && in.state != StateFailed {
		return ""
	}
	gap := now.Sub(in.requesting.good)
	switch {
	case gap < in.l.r.opt.reroute:
		return ""
	case in.requesting.via != "":
		return fmt.Sprintf("nothing has been received from the peer for %s; its records come through %s",
			gap.Round(time.Second), in.requesting.via)
	}
	return fmt.Sprintf("nothing has been received from the peer for %s, and no other peer receives from it", gap.Round(time.Second))
}

// status fills in the sending side.
func (s *session) status(maps []MapStatus, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range maps {
		for _, f := range s.feeds {
			if f.name != maps[i].Name || f.unwanted.Load() {
				continue
			}
			ms := &maps[i]
			if !f.serving.Load() {
				if ms.SendState != StateExcluded {
					ms.SendState = f.answered.Load().state()
				}
				continue
			}
			ms.SendState = StateServed
			ms.Reporting, ms.Report = s.reports, f.lastReport()
			ms.Serving, ms.Sent, ms.Acked = true, f.sent.Load(), f.acked.Load()
			if head := f.m.head(); head > ms.Acked {
				ms.LagEntries = head - ms.Acked
				ms.Lag = f.m.lagSince(ms.Acked, now)
			}
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// acks appends what the kernel maps hold by now.
func (l *link) acks(out []*mapsyncv1.SubscribeRequest) []*mapsyncv1.SubscribeRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index, in := range l.byIndex {
		if in.pending.n == 0 {
			continue
		}
		var applied uint64
		in.m.table.View(func(tx *table.Tx) { applied = tx.AppliedPosition() })
		position, ok := in.pending.pop(applied)
		if !ok || position <= in.acked {
			continue
		}
		in.acked = position
		out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{
			Ack: &mapsyncv1.Ack{Map: index, Position: position},
		}})
	}
	return out
}
