package replicate

import (
	"log/slog"
	"slices"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// Roles are decided per map, by the receiver. Of the nodes from which it receives a map,
// itself included, the one that started first is its fallback sender: it requests orphaned
// records from that one alone, or, if it is the first itself, from all. So each record
// that any node holds reaches the first one, and all others once from there. Nodes whose
// decisions differ, because not every node reaches every other, receive some records
// twice, or miss some until digests show it: those cover orphaned records between every
// pair of nodes.
//
// A live peer from which this node receives nothing is replaced, too: by a peer that
// receives the map from it.

// stallPause is how long a peer is not a candidate for the fallback sender after it sent
// nothing for Options.stall although not everything was sent.
const stallPause = time.Minute

// requesting is what this node requests of one peer for one map. The link's lock guards it.
type requesting struct {
	permit     *permit // what is requested, and, until that is confirmed, what was before
	wanted     *permit // what is requested
	departures uint64  // of the view under which it was requested
	serial     uint64  // of the request
	sent       uint64  // serial of the last one sent on this stream
	confirmed  uint64  // serial of the last OwnersSent on this stream
	token      uint64  // of the last OwnersSent; 0: none since position 0
	withheld   bool    // records were set aside that the permit does not allow
	again      bool    // of the next request

	sources []string // from which the peer receives the map
	via     string   // the peer that sends this peer's records in its place, empty: none

	good    time.Time // when the peer was last seen to serve the map; at first, when it was met
	moved   time.Time // when the last batch came, or the last request was made
	stalled time.Time // no candidate before
}

// newRequesting begins with the request that is right if every live node serves the map.
func newRequesting(v *view, peer table.Owner, now time.Time) requesting {
	first := v.self
	for _, p := range v.live {
		if before(p.owner(), first) {
			first = p.owner()
		}
	}
	p := &permit{peer: peer.Node, orphaned: first == v.self || first == peer, fallback: first == peer}
	return requesting{permit: p, wanted: p, departures: v.departures, serial: 1, good: now, moved: now}
}

// reset forgets what a stream was to bring. The request stays, and so does the
// token.
func (q *requesting) reset() {
	q.sent, q.confirmed, q.sources = 0, 0, nil
}

// endAll ends the permit to send the records of every owner.
func (q *requesting) endAll() {
	if q.permit.all {
		p := *q.permit
		p.all = false
		q.permit = &p
	}
}

// settled reports whether all that is requested has been received.
func (in *intake) settled() bool {
	q := &in.requesting
	return !in.l.ownerRequests || q.confirmed == q.serial || (!q.wanted.orphaned && len(q.wanted.nodes) == 0)
}

// request puts a new request in the place of the last one if it is another, or if nodes
// have left since. The lock is held.
func (in *intake) request(wanted *permit, departures uint64, now time.Time) {
	q := &in.requesting
	same := wanted.orphaned == q.wanted.orphaned && slices.Equal(wanted.nodes, q.wanted.nodes)
	if same && (!wanted.orphaned || departures == q.departures && !q.again) {
		q.departures = departures
		if wanted.fallback != q.permit.fallback {
			q.wanted, q.permit = wanted, q.permit.with(wanted)
		}
		return
	}
	// What was withheld as another node's may be orphaned now.
	q.again = q.again || q.withheld && departures != q.departures
	q.withheld = false
	q.permit, q.wanted, q.departures = q.permit.with(wanted), wanted, departures
	q.serial++
	q.moved = now
	poke(in.l.wake)
}

// ownerRequest returns the message for the current request. The lock is held.
func (in *intake) ownerRequest() *mapsyncv1.OwnerRequest {
	q := &in.requesting
	q.sent = q.serial
	m := &mapsyncv1.OwnerRequest{Serial: q.serial, Orphaned: q.wanted.orphaned, Nodes: q.wanted.nodes, Again: q.again}
	q.again = false
	return m
}

// takeOwnersSent notes that a request was satisfied. The lock is held.
func (in *intake) takeOwnersSent(m *mapsyncv1.OwnersSent) {
	q := &in.requesting
	q.token = m.GetToken()
	if m.GetSerial() == q.serial && q.sent == q.serial {
		q.confirmed = q.serial
		p := *q.wanted
		p.all = q.permit.all
		q.permit = &p
	}
	poke(in.l.r.wake)
}

// maxSources bounds the nodes in a message.
const maxSources = 1024

// takeSources notes from which nodes the peer receives the map. The lock is held.
func (in *intake) takeSources(m *mapsyncv1.Sources) {
	in.requesting.sources = slices.Sorted(slices.Values(m.GetNodes()[:min(len(m.GetNodes()), maxSources)]))
	poke(in.l.r.wake)
}

// inboundMap is what the decision about one map needs to know of one live peer.
type inboundMap struct {
	peer      table.Owner
	l         *link
	good      bool // the peer serves the map
	hopeful   bool // it does, or may do so in a moment
	lost      bool // it is live and nothing is received from it
	candidate bool // for the fallback sender
	settled   bool
	synced    bool
	sources   []string
	via       string
}

// assign decides the roles of all maps.
func (r *Replicator) assign(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	for _, m := range r.localMaps() {
		r.assignMap(v, m, now)
	}
}

func (r *Replicator) assignMap(v *view, m *localMap, now time.Time) {
	all := make([]inboundMap, 0, len(v.live))
	for node := range v.live {
		all = append(all, r.links[node].inbound(m, now))
	}
	slices.SortFunc(all, func(a, b inboundMap) int {
		if before(a.peer, b.peer) {
			return -1
		}
		return 1
	})
	first := v.self
	if at := slices.IndexFunc(all, func(p inboundMap) bool { return p.candidate }); at >= 0 && before(all[at].peer, first) {
		first = all[at].peer
	}
	relays := relay(all)
	settled, sources := true, []string(nil)
	for i := range all {
		p := &all[i]
		wanted := &permit{
			peer: p.peer.Node, orphaned: first == v.self || first == p.peer, fallback: first == p.peer, nodes: relays[p.peer.Node],
		}
		settled = p.l.assign(m, p, wanted, v.departures, now) && settled
		if p.peer == first && !p.good {
			settled = false
		}
		if p.good && p.synced {
			sources = append(sources, p.peer.Node)
		}
	}
	r.publishRoles(m, v, settled, sources)
}

// publishRoles makes known what was decided of a map, and has digests compared at once that
// could not be compared before.
func (r *Replicator) publishRoles(m *localMap, v *view, settled bool, sources []string) {
	if was := m.settled.Swap(settled); settled && (!was || v != m.viewed) {
		for node := range v.live {
			r.links[node].compareSoon(m)
		}
	}
	m.viewed = v
	slices.Sort(sources)
	sources = sources[:min(len(sources), maxSources)]
	if !slices.Equal(*m.sources.Load(), sources) {
		m.sources.Store(&sources)
		for s := range r.sessions {
			poke(s.wake)
		}
	}
}

// relay returns, by peer, the nodes whose records it is to send in their place, and notes
// in the list which nodes those are. The list is sorted.
func relay(all []inboundMap) map[string][]string {
	relays := make(map[string][]string)
	for i := range all {
		p := &all[i]
		was := p.via
		p.via = ""
		if !p.lost {
			continue
		}
		for j := range all {
			c := &all[j]
			if _, ok := slices.BinarySearch(c.sources, p.peer.Node); !ok || !c.good || len(relays[c.peer.Node]) == maxRequested {
				continue
			}
			if p.via == "" || c.peer.Node == was {
				p.via = c.peer.Node
			}
		}
		if p.via != "" {
			relays[p.via] = append(relays[p.via], p.peer.Node)
		}
	}
	for _, nodes := range relays {
		slices.Sort(nodes)
	}
	return relays
}

// inbound returns where a map stands with the link's peer.
func (l *link) inbound(m *localMap, now time.Time) inboundMap {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := inboundMap{peer: l.peer, l: l, hopeful: true}
	in := l.intakes[m.name]
	if in == nil || in.m != m {
		p.hopeful = now.Sub(l.met) < l.r.opt.reroute
		p.lost = !p.hopeful
		p.candidate = p.hopeful
		return p
	}
	q := &in.requesting
	switch {
	case l.up && (in.state == StateSyncing || in.state == StateCaughtUp):
		p.good, q.good = true, now
	case in.state == StateWaiting || in.state == StateFailed:
		p.hopeful = in.state == StateWaiting && now.Sub(q.good) < l.r.opt.reroute
		p.lost = now.Sub(q.good) >= l.r.opt.reroute
	default:
		p.hopeful = false
	}
	p.settled, p.synced, p.sources, p.via = in.settled(), in.synced, q.sources, q.via
	if p.good && !p.settled && now.Sub(q.moved) > l.r.opt.stall && now.After(q.stalled) {
		q.stalled = now.Add(stallPause)
		l.r.opt.Logger.Warn("peer does not send what was requested, requesting it from another",
			slog.String("peer", l.peer.Node), slog.String("map", m.name))
	}
	p.candidate = p.hopeful && now.After(q.stalled)
	return p
}

// assign makes a request of the peer, and reports whether what it serves is settled.
func (l *link) assign(m *localMap, p *inboundMap, wanted *permit, departures uint64, now time.Time) (settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.intakes[m.name]
	if in == nil || in.m != m {
		return true
	}
	q := &in.requesting
	if q.via != p.via {
		q.via = p.via
		l.r.opt.Logger.Warn("no stream from live peer for a map, records come through another peer",
			slog.String("peer", l.peer.Node), slog.String("map", m.name), slog.String("through", p.via))
	}
	// Without a stream, the last request stands: the peer remembers what it has
	// sent under that.
	if p.good {
		in.request(wanted, departures, now)
	}
	return !p.good || in.settled()
}

// compareSoon has digests of a map compared soon.
func (l *link) compareSoon(m *localMap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in := l.intakes[m.name]; in != nil && in.m == m {
		in.comparing.ask = true
		poke(l.wake)
	}
}
