package replicate

import (
	"log/slog"
	"slices"
	"time"

	"mapsync/syncd/table"
)

// The receiver decides the roles, per map. Its fallback sender is the node that started first among
// the nodes from which it receives the map, and itself. It requests orphaned records from the
// fallback sender alone, or from all peers if it is the fallback sender itself. So each record that
// any node holds reaches the first node, and from there each other node once. If not every node
// reaches every other node, their decisions may differ. Some records then arrive twice, or are
// missing until digests detect it: every pair of nodes compares orphaned records.

// stalledCandidatePause is how long a peer is not a candidate for the fallback sender after it has
// sent nothing for Options.stallTimeout although requested records are missing.
const stalledCandidatePause = time.Minute

// mapSource is the state of one map with one live peer, for the decision about roles.
type mapSource struct {
	// peer is the live peer, stream its inbound stream: stream.peer is peer.
	peer             table.Owner
	stream           *inboundStream // never nil
	serving          bool           // the peer serves the map
	mayServe         bool           // the peer serves the map, or may do so soon
	unreachable      bool           // the peer is live and this node receives nothing from it
	candidate        bool           // the peer may be the fallback sender
	requestsComplete bool           // this node has received everything requested
	fullSyncDone     bool           // this node has received everything at least once
	sources          []string       // nodes from which the peer receives the map, sorted
	receives         bool           // sources has the node for which chooseRelays chooses
	via              string         // peer that sends this peer's records, empty: none
}

// startedBefore orders nodes by their start time. The fallback sender is the node that started
// first, so that a node that joins does not replace it. All nodes order the same nodes in the same
// way, so they agree without messages. The name decides among equal times.
func startedBefore(a, b table.Owner) bool {
	if a.Incarnation != b.Incarnation {
		return a.Incarnation < b.Incarnation
	}
	return a.Node < b.Node
}

// assignMapRoles decides the roles of one map. The caller holds r.mu.
//
// The roles differ between maps: a node may lack one map and serve another. The decision uses only
// the state of this node, and no messages between nodes.
func (r *Replicator) assignMapRoles(v *view, m *localMap, now time.Time) {
	all := make([]mapSource, 0, len(v.live))
	for node := range v.live {
		all = append(all, r.inboundStreams[node].mapSource(m, now))
	}
	slices.SortFunc(all, func(a, b mapSource) int {
		if startedBefore(a.peer, b.peer) {
			return -1
		}
		return 1
	})
	// The fallback sender is the candidate that started first, unless this node started before it.
	first := v.self
	if at := slices.IndexFunc(all, func(p mapSource) bool { return p.candidate }); at >= 0 && startedBefore(all[at].peer, first) {
		first = all[at].peer
	}
	relays := chooseRelays(all)
	settled, sources := true, []string(nil)
	for i := range all {
		p := &all[i]
		wanted := &permit{
			peer: p.peer.Node, orphaned: first == v.self || first == p.peer, fallback: first == p.peer, nodes: relays[p.peer.Node],
		}
		// Every peer gets its request, even if an earlier one is not complete.
		settled = p.stream.assignRole(m, p, wanted, v.departures, now) && settled
		// Orphaned records are not complete while the fallback sender does not serve the map.
		if p.peer == first && !p.serving {
			settled = false
		}
		// Only complete sources are published: a receiver relies on them for all records of the node.
		if p.serving && p.fullSyncDone {
			sources = append(sources, p.peer.Node)
		}
	}
	r.publishRoles(m, v, settled, sources)
}

// mapSource returns the state of a map with the peer of the stream. It also updates lastServing and
// candidateAfter. It takes inboundStream.mu. The caller must not change sources in the result.
func (s *inboundStream) mapSource(m *localMap, now time.Time) mapSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := mapSource{peer: s.peer, stream: s, mayServe: true}
	in := s.maps[m.name]
	// A peer has rerouteDelay after the start to establish a stream. Then other peers replace it.
	if in == nil || in.m != m {
		p.mayServe = now.Sub(s.firstSeen) < s.r.opt.rerouteDelay
		p.unreachable = !p.mayServe
		p.candidate = p.mayServe
		return p
	}
	q := &in.owners
	q.decidedState = in.state
	switch {
	case s.up && (in.state == StateSyncing || in.state == StateCaughtUp):
		p.serving, q.lastServing = true, now
	case in.state == StateWaiting || in.state == StateFailed:
		// A short interruption changes no roles.
		p.mayServe = in.state == StateWaiting && now.Sub(q.lastServing) < s.r.opt.rerouteDelay
		p.unreachable = now.Sub(q.lastServing) >= s.r.opt.rerouteDelay
	default:
		p.mayServe = false
	}
	p.requestsComplete, p.fullSyncDone, p.sources, p.via = in.requestsComplete(), in.fullSyncDone, q.sources, q.via
	// The peer serves the map but does not send what was requested.
	if p.serving && !p.requestsComplete && now.Sub(q.lastProgress) > s.r.opt.stallTimeout && now.After(q.candidateAfter) {
		q.candidateAfter = now.Add(stalledCandidatePause)
		s.r.opt.Logger.Warn("peer did not send requested records, requesting them from another peer",
			slog.String("peer", s.peer.Node), slog.String("map", m.name), slog.String("hint", "if it lasts, check the load of that peer"))
	}
	p.candidate = p.mayServe && now.After(q.candidateAfter)
	return p
}

// assignRole makes a request to the peer, and reports whether the records that it serves are
// complete or the peer has stalled. It takes inboundStream.mu. The map may have been replaced since mapSource;
// then nothing is requested.
func (s *inboundStream) assignRole(m *localMap, p *mapSource, wanted *permit, departures uint64, now time.Time) (settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.maps[m.name]
	if in == nil || in.m != m {
		return true
	}
	q := &in.owners
	if q.via != p.via {
		q.via = p.via
		s.r.opt.Logger.Warn("no stream from live peer, receiving its records through another peer",
			slog.String("peer", s.peer.Node), slog.String("map", m.name), slog.String("through", p.via),
			slog.String("hint", "repair routes and firewalls between the two nodes"))
	}
	// Without a stream the last request remains: the peer stores what it has sent under that request.
	if p.serving {
		in.setRequest(wanted, departures, now)
	}
	// One peer must not prevent the comparison of orphaned records with all others.
	return !p.serving || in.requestsComplete() || !now.After(q.candidateAfter)
}
