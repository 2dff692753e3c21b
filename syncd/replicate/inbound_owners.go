package replicate

import (
	"fmt"
	"slices"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// inboundOwners are this node's owner requests to one peer for one map. inboundStream.mu guards it.
//
// A request is wanted, then sent, then confirmed: serial, sentSerial and confirmedSerial are equal
// once the peer has sent everything that was requested. The peer may still send orphaned records of an
// earlier request before, so permit may allow more than requested until then.
type inboundOwners struct {
	// permit is that of requested, and still allows orphaned records of earlier requests until the peer
	// confirms requested. The permit that it points to does not change. Merges take a copy of the pointer and read it
	// without a lock.
	permit *permit
	// requested is the newest request.
	requested *permit
	// departures is view.departures of the view under which requested was decided.
	departures uint64
	// serial is the serial of requested. It increases with each request.
	serial uint64
	// sentSerial is the serial of the last request sent on this stream; 0: none.
	sentSerial uint64
	// confirmedSerial is the serial of the last request that an OwnersSent on this stream has
	// confirmed; 0: none.
	confirmedSerial uint64
	// token is the token of the last OwnersSent; 0: none since position 0. After a resume, the peer
	// sends only the requested records that it had not sent under this token.
	token uint64
	// rejectedUnrequested reports that records were rejected since the last request with the resend flag because the
	// permit does not cover them. Membership at this node and at the peer changes at different
	// times, so such records may have been sent too early.
	rejectedUnrequested bool
	// resend is the resend flag of the next request.
	resend bool
	// resendSent reports that a request with the resend flag was sent and that the peer has not confirmed
	// the newest request since. If the stream ends before, the next request needs the flag again.
	resendSent bool

	// sources are the nodes from which the peer receives the map, sorted, at most maxSources.
	sources []string
	// via is the peer that sends this peer's records in its place; empty: none.
	via string

	// decidedState is the state of the map under which the roles were last decided.
	decidedState State
	// lastServing is when the peer was last seen to serve the map; initially when the stream was created.
	lastServing time.Time
	// lastProgress is when the last batch arrived that was not marked as caught up, or when the last
	// request was made.
	lastProgress time.Time
	// candidateAfter is the time until which the peer is not a candidate for the fallback sender.
	candidateAfter time.Time
}

// newInboundOwners returns the initial request, which is right if every live node serves the map.
func newInboundOwners(v *view, peer table.Owner, now time.Time) inboundOwners {
	first := v.self
	// A node that is not serving the map is replaced by assignRoles later.
	for _, p := range v.live {
		if startedBefore(p.owner(), first) {
			first = p.owner()
		}
	}
	p := &permit{peer: peer.Node, orphaned: first == v.self || first == peer, fallback: first == peer}
	return inboundOwners{permit: p, requested: p, departures: v.departures, serial: 1, lastServing: now, lastProgress: now}
}

// reset clears the state of a stream that has ended. The request and the token remain. The caller
// holds inboundStream.mu.
func (q *inboundOwners) reset() {
	q.sentSerial, q.confirmedSerial, q.sources = 0, 0, nil
	q.resend, q.resendSent = q.resend || q.resendSent, false
}

// endSendAll ends the permission to send the records of every owner. The full sync is over, so the
// peer has sent everything that it has. The caller holds inboundStream.mu.
func (q *inboundOwners) endSendAll() {
	if q.permit.all {
		p := *q.permit
		p.all = false
		q.permit = &p
	}
}

// setRequest replaces the request if wanted differs, or if nodes have left since. The caller holds
// inboundStream.mu. The requesting goroutine sends the new request. wanted must not change
// afterwards.
func (in *inboundMap) setRequest(wanted *permit, departures uint64, now time.Time) {
	q := &in.owners
	// Records that were rejected as those of another live node may be orphaned now, or requested.
	if q.rejectedUnrequested && (departures != q.departures || !isSubset(wanted.nodes, q.requested.nodes)) {
		q.resend, q.rejectedUnrequested = true, false
	}
	// The fallback flag is not part of the message, so it needs no new request.
	same := wanted.orphaned == q.requested.orphaned && slices.Equal(wanted.nodes, q.requested.nodes)
	// A departure changes a request for orphaned records: the peer has to send more of them.
	if same && (!wanted.orphaned || departures == q.departures && !q.resend) {
		q.departures = departures
		if wanted.fallback != q.permit.fallback {
			q.requested, q.permit = wanted, q.permit.succeededBy(wanted)
		}
		return
	}
	q.permit, q.requested, q.departures = q.permit.succeededBy(wanted), wanted, departures
	q.serial++
	q.lastProgress = now
	poke(in.stream.wake)
}

// isSubset reports whether all of the names are in a sorted list.
func isSubset(names, sorted []string) bool {
	return !slices.ContainsFunc(names, func(node string) bool {
		_, found := slices.BinarySearch(sorted, node)
		return !found
	})
}

// ownerRequestMessage returns the message for the current request. The caller holds
// inboundStream.mu. It counts as sent from now on. If the stream breaks before it is sent, reset
// clears sentSerial and sets the resend flag again.
func (in *inboundMap) ownerRequestMessage() *mapsyncv1.OwnerRequest {
	q := &in.owners
	q.sentSerial = q.serial
	m := &mapsyncv1.OwnerRequest{Serial: q.serial, Orphaned: q.requested.orphaned, Nodes: q.requested.nodes, Resend: q.resend}
	q.resend, q.resendSent = false, q.resendSent || q.resend
	return m
}

// handleOwnersSent records that the peer has satisfied a request. The caller holds
// inboundStream.mu.
func (in *inboundMap) handleOwnersSent(m *mapsyncv1.OwnersSent) {
	q := &in.owners
	// The token is valid for any serial. Only an answer to the newest request narrows the permit.
	q.token = m.GetToken()
	if m.GetSerial() == q.serial && q.sentSerial == q.serial {
		q.confirmedSerial, q.resendSent = q.serial, false
		p := *q.requested
		// The permit for all owners ends with the full sync, not with an answer.
		p.all = q.permit.all
		q.permit = &p
	}
	poke(in.stream.r.wake)
}

// maxSources bounds the nodes in a Sources message.
const maxSources = 1024

// handleSources stores from which nodes the peer receives the map. The caller holds
// inboundStream.mu. Names above maxSources are ignored: they are only possible relays. An error wraps
// wire.ErrMalformed and ends the stream. Without it, a peer could make this node keep names of 1 MiB for
// each map.
func (in *inboundMap) handleSources(m *mapsyncv1.Sources) error {
	nodes := m.GetNodes()[:min(len(m.GetNodes()), maxSources)]
	for _, node := range nodes {
		if err := wire.CheckName(node); err != nil {
			return fmt.Errorf("receive sources of map %q: %w", in.m.name, err)
		}
	}
	in.owners.sources = slices.Sorted(slices.Values(nodes))
	poke(in.stream.r.wake)
	return nil
}

// assignRoles decides the roles of all maps. Only the goroutine of Run calls it, in each of its
// rounds. It takes Replicator.mu, and then the lock of one inbound stream at a time.
func (r *Replicator) assignRoles(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	for _, m := range r.localMaps() {
		r.assignMapRoles(v, m, now)
	}
}

// publishRoles publishes the decisions about a map. It requests digests at once if a comparison
// that was impossible before is possible now. The caller holds r.mu.
func (r *Replicator) publishRoles(m *localMap, v *view, settled bool, sources []string) {
	// Under a new view, or with all requests answered, a comparison may be possible that was not before.
	if was := m.requestsComplete.Swap(settled); settled && (!was || v != m.rolesView) {
		for node := range v.live {
			r.inboundStreams[node].requestDigest(m)
		}
	}
	m.rolesView = v
	slices.Sort(sources)
	sources = sources[:min(len(sources), maxSources)]
	if !slices.Equal(*m.sources.Load(), sources) {
		m.sources.Store(&sources)
		for s := range r.outboundStreams {
			poke(s.wake)
		}
	}
}

// requestDigest requests a comparison of a map soon. It takes inboundStream.mu. The caller may hold
// Replicator.mu.
func (s *inboundStream) requestDigest(m *localMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.maps[m.name]; in != nil && in.m == m {
		in.comparison.requestBuckets = true
		poke(s.wake)
	}
}
