package replicate

import (
	"sync/atomic"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// Stats is a snapshot of a Replicator's counters since its start.
type Stats struct {
	// Peers is the number of live peers.
	Peers int
	// Connected is the number of peers whose changes this node receives now.
	Connected int
	// Serving is the number of streams to peers that are served now, and Observers
	// the number of those to others that only look.
	Serving, Observers int
	// Maps is the number of maps.
	Maps int

	// Sent and Received count the batches of all streams.
	Sent, Received Traffic
	// DeltasAccepted counts received deltas that were newer than the table.
	DeltasAccepted uint64
	// DeltasRefused counts received deltas that were set aside: those that a table
	// refused, and DeltasOutOfRange, which hold a number that this node's field
	// cannot, and DeltasWithoutLink, which name an interface that this node has not.
	DeltasRefused, DeltasOutOfRange, DeltasWithoutLink uint64
	// DeltasUnencodable counts the times that a record was met which cannot be
	// sent, because there are bytes in the padding of its key, or an interface in it
	// that does not exist.
	DeltasUnencodable uint64
	// DeltasAhead counts received deltas whose version was too far ahead of the
	// local clock.
	DeltasAhead uint64

	// Connects counts streams that were opened to peers, and ConnectErrors those
	// that failed, be it at once or later.
	Connects, ConnectErrors uint64
	// Walks counts walks from the beginning that were begun for a peer, and
	// Resumes those that went on where the peer had left off.
	Walks, Resumes uint64
	// MapsRefused counts maps refused to a peer, and MapsUnfit those of a peer that
	// were refused here, for their schema.
	MapsRefused, MapsUnfit uint64
	// Gaps counts received batches that did not follow on the one before.
	Gaps uint64
	// BadMessages counts messages of senders that did not parse or fit, gaps
	// included. BadRequests counts those of receivers.
	BadMessages, BadRequests uint64
	// Digests counts comparisons of a map with a peer: DigestsDiffer those that came
	// out different, things under way included, and DigestsImpossible those that could not
	// be made.
	Digests, DigestsDiffer, DigestsImpossible uint64
	// Repairs counts the times that records were asked for again because they
	// differed, and Repaired the entries that were put right by it.
	Repairs, Repaired uint64
	// Retellings counts the times that a peer asked for records again, and Retold the
	// records that it was told.
	Retellings, Retold uint64
	// Silences counts streams given up because nothing came for too long.
	Silences uint64
}

// Traffic counts batches, the deltas in them, and their encoded bytes.
type Traffic struct {
	Batches, Deltas, Bytes uint64
}

type traffic struct {
	batches, deltas, bytes atomic.Uint64
}

func (t *traffic) add(deltas, bytes int) {
	t.batches.Add(1)
	t.deltas.Add(uint64(deltas))
	t.bytes.Add(uint64(bytes))
}

func (t *traffic) load() Traffic {
	return Traffic{t.batches.Load(), t.deltas.Load(), t.bytes.Load()}
}

type counters struct {
	sent, received           traffic
	accepted, ahead          atomic.Uint64
	outOfRange, withoutLink  atomic.Uint64 // set aside: each is one of three
	refused                  atomic.Uint64
	unencodable              atomic.Uint64
	connects, connectErrors  atomic.Uint64
	walks, resumes           atomic.Uint64
	mapsRefused, mapsUnfit   atomic.Uint64
	gaps                     atomic.Uint64
	badMessages, badRequests atomic.Uint64
	silences                 atomic.Uint64
	agreeing, differing      atomic.Uint64 // comparisons: each is one of three
	impossible               atomic.Uint64
	repairs, repaired        atomic.Uint64
	retellings, retold       atomic.Uint64
	rejected                 [rejections]atomic.Uint64
}

// Stats returns a snapshot of the counters.
func (r *Replicator) Stats() Stats {
	c := &r.count
	s := Stats{
		Sent:              c.sent.load(),
		Received:          c.received.load(),
		DeltasAccepted:    c.accepted.Load(),
		DeltasOutOfRange:  c.outOfRange.Load(),
		DeltasWithoutLink: c.withoutLink.Load(),
		DeltasUnencodable: c.unencodable.Load(),
		DeltasAhead:       c.ahead.Load(),
		Connects:          c.connects.Load(),
		ConnectErrors:     c.connectErrors.Load(),
		Walks:             c.walks.Load(),
		Resumes:           c.resumes.Load(),
		MapsRefused:       c.mapsRefused.Load(),
		MapsUnfit:         c.mapsUnfit.Load(),
		Gaps:              c.gaps.Load(),
		BadMessages:       c.badMessages.Load(),
		BadRequests:       c.badRequests.Load(),
		Silences:          c.silences.Load(),
		DigestsDiffer:     c.differing.Load(),
		DigestsImpossible: c.impossible.Load(),
		Repairs:           c.repairs.Load(),
		Repaired:          c.repaired.Load(),
		Retellings:        c.retellings.Load(),
		Retold:            c.retold.Load(),
	}
	// Sums of what was read above: no part is ever more than its whole.
	s.DeltasRefused = s.DeltasOutOfRange + s.DeltasWithoutLink + c.refused.Load()
	s.Digests = s.DigestsDiffer + s.DigestsImpossible + c.agreeing.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Maps = len(r.localMaps())
	for o := range r.sessions {
		if o.observing.Load() {
			s.Observers++
		} else {
			s.Serving++
		}
	}
	for node := range r.view.Load().live {
		s.Peers++
		if r.links[node].connected() {
			s.Connected++
		}
	}
	return s
}

func incarnation(o table.Owner) *mapsyncv1.Incarnation {
	return &mapsyncv1.Incarnation{Node: o.Node, Number: o.Incarnation}
}
